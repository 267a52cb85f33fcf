package config

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestSecret shows that a secret is read from a file, or once from a
// descriptor, which is closed then, and that a member is refused, without its
// value in the error, if it names an environment variable, a standard
// descriptor, both a file and a descriptor or an empty path, or if it is the
// secret itself.
func TestSecret(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	n, err := syscall.Dup(int(r.Fd())) // the reader of the secret closes it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(" hush\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	r.Close()
	s := Secret{Descriptor: n}
	if got, err := s.Read(); got != "hush" || err != nil {
		t.Error(got, err)
	}
	if _, err := s.Read(); err == nil || !strings.Contains(err.Error(), "file descriptor") {
		t.Error("read twice:", err)
	}
	file := write(t, "hush\n")
	if got, err := (Secret{File: file}).Read(); got != "hush" || err != nil {
		t.Error(got, err)
	}
	for doc, ok := range map[string]bool{
		"{file: /run/kek}": true, "{descriptor: 3}": true,
		"{descriptor: 2}": false, "{descriptor: x}": false, "{variable: HUSH}": false, "hush": false, "{file: /run/kek, descriptor: 3}": false, "{file: ''}": false,
	} {
		l, err := Load(Source{Program: "vault-broker", File: write(t, "vault-broker: {kek: "+doc+"}")})
		if (err == nil) != ok || err != nil && strings.Contains(strings.ToLower(err.Error()), "hush") {
			t.Errorf("%s: %v", doc, err)
		}
		if ok && !l.Config.VaultBroker.KEK.Given() {
			t.Errorf("%s: not given", doc)
		}
	}
}
