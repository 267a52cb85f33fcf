package token

import (
	"crypto/ed25519"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFromFile shows that the keys in a file are read again, that a token of each of them is valid
// and one of a key that was removed is not, and that a file without keys changes nothing.
func TestFromFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token.pub")
	public := func(seed byte) string {
		return hex.EncodeToString(ed25519.NewKeyFromSeed(seedOf(seed)).Public().(ed25519.PublicKey)) + "\n"
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(filePoll + 10*time.Millisecond)
	}
	if _, err := FromFile(path); err == nil {
		t.Error("a file that does not exist was read")
	}
	write(public(1))
	keys, err := FromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	valid := func(seed byte) bool {
		t.Helper()
		raw, err := Mint(seedOf(seed), "t", "ann", "-", []string{Tools}, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		c, err := VerifyAny(keys, raw)
		return err == nil && keys.Accepts(c.Key)
	}
	if !valid(1) || valid(2) {
		t.Error("the key in the file is not the only valid one")
	}
	write(public(2) + public(1))
	if !valid(1) || !valid(2) {
		t.Error("one of two keys is not valid")
	}
	write("no key\n")
	if !valid(1) || !valid(2) {
		t.Error("a malformed file ended the validity of keys")
	}
	write(public(2))
	if valid(1) || !valid(2) {
		t.Error("the key that was removed is valid, or the other one is not")
	}
}

// seedOf returns a seed whose bytes are b.
func seedOf(b byte) []byte {
	out := make([]byte, ed25519.SeedSize)
	for i := range out {
		out[i] = b
	}
	return out
}
