package sessionrunner

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCheckPacks checks the manifests of the built-in packs, with another program, and a
// folder with an invalid one.
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
	if tools, problems := CheckPacks(dir, ""); len(tools) != len(files) || len(problems) != 0 {
		t.Errorf("%d tools of %d, %v", len(tools), len(files), problems)
	}
	if err := os.WriteFile(filepath.Join(dir, "run"), []byte("program"), 0o755); err != nil { // cmd.run
		t.Fatal(err)
	}
	if _, problems := CheckPacks(dir, ""); len(problems) != 1 {
		t.Error(problems)
	}
	if _, problems := CheckPacks(filepath.Join(dir, "absent"), ""); len(problems) != 1 {
		t.Error(problems)
	}
}
