package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFiguresFail shows that the enforced figure for decoders of events counts each kind
// of decoder outside its home, and none in its home or in tests.
func TestFiguresFail(t *testing.T) {
	const decodes = `
func a(b []byte) { _, _ = contract.DecodeEvent(b) }
func c(m jetstream.Msg) { _, _ = m.Metadata() }
func d(en eventlog.Entry) { _, _ = eventlog.Open(en) }
func e(b []byte) { _, _ = eventlog.OpenBytes(b) }
func f(b []byte) { var e contract.Event; _ = canon.Read(b, &e) }
func fine(en eventlog.Entry, f string) { _, _ = eventlog.Open(en, f); _ = contract.Event{}; var p *contract.Event; _ = p }
`
	for name, c := range map[string]struct {
		files map[string]string
		want  int
	}{
		"decoders of events outside their home": {map[string]string{"services/a/x.go": decodes, "services/a/x_test.go": decodes, "pkg/eventlog/x.go": decodes[:strings.Index(decodes, "func d")]}, 5},
	} {
		root := t.TempDir()
		for path, text := range c.files {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("package x\n"+text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Join(root, "pkg/core/contract"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "pkg/core/contract/ids.go"), []byte("package contract\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Chdir(root)
		tr, err := readTree(".")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range tr.figures() {
			if f.name != name {
				continue
			}
			found = true
			if !f.enforced || f.ok() || int(f.n) != c.want {
				t.Errorf("%s: %v, want %d, enforced %v: %q", name, f.n, c.want, f.enforced, f.detail)
			}
		}
		if !found {
			t.Errorf("there is no figure %q", name)
		}
	}
}
