package passkey_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey/passkeytest"
)

var ballot = contract.Ballot{Approver: "ann", CallID: "c-1", DecisionDigest: "sha256:aa", Reason: "seen", Tenant: "t", Vote: contract.Grant}

// TestVerify shows that an assertion verifies only for the ballot, the passkey, the origin
// and the relying party that it was made for, and only if the device verified the person.
func TestVerify(t *testing.T) {
	const origin = "https://mesh.example"
	device := passkeytest.New(origin, "mesh.example")
	key := device.Registered("ann")
	good := device.Assert(passkey.Challenge(&ballot))
	if n, err := passkey.Verify(key, passkey.Challenge(&ballot), good); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	for name, change := range map[string]func(*contract.Ballot){
		"approver": func(b *contract.Ballot) { b.Approver = "bob" },
		"call":     func(b *contract.Ballot) { b.CallID = "c-2" },
		"decision": func(b *contract.Ballot) { b.DecisionDigest = "sha256:bb" },
		"reason":   func(b *contract.Ballot) { b.Reason = "not seen" },
		"tenant":   func(b *contract.Ballot) { b.Tenant = "u" },
		"vote":     func(b *contract.Ballot) { b.Vote = contract.Refuse },
	} {
		b := ballot
		change(&b)
		if _, err := passkey.Verify(key, passkey.Challenge(&b), good); err == nil || !strings.Contains(err.Error(), "another ballot") {
			t.Error(name, err)
		}
	}
	for want, change := range map[string]func(d *passkeytest.Device){
		"origin is not":            func(d *passkeytest.Device) { d.Origin = "https://mesh.example.evil" },
		"another relying party":    func(d *passkeytest.Device) { d.RPID = "example" },
		"no person was present":    func(d *passkeytest.Device) { d.Flags = 4 },
		"has not verified":         func(d *passkeytest.Device) { d.Flags = 1 },
		"another passkey":          func(d *passkeytest.Device) { d.ID = d.ID[1:] },
		"does not verify with the": func(d *passkeytest.Device) { d.Key = passkeytest.New("", "").Key },
	} {
		d := *device
		change(&d)
		if _, err := passkey.Verify(key, passkey.Challenge(&ballot), d.Assert(passkey.Challenge(&ballot))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	text := base64.RawURLEncoding.EncodeToString
	challenge := text(passkey.Challenge(&ballot))
	for want, client := range map[string]string{
		"not of an assertion":  `{"type":"webauthn.create","challenge":"` + challenge + `","origin":"` + origin + `"}`,
		"embedded":             `{"type":"webauthn.get","challenge":"` + challenge + `","origin":"` + origin + `","crossOrigin":true}`,
		"topOrigin":            `{"type":"webauthn.get","challenge":"` + challenge + `","origin":"` + origin + `","crossOrigin":false,"topOrigin":"x"}`,
		"type is missing":      `{"Type":"webauthn.get","challenge":"` + challenge + `","origin":"` + origin + `"}`,
		"not a JSON object":    `[]`,
		"registered key":       `{"type":"webauthn.get","challenge":"` + challenge + `","origin":"` + origin + `"}`,
		"challenge is missing": `{"type":"webauthn.get","origin":"` + origin + `"}`,
	} {
		a := *good
		a.ClientData = text([]byte(client))
		_, err := passkey.Verify(key, passkey.Challenge(&ballot), &a)
		if want == "topOrigin" {
			want = "embedded"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, change := range []func(*contract.Assertion){
		func(a *contract.Assertion) { a.AuthenticatorData = a.AuthenticatorData[:40] },
		func(a *contract.Assertion) { a.AuthenticatorData += "=" },
		func(a *contract.Assertion) { a.ClientData += "=" },
		func(a *contract.Assertion) { a.Signature += "=" },
		func(a *contract.Assertion) { a.Signature = "" },
	} {
		a := *good
		change(&a)
		if _, err := passkey.Verify(key, passkey.Challenge(&ballot), &a); err == nil {
			t.Errorf("%+v verifies", a)
		}
	}
}

// TestAlgorithms shows that passkeys of Ed25519 and RSA verify too, and which keys Check
// rejects.
func TestAlgorithms(t *testing.T) {
	device := passkeytest.New("https://mesh.example", "mesh.example")
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	big, _ := rsa.GenerateKey(rand.Reader, 2048)
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	for name, k := range map[string]crypto.Signer{"ed25519": ed, "rsa": big, "p384": p384} {
		a, p := device.Assert(passkey.Challenge(&ballot)), device.Registered("ann")
		der, err := x509.MarshalPKIXPublicKey(k.Public())
		if err != nil {
			t.Fatal(err)
		}
		p.PublicKey = base64.StdEncoding.EncodeToString(der)
		msg, _ := base64.RawURLEncoding.DecodeString(a.AuthenticatorData)
		client, _ := base64.RawURLEncoding.DecodeString(a.ClientData)
		sum := sha256.Sum256(client)
		msg = append(msg, sum[:]...)
		var opts crypto.SignerOpts = crypto.SHA256
		if name == "ed25519" {
			opts = crypto.Hash(0)
		} else {
			hash := sha256.Sum256(msg)
			msg = hash[:]
		}
		sig, err := k.Sign(rand.Reader, msg, opts)
		if err != nil {
			t.Fatal(err)
		}
		a.Signature = base64.RawURLEncoding.EncodeToString(sig)
		_, err = passkey.Verify(p, passkey.Challenge(&ballot), a)
		if ok := name != "p384"; (err == nil) != ok || (passkey.Check(p) == nil) != ok {
			t.Error(name, err, passkey.Check(p))
		}
	}
	for want, change := range map[string]func(*contract.PasskeyRegistered){
		"id: ":         func(p *contract.PasskeyRegistered) { p.ID = "AAAA" },
		"aaguid: ":     func(p *contract.PasskeyRegistered) { p.AAGUID = strings.Repeat("A", 32) },
		"name: ":       func(p *contract.PasskeyRegistered) { p.Name = "" },
		"origin: ":     func(p *contract.PasskeyRegistered) { p.Origin = "http://mesh.example" },
		"sign_count: ": func(p *contract.PasskeyRegistered) { p.SignCount = 1 << 32 },
		"public_key: ": func(p *contract.PasskeyRegistered) { p.PublicKey = "AAAA" },
	} {
		p := device.Registered("ann")
		change(p)
		if err := passkey.Check(p); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
