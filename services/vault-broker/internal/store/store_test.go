package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secrets.json")
	kek := bytes.Repeat([]byte{7}, 32)
	s, err := Open(path, kek)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]string{"a": "first-value", "b": "second-value"} {
		if err := s.Put(name, []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil || bytes.Contains(raw, []byte("-value")) {
		t.Fatal(err, "or a value stands in the file")
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Fatal(info.Mode())
	}
	again, err := Open(path, kek)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := again.Get("a"); err != nil || string(v) != "first-value" {
		t.Fatal(string(v), err)
	}
	if _, err := again.Get("c"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if s.Fingerprint([]byte("x")) != again.Fingerprint([]byte("x")) || s.Fingerprint([]byte("x")) == s.Fingerprint([]byte("y")) {
		t.Fatal("fingerprints")
	}
	if _, err := Open(path, bytes.Repeat([]byte{8}, 32)); err == nil {
		t.Fatal("another key opens the store")
	}
	// A record moved under another name does not open.
	s.data["b"] = s.data["a"]
	if _, err := s.get("b"); err == nil {
		t.Fatal("a moved record opens")
	}
	if _, err := Open(path, []byte("short")); err == nil {
		t.Fatal("a short key is accepted")
	}
}
