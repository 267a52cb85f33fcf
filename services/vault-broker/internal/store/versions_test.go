package store

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend/backendtest"
)

// TestBackend runs the contract suite on the encrypted file.
func TestBackend(t *testing.T) {
	path, kek := filepath.Join(t.TempDir(), "secrets.json"), bytes.Repeat([]byte{7}, 32)
	backendtest.Run(t, func(t *testing.T) backend.Backend {
		s, err := Open(path, kek, "")
		if err != nil {
			t.Fatal(err)
		}
		return s.Backend()
	})
}

// TestVersionBound shows that a version that is moved to the place of another one of its
// name does not decrypt, so that someone who can write the file cannot restore a rotated
// value.
func TestVersionBound(t *testing.T) {
	path, kek := filepath.Join(t.TempDir(), "secrets.json"), bytes.Repeat([]byte{7}, 32)
	s, err := Open(path, kek, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"old", "new"} {
		if err := s.Put("t/k", []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	r := s.data["t/k"]
	old := r.Older[0]
	old.Version = 2
	s.data["t/k"] = old
	if v, err := s.Get("t/k"); err == nil {
		t.Errorf("version 1 in the place of version 2 opens: %q", v)
	}
}

// TestVersionsKept shows that of 25 versions, the versions 25 and 16 can be read, and the
// versions 15 and 1 cannot.
func TestVersionsKept(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "secrets.json"), bytes.Repeat([]byte{7}, 32), "")
	if err != nil {
		t.Fatal(err)
	}
	b := s.Backend()
	for i := range 25 {
		if _, err := b.Put(t.Context(), "t", "k", []byte{byte(i)}, backend.About{}, i); err != nil {
			t.Fatal(err)
		}
	}
	for version, want := range map[int]bool{25: true, 16: true, 15: false, 1: false} {
		if v, err := b.Get(t.Context(), "t", "k", version); (err == nil) != want || want && v.Bytes[0] != byte(version-1) {
			t.Errorf("version %d: %v %v", version, v.Bytes, err)
		}
	}
}
