// Package passkey verifies the signatures of passkeys over votes: assertions of Web
// Authentication Level 3 whose challenge is the digest of a ballot. It is pure, so that
// policy and a verifier of evidence verify a vote alike.
package passkey

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// The flags of authenticator data (section 6.1) that a vote needs.
const (
	flagPresent  = 1 << 0 // UP: a person was present
	flagVerified = 1 << 2 // UV: the device has verified the person, by a PIN or a biometric
)

// Challenge returns the challenge that a passkey signs for a ballot, whose KID is empty:
// SHA-256 of a domain line and the canonical bytes of the ballot.
func Challenge(b *contract.Ballot) []byte {
	sum := sha256.Sum256(canon.Append([]byte(sign.DomainPasskey+"\n"), b))
	return sum[:]
}

// Check returns an error unless a registration is complete and has a public key that
// Verify supports.
func Check(p *contract.PasskeyRegistered) error {
	if raw, err := decode(p.ID); err != nil || len(raw) < 16 || len(raw) > 1023 {
		return errors.New("id: want 16 to 1023 bytes in base64url without padding")
	}
	if raw, err := hex.DecodeString(p.AAGUID); err != nil || len(raw) != 16 || p.AAGUID != strings.ToLower(p.AAGUID) {
		return errors.New("aaguid: want 16 bytes in lower-case hex")
	}
	if err := checkPage(p); err != nil {
		return err
	}
	_, err := publicKey(p.PublicKey)
	return err
}

// checkPage checks the members that state for which page and with which name a passkey was
// registered, and its counter.
func checkPage(p *contract.PasskeyRegistered) error {
	switch {
	case p.Name == "" || len(p.Name) > 64 || !utf8.ValidString(p.Name):
		return errors.New("name: want 1 to 64 bytes")
	case p.RPID == "" || !strings.HasPrefix(p.Origin, "https://") && p.RPID != "localhost":
		return errors.New("origin: want an https URL, or http for the host localhost")
	case p.SignCount < 0 || p.SignCount > 1<<32-1:
		return errors.New("sign_count: want 0 to 4294967295")
	}
	return nil
}

// publicKey decodes a public key. It accepts ECDSA with P-256, Ed25519, and RSA with 2048
// to 4096 bits.
func publicKey(text string) (crypto.PublicKey, error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, errors.New("public_key: is not base64")
	}
	k, err := x509.ParsePKIXPublicKey(raw)
	if err != nil {
		return nil, errors.New("public_key: is not a SubjectPublicKeyInfo")
	}
	switch k := k.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return k, nil
		}
	case ed25519.PublicKey:
		return k, nil
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n >= 2048 && n <= 4096 {
			return k, nil
		}
	}
	return nil, errors.New("public_key: want ECDSA with P-256, Ed25519, or RSA with 2048 to 4096 bits")
}

// clientData holds the members of the client data (section 5.8.1) that Verify reads.
type clientData struct{ typ, challenge, origin string }

// Verify verifies an assertion of a passkey over a challenge (section 7.2), and returns the
// authenticator's counter of signatures. The assertion must be made on the page's origin at
// which the passkey was registered, and the device must have verified the person.
func Verify(p *contract.PasskeyRegistered, challenge []byte, a *contract.Assertion) (count uint32, err error) {
	if a.CredentialID != p.ID {
		return 0, errors.New("credential_id: is that of another passkey")
	}
	client, err := decode(a.ClientData)
	if err != nil {
		return 0, errors.New("client_data: is not base64url")
	}
	if err := checkClient(client, challenge, p.Origin); err != nil {
		return 0, err
	}
	data, err := authenticatorData(a)
	if err != nil {
		return 0, err
	}
	rp := sha256.Sum256([]byte(p.RPID))
	switch {
	case !bytes.Equal(data[:32], rp[:]):
		return 0, errors.New("authenticator_data: is for another relying party than " + p.RPID)
	case data[32]&flagPresent == 0:
		return 0, errors.New("authenticator_data: no person was present")
	case data[32]&flagVerified == 0:
		return 0, errors.New("authenticator_data: the device has not verified the person; set a PIN or a biometric on it")
	}
	sum := sha256.Sum256(client)
	if err := checkSignature(p.PublicKey, append(bytes.Clone(data), sum[:]...), a.Signature); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint32(data[33:37]), nil
}

// Count returns the counter of signatures in an assertion that was verified, or 0 if a is nil.
func Count(a *contract.Assertion) (uint32, error) {
	if a == nil {
		return 0, nil
	}
	data, err := authenticatorData(a)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint32(data[33:37]), nil
}

// authenticatorData returns the decoded authenticator data: 32 bytes of the hash of the
// relying party, one of flags, 4 of the counter, and extensions (section 6.1).
func authenticatorData(a *contract.Assertion) ([]byte, error) {
	data, err := decode(a.AuthenticatorData)
	if err != nil || len(data) < 37 {
		return nil, errors.New("authenticator_data: want at least 37 bytes in base64url")
	}
	return data, nil
}

// checkClient returns an error unless client data are those of an assertion over the
// challenge on a page of the origin. The page may not be embedded in one of another origin.
func checkClient(raw, challenge []byte, origin string) error {
	var members map[string]json.RawMessage // a struct would also match names in other cases
	if err := json.Unmarshal(raw, &members); err != nil {
		return errors.New("client_data: is not a JSON object")
	}
	var d clientData
	for name, to := range map[string]*string{"type": &d.typ, "challenge": &d.challenge, "origin": &d.origin} {
		if err := json.Unmarshal(members[name], to); err != nil {
			return errors.New("client_data: member " + name + " is missing")
		}
	}
	switch cross := string(members["crossOrigin"]); {
	case d.typ != "webauthn.get":
		return errors.New("client_data: is not of an assertion")
	case d.challenge != base64.RawURLEncoding.EncodeToString(challenge):
		return errors.New("client_data: the challenge is that of another ballot")
	case d.origin != origin:
		return errors.New("client_data: the origin is not " + origin + ", where the passkey was registered")
	case cross != "" && cross != "false", members["topOrigin"] != nil:
		return errors.New("client_data: the page was embedded in a page of another origin")
	}
	return nil
}

// checkSignature verifies a signature over a message with a registered public key.
func checkSignature(key string, msg []byte, sig string) error {
	raw, err := decode(sig)
	if err != nil {
		return errors.New("signature: is not base64url")
	}
	public, err := publicKey(key)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(msg)
	ok := false
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(k, sum[:], raw)
	case ed25519.PublicKey:
		ok = ed25519.Verify(k, msg, raw)
	case *rsa.PublicKey:
		ok = rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], raw) == nil
	}
	if !ok {
		return errors.New("signature: does not verify with the registered key")
	}
	return nil
}

// decode decodes base64url without padding, in its one canonical form.
func decode(s string) ([]byte, error) { return base64.RawURLEncoding.Strict().DecodeString(s) }
