package password

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPasswords shows that a password matches only its principal of its tenant, that Set
// replaces it and Remove removes it, and that the file holds no password and only its
// owner may read it. Set rejects passwords that are too short or too long, and malformed
// names. Verify returns an error for a damaged file.
func TestPasswords(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	check := func(tenant, who, secret string, want bool) {
		t.Helper()
		if ok, err := Verify(path, tenant, who, []byte(secret)); err != nil || ok != want {
			t.Errorf("%s of %s with %q: %v %v", who, tenant, secret, ok, err)
		}
	}
	const first, second = "correct horse battery", "another long password"
	check("t", "ann", first, false)
	for _, c := range []struct{ tenant, who, secret, word string }{
		{"t", "ann", "short", "15 characters"}, {"t", "ann", strings.Repeat("é", 14), "15 characters"}, {"t", "ann", strings.Repeat("x", 1025), "1024 bytes"},
		{"a.b", "ann", first, "tenant"}, {"t", "", first, "principal"},
	} {
		if err := Set(path, c.tenant, c.who, []byte(c.secret)); err == nil || !strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), first) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, secret := range []string{second, first} {
		if err := Set(path, "t", "ann", []byte(secret)); err != nil {
			t.Fatal(err)
		}
	}
	check("t", "ann", first, true)
	check("t", "ann", second, false)
	check("u", "ann", first, false)
	check("t", "bob", first, false)
	check("t", "ann", "", false)
	check("", "", "", false)
	check("t", "ann", strings.Repeat("x", 5000), false)
	raw, err := os.ReadFile(path)
	if err != nil || bytes.Contains(raw, []byte(first)) || bytes.Count(raw, []byte(`"hash"`)) != 1 {
		t.Errorf("%v %s", err, raw)
	}
	if i, err := os.Stat(path); err != nil || i.Mode() != 0o600 {
		t.Error(i.Mode(), err)
	}
	if err := Remove(path, "t", "ann"); err != nil {
		t.Fatal(err)
	}
	check("t", "ann", first, false)
	if Remove(path, "t", "ann") == nil {
		t.Error("a password that does not exist was removed")
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ok, err := Verify(path, "t", "ann", []byte(first)); ok || err == nil {
		t.Error("a damaged file is read")
	}
}
