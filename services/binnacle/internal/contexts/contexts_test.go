package contexts

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "binnacle", "contexts.json")
	s, err := Load(path)
	if err != nil || len(s.Contexts) != 0 {
		t.Fatal(s, err)
	}
	if c, err := s.Get(""); c != nil || err != nil {
		t.Errorf("an empty store has %v in use (%v)", c, err)
	}
	for name, addr := range map[string]string{"": "a", "-x": "a", "a b": "a", strings.Repeat("n", 65): "a", "../up": "a", "ok": ""} {
		if s.Put(name, Context{Addr: addr}) == nil {
			t.Errorf("%q %q was stored", name, addr)
		}
	}
	if err := s.Put("prod", Context{Addr: "https://mesh.example", Token: "t1", CA: "/ca.pem"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Put("dev", Context{Addr: "127.0.0.1:1"}); err != nil || s.Current != "prod" {
		t.Fatalf("%v, %s in use", err, s.Current)
	}
	if err := s.Save(path); err != nil {
		t.Fatal(err)
	}
	for p, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700 | os.ModeDir} {
		if i, err := os.Stat(p); err != nil || i.Mode() != mode {
			t.Errorf("%s: %v %v", p, i.Mode(), err)
		}
	}
	again, err := Load(path)
	if err != nil || !slices.Equal(again.Names(), []string{"dev", "prod"}) {
		t.Fatal(again, err)
	}
	if c, err := again.Get(""); err != nil || *c != (Context{Addr: "https://mesh.example", Token: "t1", CA: "/ca.pem"}) {
		t.Errorf("%v %v", c, err)
	}
	if _, err := again.Get("nosuch"); err == nil {
		t.Error("a context that does not exist was found")
	}
	if again.Use("nosuch") == nil || again.Remove("nosuch") == nil || again.Use("dev") != nil || again.Current != "dev" {
		t.Errorf("%s in use", again.Current)
	}
	if err := again.Remove("dev"); err != nil || again.Current != "" {
		t.Errorf("%v, %q in use", err, again.Current)
	}
}

// TestLoad checks that Load makes a file private that other users can read, that the
// error about a malformed file contains its name but none of its content, and that a
// folder in place of the file is an error.
func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.json")
	for text, good := range map[string]bool{`{}`: true, `{"current":"x"}`: true, `token-in-here`: false, `{"contexts":[]}`: false} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := Load(path)
		if (err == nil) != good || good && s.Contexts == nil {
			t.Errorf("%s: %v", text, err)
		}
		if err != nil && (!strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "token-in-here")) {
			t.Error(err)
		}
		if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", i.Mode(), err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Error("a folder was read")
	}
}

func TestPath(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "/conf")
	if p, err := Path(); err != nil || p != "/conf/binnacle/contexts.json" {
		t.Error(p, err)
	}
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	if _, err := Path(); err == nil {
		t.Error("a user without a home has a file")
	}
}
