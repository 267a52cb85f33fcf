package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPatch shows that the patch proposed to NATS (decision 0026) applies to the version
// of the server that the mesh uses, and that the patch's own tests pass on it. The mesh
// itself uses the server without the patch.
func TestPatch(t *testing.T) {
	patch, err := filepath.Abs("patches/stream-in-process.patch")
	if err != nil {
		t.Fatal(err)
	}
	run := func(dir string, args ...string) string {
		t.Helper()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -trimpath", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	module := run(".", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/nats-io/nats-server/v2")
	dir := filepath.Join(t.TempDir(), "nats-server")
	if err := os.CopyFS(dir, os.DirFS(module)); err != nil {
		t.Fatal(err)
	}
	run(dir, "chmod", "-R", "u+w", ".") // the module cache is read-only
	run(dir, "git", "apply", "--verbose", patch)
	out := run(dir, "go", "test", "-v", "-count=1", "./server/stream_inprocess_test.go")
	for _, name := range []string{"TestStreamHandleAppend", "TestStreamHandleReader", "TestStreamHandleRestart"} {
		if !strings.Contains(out, "--- PASS: "+name+" ") {
			t.Errorf("%s did not run:\n%s", name, out)
		}
	}
}
