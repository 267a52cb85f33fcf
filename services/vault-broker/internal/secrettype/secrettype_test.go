package secrettype

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// pair returns a certificate that ends at a time, and its key, as PEM blocks.
func pair(t *testing.T, end time.Time) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	doc := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: end.Add(-time.Hour), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, doc, doc, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}

// sshKeys returns a private key as ssh-keygen writes it, without and with a passphrase.
func sshKeys(t *testing.T) (open, closed string) {
	t.Helper()
	_, k, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := ssh.MarshalPrivateKey(k, "")
	if err != nil {
		t.Fatal(err)
	}
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(k, "", []byte("hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(plain)), string(pem.EncodeToMemory(locked))
}

// TestCheck shows which values each type accepts, and that errors contain no part of a
// value.
func TestCheck(t *testing.T) {
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	cert, key := pair(t, end)
	_, other := pair(t, end)
	open, closed := sshKeys(t)
	for name, values := range map[string]struct{ good, bad []string }{
		APIKey:      {[]string{"hunter2", "a~!"}, []string{"", "hunter2\n", "hunter2 x", "hunter2ü", "hunter2\x00"}},
		Certificate: {[]string{cert + key, key + cert}, []string{"", cert, key, cert + other, "hunter2"}},
		Cookie:      {[]string{`{"name":"n","value":"hunter2","domain":"a.example"}`, `{"name":"n","value":"v","domain":"d","path":"/"}`}, []string{`{"name":"n","value":"hunter2"}`, `{"name":"n","value":"","domain":"d"}`, `{"name":"n","value":1,"domain":"d"}`}},
		File:        {[]string{"", "\x00\xff"}, nil},
		Login:       {[]string{`{"username":"u","password":"hunter2"}`, `{"username":"u","password":"p","url":"https://a.example"}`}, []string{"hunter2", "null", "{}", "[]", `{"username":"u"}`, `{"username":"u","password":"p","hunter2":"x"}`, `{"username":"u","password":"p","url":null}`, `{"username":"u","password":"hunter2"}x`}},
		OAuth: {[]string{`{"client_id":"c","client_secret":"hunter2","token_endpoint":"https://a.example/token","auth":"post","scope":"a b","resource":"https://b.example","audience":"x"}`, `{"client_id":"c","refresh_token":"r","token_endpoint":"http://127.0.0.1:80/token?x=y"}`},
			[]string{"hunter2", `{"client_id":"c","token_endpoint":"https://a.example"}`, `{"client_id":"c","client_secret":"hunter2"}`, `{"client_id":"c","client_secret":"hunter2","token_endpoint":"a.example"}`, `{"client_id":"c","client_secret":"s","token_endpoint":"https://u:hunter2@a.example"}`,
				`{"client_id":"c","client_secret":"s","token_endpoint":"https://a.example/#hunter2"}`, `{"client_id":"c","client_secret":"s","token_endpoint":"https://a.example","auth":"hunter2"}`, `{"client_id":"c","client_secret":"s","token_endpoint":"https://a.example","password":"hunter2"}`, `{"client_id":"c","client_secret":1,"token_endpoint":"https://a.example"}`, `{"client_id":"c","client_secret":"s","token_endpoint":"https://%hunter2"}`}},
		SSH: {[]string{open}, []string{"hunter2", closed, cert}},
	} {
		for _, v := range values.good {
			if got, err := Check(name, []byte(v)); err != nil || (name == Certificate) != got.Equal(end) {
				t.Errorf("%s %q: %v %v", name, v, got, err)
			}
		}
		for _, v := range values.bad {
			if _, err := Check(name, []byte(v)); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.HasPrefix(err.Error(), "value: ") {
				t.Errorf("%s %q: %v", name, v, err)
			}
		}
	}
	above, _ := pair(t, end.Add(-time.Minute))
	for chain, want := range map[string]time.Time{cert + above + key: end.Add(-time.Minute), above + cert + other: {}, cert + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + key: {}} {
		if got, err := Check(Certificate, []byte(chain)); !got.Equal(want) || (err == nil) == want.IsZero() {
			t.Errorf("a chain that ends before its first certificate or has a bad one: %v %v", got, err)
		}
	}
	if _, err := Check("password", nil); err == nil || !strings.HasPrefix(err.Error(), "type: ") {
		t.Error(err)
	}
	if len(Names()) != 7 {
		t.Error(Names())
	}
}
