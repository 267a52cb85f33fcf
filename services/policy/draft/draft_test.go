package draft

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// folder creates a temporary folder with the given files, by name and content, and
// returns its path.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const permit = "package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_ALL\"} if startswith(input.kind, \"tool.\")\n"

// TestRead shows the layer and name of the document that Read returns for each type of
// file and folder, and which paths result in errors.
func TestRead(t *testing.T) {
	dir := folder(t, map[string]string{
		"one.rego": permit, "many/a.rego": permit, "many/a_test.rego": "package x", "many/data.json": `{}`, "many/notes.txt": "x",
		"o.json": `{"id":"o","scope":"tenant","subject":"t"}`, "p0.json": `{"forbidden_kinds":[]}`,
		"data/data.json": `{}`, "tests/a_test.rego": "package x", "bad.json": `{`, "odd.json": `{"scope":1}`, "list.json": `[]`, "empty/x.txt": "x",
	})
	for _, c := range []struct{ path, layer, name, fault string }{
		{"one.rego", "p1", "one", ""},
		{"many", "p1", "many", ""},
		{"o.json", "p2", "o", ""},
		{"p0.json", "p0", "", ""},
		{"none", "", "", "no such file"},
		{"bad.json", "", "", "bad.json"},
		{"odd.json", "", "", "overlay"},
		{"list.json", "", "", "list.json"},
		{"empty", "", "", "contains no .rego file"},
		{"data", "", "", "contains no .rego file"},
		{"tests", "", "", "contains no .rego file"},
	} {
		d, err := Read(filepath.Join(dir, c.path))
		switch {
		case c.fault != "":
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s: %v, want %q", c.path, err, c.fault)
			}
		case err != nil || d.Layer != c.layer || d.Name != c.name || len(d.Body) == 0:
			t.Errorf("%s: %+v, %v", c.path, d, err)
		}
	}
	packed, err := Build(filepath.Join(dir, "many"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "many.tar.gz")
	if err := os.WriteFile(file, packed, 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := Read(file); err != nil || d.Layer != "p1" || d.Name != "many" || string(d.Body) != string(packed) {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestStack shows that stacks are checked as a whole and compared, that Put rejects
// documents that cannot be read, and that Put and NewStack reject those of an unknown
// layer.
func TestStack(t *testing.T) {
	bundle, err := Build(folder(t, map[string]string{"p.rego": permit}), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	ceilings := guard.Ceilings{EgressHosts: []string{}, ForbiddenKinds: []string{"tool.rm"}, MaxCents: 1, StartWindowMS: 1000,
		Sandbox: contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "process", WallMS: 1}}
	overlay := func(reason string) *Document {
		return &Document{Layer: "p2", Name: "o", Body: contract.Bytes(&guard.Overlay{ID: "o", Scope: "tenant", Subject: "t",
			Rules: []guard.OverlayRule{{Kinds: []string{"tool.x"}, Reason: reason, Verdict: contract.Deny}}})}
	}
	old, err := NewStack(nil)
	if err != nil {
		t.Fatal(err)
	}
	if fs := old.Validate(); !Fatal(fs) {
		t.Errorf("a stack without ceilings is consistent: %v", fs)
	}
	for _, d := range []*Document{{Layer: "p0", Body: contract.Bytes(&ceilings)}, {Layer: "p1", Name: "b", Body: bundle}, overlay("DENY_X")} {
		if err := old.Put(d); err != nil {
			t.Fatal(err)
		}
	}
	if fs := old.Validate(); Fatal(fs) {
		t.Errorf("%v", fs)
	}
	next, err := NewStack([]InForce{{Activated: contract.Activated{Layer: "p0"}, Body: contract.Bytes(&ceilings)}, {Activated: contract.Activated{Layer: "p1", Name: "b"}, Body: bundle}})
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Put(overlay("ALLOW_X")); err != nil { // Put accepts the faulty document; Validate reports the fault
		t.Fatal(err)
	}
	if fs := next.Validate(); !Fatal(fs) || !strings.Contains(fs[len(fs)-1].Message, "ALLOW_X") {
		t.Errorf("%v", fs)
	}
	removed, added := Diff(old, next)
	if len(removed) != 1 || len(added) != 1 || !strings.Contains(removed[0], "DENY_X") || !strings.Contains(added[0], "ALLOW_X") {
		t.Errorf("- %v + %v", removed, added)
	}
	for _, d := range []*Document{{Layer: "p0", Body: []byte(`[]`)}, {Layer: "p1", Body: []byte(`x`)}, {Layer: "p2", Body: []byte(`[]`)}, {Layer: "p9"}} {
		if err := next.Put(d); err == nil {
			t.Errorf("%s: %s is a document", d.Layer, d.Body)
		}
	}
	if _, err := NewStack([]InForce{{Activated: contract.Activated{Layer: "p9"}}}); err == nil {
		t.Error("a layer that is unknown is in force")
	}
}

// TestTest shows the results of Test for a folder with passing and failing Rego tests,
// and that an empty folder is an error.
func TestTest(t *testing.T) {
	dir := folder(t, map[string]string{"p.rego": permit, "p_test.rego": "package binnacle.p1_test\nimport rego.v1\nimport data.binnacle.p1\n" +
		"test_good if p1.answer.verdict == \"ALLOW\" with input as {\"kind\": \"tool.x\"}\ntest_bad if p1.answer with input as {\"kind\": \"llm.chat\"}\n"})
	results, err := Test(t.Context(), dir)
	if err != nil || len(results) != 2 {
		t.Fatalf("%+v, %v", results, err)
	}
	for _, r := range results {
		if r.Passed != strings.HasSuffix(r.Name, "good") || !strings.Contains(r.At, "p_test.rego:") {
			t.Errorf("%+v", r)
		}
	}
	if _, err := Test(t.Context(), t.TempDir()); err == nil {
		t.Error("an empty folder is tested")
	}
}

// TestTestLikeActivation shows that tests can read the data of the bundle, and that Test
// rejects a bundle that activation rejects because of malformed data or of a builtin
// that bundles cannot use.
func TestTestLikeActivation(t *testing.T) {
	const policy = "package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"DENY\", \"reason_code\": data.binnacle.reason}\n"
	const check = "package binnacle.p1_test\nimport rego.v1\nimport data.binnacle.p1\ntest_reason if p1.answer.reason_code == \"DENY_DATA\" with input as {\"kind\": \"tool.x\"}\n"
	for name, c := range map[string]struct {
		policy, data string
		good         bool
	}{
		"data":              {policy, `{"reason":"DENY_DATA"}`, true},
		"malformed data":    {policy, `{"reason":`, false},
		"a builtin refused": {strings.Replace(policy, "data.binnacle.reason", `sprintf("DENY_%d", [time.now_ns()])`, 1), `{"reason":"DENY_DATA"}`, false},
	} {
		dir := folder(t, map[string]string{"p.rego": c.policy, "p_test.rego": check, "binnacle/data.json": c.data})
		doc, err := Build(dir, "", nil)
		if err == nil {
			_, err = rego.Compile(t.Context(), doc)
		}
		if (err == nil) != c.good {
			t.Fatalf("%s: activation: %v", name, err)
		}
		results, err := Test(t.Context(), dir)
		if (err == nil) != c.good || c.good && (len(results) != 1 || !results[0].Passed) {
			t.Errorf("%s: %+v, %v", name, results, err)
		}
	}
}
