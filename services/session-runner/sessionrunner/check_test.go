package sessionrunner

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCheckPacks checks the manifests of the built-in packs, with another program. It also
// checks that an invalid example is marked, and that a program with a reserved name and a
// folder that does not exist are problems.
func TestCheckPacks(t *testing.T) {
	dir := t.TempDir()
	files, err := filepath.Glob("../../../packs/manifests/*.pack.yaml")
	if err != nil || len(files) < 15 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "builtin"), []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	packs, problems := CheckPacks(dir, "", "")
	if len(packs) != len(files) || len(problems) != 0 {
		t.Errorf("%d packs of %d, %v", len(packs), len(files), problems)
	}
	for _, p := range packs {
		if len(p.Examples) == 0 {
			t.Errorf("%s has no example", p.Tool.Tool)
		}
		for _, e := range p.Examples {
			if e.Invalid != "" {
				t.Errorf("%s: %s: %s", p.Tool.Tool, e.About, e.Invalid)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "doc.parse.pack.yaml"), []byte("name: doc.parse\nprogram: builtin\ninput_schema: {properties: {a: integer}}\nexamples: [{input: {a: x}}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if packs, _ := CheckPacks(dir, "", ""); packs[0].Examples[0].Invalid != "/a: type" {
		t.Errorf("an invalid example: %+v", packs[0].Examples)
	}
	if err := os.WriteFile(filepath.Join(dir, "run"), []byte("program"), 0o755); err != nil { // its pack is named cmd.run
		t.Fatal(err)
	}
	if _, problems := CheckPacks(dir, "", ""); len(problems) != 1 {
		t.Error(problems)
	}
	if _, problems := CheckPacks(filepath.Join(dir, "absent"), "", ""); len(problems) != 1 {
		t.Error(problems)
	}
}
