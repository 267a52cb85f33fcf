package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
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
		t.Fatal(err, "or the file contains a value in plain text")
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

// TestMoveToUnreadable checks that MoveTo stops at a value of the other store that does
// not decrypt, instead of replacing it, and removes nothing.
func TestMoveToUnreadable(t *testing.T) {
	dir, kek := t.TempDir(), bytes.Repeat([]byte{7}, 32)
	from, to := open(t, filepath.Join(dir, "from"), kek), open(t, filepath.Join(dir, "to"), kek)
	for s, name := range map[*Store]string{from: "k/1", to: "1"} {
		if err := s.Put(name, []byte("value")); err != nil {
			t.Fatal(err)
		}
	}
	bad := to.data["1"]
	bad.Wrapped = bytes.Clone(bad.Wrapped)
	bad.Wrapped[0] ^= 1
	to.data["1"] = bad
	if err := from.MoveTo(to, "k/"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if len(from.Names("k/")) != 1 || !bytes.Equal(to.data["1"].Wrapped, bad.Wrapped) {
		t.Error("an unreadable value was replaced, or the value was removed")
	}
}

func open(t *testing.T, path string, kek []byte) *Store {
	t.Helper()
	s, err := Open(path, kek, "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// read returns a value and its fingerprint.
func read(s *Store, name string) ([]byte, string, error) {
	r, ok := s.data[name]
	if !ok {
		return nil, "", ErrNotFound
	}
	v, err := s.version(name, &r)
	return v.Bytes, v.Fingerprint, err
}

// TestFingerprint checks that a fingerprint is the same after the store is opened again,
// that it differs between values and between owners, that a read returns the same
// fingerprint as Fingerprint, and that a value of release 0.5 keeps the fingerprint of
// that release, also under its new name, until it is stored again.
func TestFingerprint(t *testing.T) {
	path, kek := filepath.Join(t.TempDir(), "s"), bytes.Repeat([]byte{7}, 32)
	s := open(t, path, kek)
	seen := map[string]string{}
	for _, x := range [][2]string{{"a/n", "v"}, {"a/n", "w"}, {"b/n", "v"}, {"b/n", "w"}} {
		if err := s.Put(x[0], []byte(x[1])); err != nil {
			t.Fatal(err)
		}
		want, err := s.Fingerprint(x[0], []byte(x[1]))
		s = open(t, path, kek)
		if v, got, err2 := read(s, x[0]); err != nil || err2 != nil || got != want || string(v) != x[1] || seen[got] != "" {
			t.Errorf("%s: %q has %s, want %s; so has %q (%v %v)", x[0], v, got, want, seen[got], err, err2)
		}
		seen[want] = x[0] + "=" + x[1]
	}
	old, err := s.seal("n", 0, []byte("v"), backend.About{}) // as release 0.5 stored it
	if err != nil {
		t.Fatal(err)
	}
	s.data["n"] = old
	_, before, err := read(s, "n")
	if err != nil || seen[before] != "" {
		t.Fatal(before, err)
	}
	if err := s.Rename("c"); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, kek)
	if v, after, err := read(s, "c/n"); string(v) != "v" || after != before {
		t.Errorf("%q has %s, want %s (%v)", v, after, before, err)
	}
	if err := s.Put("c/n", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if _, again, err := read(s, "c/n"); again == before || err != nil {
		t.Errorf("%s %v", again, err)
	}
	if _, _, err := read(s, "n"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// TestRename checks that names without an owner get one and other names stay, that a
// value whose new name exists does not replace it, that nothing changes if the file
// cannot be written or a value under the new name does not decrypt, and that Rename can
// be repeated.
func TestRename(t *testing.T) {
	dir, kek := t.TempDir(), bytes.Repeat([]byte{7}, 32)
	path := filepath.Join(dir, "s")
	s := open(t, path, kek)
	for name, v := range map[string]string{"x": "old", "y": "old", "z": "", "a/y": "", "b/x": "b's"} {
		if err := s.Put(name, []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	s.path = filepath.Join(dir, "missing", "s")
	if err := s.Rename("a"); err == nil || len(s.Names("")) != 5 {
		t.Fatal(err, s.Names(""))
	}
	s.path = path
	good := s.data["a/y"]
	s.data["a/y"] = record{Value: good.Value, Wrapped: good.Value}
	if err := s.Rename("a"); err == nil || errors.Is(err, ErrNotFound) || len(s.Names("")) != 5 {
		t.Fatal(err, s.Names(""))
	}
	s.data["a/y"] = good
	for range 2 {
		if err := s.Rename("a"); err != nil {
			t.Fatal(err)
		}
		s = open(t, path, kek)
		if got := strings.Join(s.Names(""), " "); got != "a/x a/y a/z b/x" {
			t.Fatal(got)
		}
		for name, want := range map[string]string{"a/x": "old", "a/y": "", "a/z": "", "b/x": "b's"} {
			if v, err := s.Get(name); err != nil || string(v) != want {
				t.Errorf("%s: %q %v, want %q", name, v, err, want)
			}
		}
	}
}

// TestMarksKept checks that after MoveTo and Rename a deleted value is still deleted and
// can be restored, and an erased name is still erased and cannot be used, also after the
// store is opened again.
func TestMarksKept(t *testing.T) {
	dir, kek := t.TempDir(), bytes.Repeat([]byte{7}, 32)
	marked := func(file, prefix string) *Store {
		s := open(t, filepath.Join(dir, file), kek)
		for _, name := range []string{"live", "deleted", "erased"} {
			if err := s.Put("k/"+name, []byte("value")); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(s.Backend().Delete(t.Context(), "k", "deleted"), s.Backend().Erase(t.Context(), "k", "erased")); err != nil {
			t.Fatal(err)
		}
		if err := s.change(func(data map[string]record) error { // gives the values names that MoveTo or Rename changes
			for _, name := range []string{"live", "deleted", "erased"} {
				old := data["k/"+name]
				v, err := s.open("k/"+name, &old)
				if err != nil {
					return err
				}
				r, err := s.seal(prefix+name, old.Version, v, backend.About{})
				if err != nil {
					return err
				}
				r.Bound, r.Created, r.Deleted, r.Erased = old.Bound, old.Created, old.Deleted, old.Erased
				delete(data, "k/"+name)
				data[prefix+name] = r
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	renamed := marked("renamed", "")
	if err := renamed.Rename("t"); err != nil {
		t.Fatal(err)
	}
	from := marked("from", "x/t/")
	if err := from.MoveTo(open(t, filepath.Join(dir, "to"), kek), "x/"); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"renamed", "to"} {
		b := open(t, filepath.Join(dir, file), kek).Backend()
		for name, want := range map[string]error{"live": nil, "deleted": backend.ErrDeleted, "erased": backend.ErrErased} {
			if v, err := b.Get(t.Context(), "t", name, 0); !errors.Is(err, want) || (want == nil) != (string(v.Bytes) == "value") {
				t.Errorf("%s: %s is %q, %v", file, name, v.Bytes, err)
			}
		}
		if _, err := b.Put(t.Context(), "t", "erased", []byte("again"), backend.About{}, backend.Any); !errors.Is(err, backend.ErrErased) {
			t.Errorf("%s: storing under an erased name: %v", file, err)
		}
		if err := b.Restore(t.Context(), "t", "deleted"); err != nil {
			t.Error(file, err)
		} else if v, err := b.Get(t.Context(), "t", "deleted", 0); err != nil || string(v.Bytes) != "value" {
			t.Errorf("%s: the restored value is %q, %v", file, v.Bytes, err)
		}
	}
}
