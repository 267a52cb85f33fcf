// Package passkeytest provides an authenticator in software, for tests of passkeys.
package passkeytest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Device is an authenticator with one passkey, of ECDSA with P-256. A test may change its
// fields to make a device that behaves wrongly.
type Device struct {
	Key    *ecdsa.PrivateKey
	ID     []byte
	Origin string
	RPID   string
	Flags  byte   // of authenticator data
	Count  uint32 // counter of signatures; Assert increments it first if it is not 0
}

// New returns a device for pages of an origin whose host is rp.
func New(origin, rp string) *Device {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err) // the system has no randomness
	}
	id := sha256.Sum256(key.X.Bytes())
	return &Device{Key: key, ID: id[:], Origin: origin, RPID: rp, Flags: 1 | 4, Count: 1}
}

// Registered returns the registration of the device's passkey by a person.
func (d *Device) Registered(principal string) *contract.PasskeyRegistered {
	der, err := x509.MarshalPKIXPublicKey(d.Key.Public())
	if err != nil {
		panic(err) // the key is of a supported type
	}
	return &contract.PasskeyRegistered{AAGUID: strings.Repeat("0", 32), Attestation: "none", ID: text(d.ID), Name: "test", Origin: d.Origin, Principal: principal,
		PublicKey: base64.StdEncoding.EncodeToString(der), RPID: d.RPID, SignCount: int64(d.Count)}
}

// Assert returns the assertion of the passkey over a challenge.
func (d *Device) Assert(challenge []byte) *contract.Assertion {
	if d.Count > 0 {
		d.Count++
	}
	client, data := d.client("webauthn.get", text(challenge)), d.data()
	hash := sha256.Sum256(client)
	sum := sha256.Sum256(append(data[:len(data):len(data)], hash[:]...))
	sig, err := d.Key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		panic(err) // as in New
	}
	return &contract.Assertion{AuthenticatorData: text(data), ClientData: text(client), CredentialID: text(d.ID), Signature: text(sig)}
}

// Create returns the response to the creation of the passkey over a challenge, in
// base64url, as the JSON document RegistrationResponseJSON (section 5.1.8.1). Its
// attestation has the format none.
func (d *Device) Create(challenge string) []byte {
	pad := func(b []byte) []byte { return append(make([]byte, 32-len(b)), b...) }
	// The COSE key: {1: 2, 3: -7, -1: 1, -2: x, -3: y}.
	cose := append([]byte{0xa5, 1, 2, 3, 0x26, 0x20, 1, 0x21, 0x58, 32}, pad(d.Key.X.Bytes())...)
	cose = append(append(cose, 0x22, 0x58, 32), pad(d.Key.Y.Bytes())...)
	flags := d.Flags
	d.Flags |= 1 << 6 // AT: with attested credential data
	data := append(d.data(), make([]byte, 16)...)
	d.Flags = flags
	data = append(binary.BigEndian.AppendUint16(data, uint16(len(d.ID))), d.ID...)
	data = append(data, cose...)
	// {"fmt": "none", "attStmt": {}, "authData": data}
	object := append([]byte("\xa3\x63fmt\x64none\x67attStmt\xa0\x68authData\x59"), byte(len(data)>>8), byte(len(data)))
	object = append(object, data...)
	return document(map[string]any{"id": text(d.ID), "rawId": text(d.ID), "type": "public-key", "clientExtensionResults": map[string]any{},
		"response": map[string]any{"attestationObject": text(object), "clientDataJSON": text(d.client("webauthn.create", challenge)), "transports": []string{"usb"}}})
}

// client returns client data.
func (d *Device) client(typ, challenge string) []byte {
	return document(map[string]any{"challenge": challenge, "crossOrigin": false, "origin": d.Origin, "type": typ})
}

// data returns authenticator data without credential data.
func (d *Device) data() []byte {
	rp := sha256.Sum256([]byte(d.RPID))
	return binary.BigEndian.AppendUint32(append(rp[:], d.Flags), d.Count)
}

func document(v map[string]any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // v holds strings, booleans and objects only
	}
	return b
}

func text(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
