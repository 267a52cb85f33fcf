package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFiguresFail shows that the enforced figures for decoders and literals count each
// kind of finding outside its home, and none in its home or in tests, and that the figure
// for packages without tests counts only those that are large and not for tests.
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
	const constants = `
const e, g, h = "unlisted_e", "unlisted_g", "unlisted_h"
const ( i = "no_code"; unused = "no_code_either" )
type row struct { A, B int; Code string; D string }
func f(r *row) { r.A, r.Code = 1, e; _ = []row{{1, 2, g, i}, {3, 4, "unlisted_i", i}}; _ = row{1, 2, h, i}; _ = []string{i} }
`
	const uses = `
func g(r *row) { r.Code = k }
`
	long, short := "func a() {\n"+strings.Repeat("a()\n", untested)+"}\n", "func a() {\n"+strings.Repeat("a()\n", untested-3)+"}\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int
	}{
		"decoders of events outside their home": {map[string]string{"services/a/x.go": decodes, "services/a/x_test.go": decodes, "pkg/eventlog/x.go": decodes[:strings.Index(decodes, "func d")]}, 5},
		"literals of error codes outside their home": {map[string]string{"services/a/x.go": codes, "services/a/x_test.go": codes, "pkg/core/contract/x.go": codes, "pkg/metrics/x.go": codes, "packs/x.go": codes, "sdk/go/x.go": codes,
			"services/b/x.go": constants, "services/c/x.go": "const k, other = \"unlisted_k\", \"x\"", "services/c/y.go": uses, "services/d/x.go": constants[strings.Index(constants, "type"):]}, 17},
		"packages of more than 60 lines without a test beside them": {map[string]string{"services/a/x.go": long, "services/b/x.go": short, "services/c/x.go": long, "services/c/x_test.go": short, "services/ctest/x.go": long,
			"services/simulated/x.go": long, simulator + "/x.go": long, "pkg/a/x.go": short, "pkg/a/y.go": short}, 2},
		"literals of event names outside their home": {map[string]string{"services/a/x.go": codes, "services/a/x_test.go": codes, "pkg/bus/x.go": codes, "packs/x.go": codes, "sdk/go/x.go": codes, "e2e/x.go": codes}, 3},
		"literals of subjects outside their home":    {map[string]string{"services/a/x.go": codes, "pkg/bus/x.go": codes}, 1},
		"literals of id prefixes outside their home": {map[string]string{"services/a/x.go": codes + "const s, u, v = `s-login`, `s-0`, `th-x`", "pkg/core/sign/x.go": codes + "const s = `s-login`"}, 2},
	} {
		root := t.TempDir()
		registries(c.files)
		tr := treeOf(t, root, c.files)
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

// registries adds the registries of the schemas to files.
func registries(files map[string]string) {
	files["schemas/ids.json"] = `{"ids":[{"name":"Session","prefix":"s-"},{"name":"Thing","prefix":"th-"}]}`
	files["schemas/subjects.json"] = `{"subjects":[{"head":"evt"},{"head":"slot"},{"head":"cache"},{"head":"sync"},{"head":"mesh.API"},{"head":"tmp"}]}`
	files["schemas/errors.json"] = `{"errors":[{"code":"not_found"},{"code":"conflict"}]}`
	files["schemas/reasons.json"] = `{"reasons":[{"code":"UNKNOWN_TOOL"}]}`
	files["schemas/events/a/thing_done.v1.json"] = "{}"
}

// treeOf writes the files to root, with a package clause before those of Go, and reads them.
func treeOf(t *testing.T, root string, files map[string]string) *tree {
	for path, text := range files {
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
	return tr
}

// TestLiterals shows that each form of a name outside its home breaks the limit of its figure,
// and that the same code with a constant does not.
func TestLiterals(t *testing.T) {
	const names, subjects, ids, reasons = "literals of event names outside their home", "literals of subjects outside their home", "literals of id prefixes outside their home", "literals of reason codes outside their home"
	for _, c := range []struct {
		name, code, broken string
	}{
		{"an id made from a literal", `func a() { emit.NewID("c") }`, ids},
		{"an id made in the package itself", `func a() { NewID("e") }`, ids},
		{"an id made from a prefix, counted once", `func a() { emit.NewID("th-") }`, ids},
		{"an id made from a constant of the package", `const kind = "al"
func a() { emit.NewID(kind) }`, ids},
		{"an id made from a constant of the contract", `func a(p string) { emit.NewID(contract.IDThing); emit.NewID(p) }`, ""},
		{"a pattern of ids in a schema", "const a = `{\"pattern\":\"^th-[a-z]+$\"}`", ids},
		{"a pattern of several ids", `var a = regexp.MustCompile("^(th-|s-)[a-z]+$")`, ids},
		{"another pattern", "const a = `{\"pattern\":\"^[a-z]+$\"} ^other-x`", ""},
		{"a format of ids", `func a(n int) { fmt.Sprintf("th-%d", n) }`, ids},
		{"a format of a constant", `func a(n int) { fmt.Sprintf(contract.IDThing+"%d", n) }`, ""},
		{"an event of a service", `func a(s string) bool { return s == "policy.thing_done" }`, names},
		{"a tool with the name of a pack", `const a = "policy.thing_do"`, ""},
		{"a subject of a slot", `const a = "slot.%s.%d"`, subjects},
		{"a subject of the cache", `const a = "cache.>"`, subjects},
		{"a subject of a group commit", `const a = "sync.all"`, subjects},
		{"a subject of the API", `const a = "mesh.API.INFO"`, subjects},
		{"the first token of a subject", `func a(parts []string) bool { return parts[0] != "tmp" }`, subjects},
		{"other tokens and words", `func a(parts []string) bool { return parts[1] != "tmp" || parts[0] == "work" || parts[2] == "mesh.plan" || parts[3] == "tmp" }`, ""},
		{"a reason", `func a(reason string) bool { return reason == "UNKNOWN_TOOL" }`, reasons},
		{"a reason's constant", `func a(reason string) bool { return reason == contract.ReasonUnknownTool }`, ""},
	} {
		files := map[string]string{"services/a/x.go": c.code, "pkg/bus/x.go": c.code, "services/a/x_test.go": c.code}
		registries(files)
		for _, f := range treeOf(t, t.TempDir(), files).figures() {
			if !strings.HasPrefix(f.name, "literals of") {
				continue
			}
			if want := f.name == c.broken; f.ok() == want || want && (f.n != 1 || !f.enforced) {
				t.Errorf("%s: %s: %v, enforced %v: %q", c.name, f.name, f.n, f.enforced, f.detail)
			}
		}
	}
	for code, want := range map[string]float64{
		`var a = bus.Declaration{Service: "work", Slots: 2}`:                                                        1,
		`func a(e *E) bool { return e.Service() == "gateway" || e.Executor != "work" }`:                             2,
		`func a() { run.Main("mcp-router") }`:                                                                       1,
		`func a(e *E) bool { return e.Service() == services.Work || e.Name == "work" }; const b, c = "work", "mcp"`: 0,
	} {
		files := map[string]string{"services/a/x.go": code, "services/a/x_test.go": code, "pkg/core/contract/x.go": code + "\nconst Caller = \"gateway\"",
			"pkg/services/x.go": "const Work, MCP, Gateway = \"work\", \"mcp-router\", contract.Caller\nvar all = []Service{{Name: Work}, {Name: MCP}, {Name: Gateway}}"}
		registries(files)
		if got := treeOf(t, t.TempDir(), files).serviceLiterals(); got.n != want {
			t.Errorf("%s: %q, want %v", code, got.detail, want)
		}
	}
	files := map[string]string{"services/llm-router/llmrouter/x.go": `const a, b = "cache.ttl_ms", "cache.>"`, "services/a/x.go": `const a = "cache.ttl_ms"`}
	registries(files)
	if got := treeOf(t, t.TempDir(), files).subjectLiterals(); got.n != 2 {
		t.Errorf("settings that are no subjects: %q", got.detail)
	}
}

// TestRecords shows that each figure that is read from a document breaks its limit if the
// document lacks the figure, or has one beyond the limit.
func TestRecords(t *testing.T) {
	const sample, share, places = "comments that need rewording in the last sample of 110", "share of mutants killed, of the package with the least", "places that a new executor service touches"
	good := map[string]string{
		"docs/style-review.md":  "| 2026-01-01 | abc | 1 | 9 of 110 | x |\n| 2026-01-02 | abc | 2 | 3 of 110, 1 borderline | x |\n",
		"docs/mutation.md":      "| `a` | 1,010 | 9 | 1 | 0 | 90.0 % |\n| `b` | 1 | 1 | 0 | 0 | 100 % |\n",
		"pkg/meshtest/pure.txt": "a/\nb/file\n",
		"CONTRIBUTING.md":       "## Add a service that executes calls\n\n1. a\n2. b\n\n## Next\n1. c\n",
	}
	for _, c := range []struct {
		name, path, text, broken string
	}{
		{"all met", "", "", ""},
		{"last sample over the limit", "docs/style-review.md", "| 2026-01-01 | abc | 1 | 2 of 110 | x |\n| 2026-01-02 | abc | 2 | 4 of 110 | x |\n", sample},
		{"no sample", "docs/style-review.md", "", sample},
		{"a package below the limit", "docs/mutation.md", "| `a` | 10 | 7 | 3 | 0 | 79.9 % |\n| `b` | 1 | 1 | 0 | 0 | 100 % |\n", share},
		{"no packages", "docs/mutation.md", "", share},
		{"a pure package without a row", "pkg/meshtest/pure.txt", "a/\nb/\nc/d/\n", share},
		{"no pure packages", "pkg/meshtest/pure.txt", "", share},
		{"five places", "CONTRIBUTING.md", "\n## Add a service that executes calls\n1. a\n2. a\n3. a\n4. a\n5. a\n", places},
		{"no list", "CONTRIBUTING.md", "", places},
	} {
		root := t.TempDir()
		for path, text := range good {
			if path == c.path {
				text = c.text
			}
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("\n"+text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		tr := &tree{root: root}
		for _, f := range []figure{tr.sampled(), tr.mutants(), tr.executor()} {
			if f.ok() != (f.name != c.broken) || !enforced[f.name] {
				t.Errorf("%s: %s is %v, within its limit: %v", c.name, f.name, f.n, f.ok())
			}
		}
	}
}
