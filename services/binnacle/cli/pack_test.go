package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackNew writes a pack in each language, which `pack validate` lists, and runs the
// one in Go. A file that exists is not replaced, and an invalid manifest is an error.
func TestPackNew(t *testing.T) {
	dir := t.TempDir()
	lock := ""
	for _, image := range []string{"node", "python", "shell"} {
		lock += "image " + image + " sha256:" + strings.Repeat("0", 64) + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "images.lock"), []byte(lock), 0o644); err != nil {
		t.Fatal(err)
	}
	for language := range packLanguages {
		if code, out, errOut := invoke(t, "pack", "new", "count-"+language, "--language", language, "--packs", dir); code != exitOK || !strings.Contains(out, "count-"+language) {
			t.Errorf("%s: %d %s", language, code, errOut)
		}
	}
	if code, _, errOut := invoke(t, "pack", "new", "count-go", "--language", "go", "--packs", dir); code != exitFailed || !strings.Contains(errOut, "exists") {
		t.Errorf("again: %d %s", code, errOut)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "count-go"), "main.go")
	build.Dir, build.Env = filepath.Join(dir, "count-go.src"), append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := exec.Command(filepath.Join(dir, "count-go"))
	run.Stdin = strings.NewReader(`{"text":"fair winds"}`)
	if out, err := run.Output(); err != nil || strings.TrimSpace(string(out)) != `{"words":2}` {
		t.Errorf("%v %s", err, out)
	}
	code, out, errOut := invoke(t, "pack", "validate", dir)
	for language := range packLanguages {
		if !strings.Contains(out, "cmd.count-"+language) {
			t.Errorf("validate: %d %s %s", code, out, errOut)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "count-go.pack.yaml"), []byte("input_schema: {properties: {a: text}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errOut := invoke(t, "pack", "validate", dir); code != exitFailed || !strings.Contains(errOut, `property a: type "text" is not one of`) {
		t.Errorf("an invalid manifest: %d %s", code, errOut)
	}
}
