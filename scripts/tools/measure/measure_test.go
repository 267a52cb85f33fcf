package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFiguresFail shows that the enforced figures for decoders and literals count each
// kind of finding outside its home, and none in its home or in tests.
func TestFiguresFail(t *testing.T) {
	const decodes = `
func a(b []byte) { _, _ = contract.DecodeEvent(b) }
func c(m jetstream.Msg) { _, _ = m.Metadata() }
func d(en eventlog.Entry) { _, _ = eventlog.Open(en) }
func e(b []byte) { _, _ = eventlog.OpenBytes(b) }
func f(b []byte) { var e contract.Event; _ = canon.Read(b, &e) }
func fine(en eventlog.Entry, f string) { _, _ = eventlog.Open(en, f); _ = contract.Event{}; var p *contract.Event; _ = p }
`
	const codes = `
func a() { b("not_found", "conflict"); b("not found", "evt.t.a", "thing_done", "th-") }
func d(r *R) { r.ErrorCode, r.N = "unlisted_a", "x"; _ = R{Code: "unlisted_b"}; _ = execute.Fail("unlisted_c", "x"); _ = r.Code == "unlisted_d" }
type c struct { D string ` + "`json:\"not_found\"`" + ` }
`
	for name, c := range map[string]struct {
		files map[string]string
		want  int
	}{
		"decoders of events outside their home":      {map[string]string{"services/a/x.go": decodes, "services/a/x_test.go": decodes, "pkg/eventlog/x.go": decodes[:strings.Index(decodes, "func d")]}, 5},
		"literals of error codes outside their home": {map[string]string{"services/a/x.go": codes, "services/a/x_test.go": codes, "pkg/core/contract/x.go": codes, "pkg/metrics/x.go": codes}, 11},
		"literals of event names outside their home": {map[string]string{"services/a/x.go": codes, "services/a/x_test.go": codes, "pkg/bus/x.go": codes}, 1},
		"literals of subjects outside their home":    {map[string]string{"services/a/x.go": codes, "pkg/bus/x.go": codes}, 1},
		"literals of id prefixes outside their home": {map[string]string{"services/a/x.go": codes, "pkg/core/sign/x.go": codes}, 1},
	} {
		root := t.TempDir()
		c.files["pkg/core/contract/ids.go"], c.files["schemas/errors.json"], c.files["schemas/events/a/thing_done.v1.json"] = "const (\n\tIDThing = \"th-\"\n)\n", `{"errors":[{"code":"not_found"},{"code":"conflict"}]}`, "{}"
		for path, text := range c.files {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(path, ".go") {
				text = "package x\n" + text
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
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
