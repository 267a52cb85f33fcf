package seal

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
)

// TestOpen checks that a sealed value does not contain the plain one, that it can be
// opened only unchanged, with the recipient's key and the same info, and that sealing a
// value twice gives different results.
func TestOpen(t *testing.T) {
	mine, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	plain := []byte("the value")
	sealed, err := To(mine.Public(), "put acme db c-1", plain)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := mine.Open("put acme db c-1", sealed); err != nil || !bytes.Equal(got, plain) {
		t.Fatalf("%q %v", got, err)
	}
	if bytes.Contains(sealed, plain) {
		t.Error("the sealed value contains the plain one")
	}
	for _, info := range []string{"", "put acme db c-2", "put acme other c-1", "put other db c-1", "put acme db c-1 "} {
		if _, err := mine.Open(info, sealed); err == nil {
			t.Errorf("opened with info %q", info)
		}
	}
	if _, err := other.Open("put acme db c-1", sealed); err == nil {
		t.Error("another key opened it")
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, err := mine.Open("put acme db c-1", bad); err == nil {
			t.Fatalf("opened with byte %d changed", i)
		}
	}
	for n := range sealed {
		if _, err := mine.Open("put acme db c-1", sealed[:n]); err == nil {
			t.Fatalf("opened the first %d bytes", n)
		}
	}
	again, err := To(mine.Public(), "put acme db c-1", plain)
	if err != nil || bytes.Equal(again, sealed) {
		t.Error("two sealed values are equal:", err)
	}
}

// TestKeys checks that a seed determines its key, and that malformed seeds and public
// keys are errors.
func TestKeys(t *testing.T) {
	seed := bytes.Repeat([]byte{7}, 32)
	a, err := FromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := FromSeed(seed); err != nil || a.Public() != b.Public() {
		t.Error("one seed gave two keys:", err)
	}
	if _, err := FromSeed(seed[:31]); err == nil {
		t.Error("a seed of 31 bytes is accepted")
	}
	zero := base64.StdEncoding.EncodeToString(make([]byte, 32)) // a point of low order
	for _, public := range []string{"", "not base64", base64.StdEncoding.EncodeToString(seed[:31]), strings.TrimRight(a.Public(), "="), zero} {
		if _, err := To(public, "info", []byte("x")); err == nil {
			t.Errorf("sealed for the public key %q", public)
		}
	}
}
