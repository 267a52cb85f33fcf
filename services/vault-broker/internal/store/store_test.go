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
	s, err := Open(path, kek, "")
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
	again, err := Open(path, kek, "")
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
	if _, err := Open(path, bytes.Repeat([]byte{8}, 32), ""); err == nil {
		t.Fatal("another key opens the store")
	}
	// A record that is moved to another name must not decrypt.
	s.data["b"] = s.data["a"]
	if _, err := s.get("b"); err == nil {
		t.Fatal("a moved record opens")
	}
	if _, err := Open(path, []byte("short"), ""); err == nil {
		t.Fatal("a short key is accepted")
	}
}

// TestMoveTo checks that moved values can be read in the other store only, that moving
// again changes nothing, that existing values are not replaced, and that a record copied
// from one store does not decrypt in the other.
func TestMoveTo(t *testing.T) {
	dir, kek := t.TempDir(), bytes.Repeat([]byte{7}, 32)
	open := func(name, domain string) *Store {
		s, err := Open(filepath.Join(dir, name), kek, domain)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	from, to := open("a", ""), open("b", "k/")
	for name, v := range map[string]string{"k/1": "one", "k/2": "", "plain": "stays"} {
		if err := from.Put(name, []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Put("2", []byte("newer")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := from.MoveTo(to, "k/"); err != nil {
			t.Fatal(err)
		}
		from, to = open("a", ""), open("b", "k/")
		if got := from.Names(""); len(got) != 1 || got[0] != "plain" {
			t.Fatal(got)
		}
		one, err1 := to.Get("1")
		two, err2 := to.Get("2")
		if string(one) != "one" || string(two) != "newer" || err1 != nil || err2 != nil {
			t.Fatal(string(one), string(two), err1, err2)
		}
	}
	if err := from.Put("1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	to.data["1"] = from.data["1"]
	if _, err := to.Get("1"); err == nil {
		t.Fatal("a record of one store opens in another")
	}
}

// TestMoveToFails checks that a MoveTo that cannot write one of the files removes no
// value from memory, and that after a second MoveTo the files contain all values.
func TestMoveToFails(t *testing.T) {
	for _, fails := range []string{"from", "to"} {
		t.Run(fails, func(t *testing.T) {
			dir, kek := t.TempDir(), bytes.Repeat([]byte{7}, 32)
			stores := map[string]*Store{}
			for name, domain := range map[string]string{"from": "", "to": "k/"} {
				s, err := Open(filepath.Join(dir, name), kek, domain)
				if err != nil {
					t.Fatal(err)
				}
				stores[name] = s
			}
			from, to := stores["from"], stores["to"]
			for _, name := range []string{"k/1", "k/2", "plain"} {
				if err := from.Put(name, []byte(name)); err != nil {
					t.Fatal(err)
				}
			}
			stores[fails].path = filepath.Join(dir, "missing", fails)
			if err := from.MoveTo(to, "k/"); err == nil {
				t.Fatal("a file in a missing folder is written")
			}
			if got := from.Names("k/"); len(got) != 2 {
				t.Error("values that the file still has are gone from memory:", got)
			}
			stores[fails].path = filepath.Join(dir, fails)
			if err := from.MoveTo(to, "k/"); err != nil {
				t.Fatal(err)
			}
			again, err := Open(from.path, kek, "")
			if err != nil {
				t.Fatal(err)
			}
			if got := again.Names(""); len(got) != 1 || got[0] != "plain" {
				t.Error("left behind:", got)
			}
			if again, err = Open(to.path, kek, "k/"); err != nil {
				t.Fatal(err)
			}
			if got := again.Names(""); len(got) != 2 {
				t.Error("moved:", got)
			}
		})
	}
}
