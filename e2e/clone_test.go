package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// TestComposeFromClone shows that in a fresh clone of the repository, `docker compose up` alone
// builds every image, creates the keys and starts the mesh, without a module proxy and without
// containerd. If the machine lacks the base image, the test makes it from the machine's Go
// distribution. The images have the tag clone, so that they do not replace those of other
// tests.
func TestComposeFromClone(t *testing.T) {
	const base, project = "golang:1.26", "binnacle-e2e-clone"
	dir := filepath.Join(t.TempDir(), "binnacle")
	if out, err := exec.Command("git", "clone", "-q", harness.Root(), dir).CombinedOutput(); err != nil {
		t.Fatalf("git clone: %v\n%s", err, out)
	}
	file := filepath.Join(dir, "docker-compose.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte(":local\n"), []byte(":clone\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	packages := []string{"./deploy/nats", "./deploy/balancer", "./services/binnacle", "./examples/packs/...", "./packs/builtin"}
	for _, s := range harness.Services {
		packages = append(packages, "./services/"+s)
	}
	if exec.Command("docker", "image", "inspect", base).Run() != nil {
		harness.GoImage(t, base, packages...)
		t.Cleanup(func() {
			removeImages("dangling=true", "label="+harness.GoImageLabel) // those in which the programs were built
			removeImages("reference=" + base)
		})
	}
	removeImages("reference=binnacle/*:clone") // those that a killed test has left
	t.Cleanup(func() { removeImages("reference=binnacle/*:clone") })
	addr := ports.Free(t)
	_, port, _ := strings.Cut(addr, ":")
	try := func(args ...string) (string, error) {
		cmd := exec.Command("docker", append([]string{"compose"}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "COMPOSE_PROJECT_NAME="+project, "COMPOSE_PROGRESS=plain", "BINNACLE_PORT="+port, "GOPROXY=off", "BINNACLE_CONTAINERD_DIR="+t.TempDir())
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("docker compose %s: %w\n%s\n%s", strings.Join(args, " "), err, out.String(), errs.Bytes()[max(0, errs.Len()-8000):])
		}
		return strings.TrimSpace(out.String()), nil
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := try(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	down := func(args ...string) {
		t.Helper()
		var err error
		for range 4 {
			if _, err = try(args...); err == nil {
				return
			}
			harness.RemoveEndpoints(t, project)
		}
		t.Error(err)
	}
	harness.RemoveOnTimeout(t, project)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(try("logs", "--no-color", "--tail", "20"))
		}
		down("--profile", "tools", "down", "-v", "--remove-orphans")
	})
	run("up", "-d", "--wait")
	token := run("run", "--rm", "-T", "keys", "token", "admin")
	cli := func(args ...string) string {
		t.Helper()
		return run(append([]string{"run", "--rm", "-T", "-e", "BINNACLE_TOKEN=" + token, "cli"}, args...)...)
	}
	if out := cli("chat", "--session", "s-clone", "hello"); !strings.Contains(out, "hello") {
		t.Errorf("chat printed %q", out)
	}
	// Without containerd, a native pack runs in tier process, and a WebAssembly pack in
	// tier wasi.
	if out := cli("call", "cmd.upper", `{"text":"fair winds"}`, "--session", "s-clone"); !strings.Contains(out, "FAIR WINDS") {
		t.Errorf("cmd.upper printed %q", out)
	}
	if out := cli("call", "cmd.spin-wasi", `{"how":"id"}`, "--session", "s-clone"); !strings.Contains(out, "result") {
		t.Errorf("cmd.spin-wasi printed %q", out)
	}
	if out := cli("pack", "list"); !strings.Contains(out, "doc.parse") || !strings.Contains(out, "cmd.upper") {
		t.Errorf("the built-in packs are missing:\n%s", out)
	}
	// Evidence that is exported through the published port verifies.
	tar := filepath.Join(t.TempDir(), "clone.tar")
	export := exec.Command(harness.Bin(t, "binnacle"), "export", "--addr", addr, "--token", token, "--session", "s-clone", "--out", tar)
	if out, err := export.CombinedOutput(); err != nil {
		t.Fatalf("export: %v\n%s", err, out)
	}
	root := filepath.Join(t.TempDir(), "root.kid")
	run("cp", "init:/ring/root.kid", root)
	if out, err := exec.Command(harness.Bin(t, "binnacle"), "verify", tar, "--root", root).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("VERIFIED")) {
		t.Errorf("verify: %v\n%s", err, out)
	}
	// The mesh can be started again from its volumes.
	down("down")
	run("up", "-d", "--wait")
	if again := run("run", "--rm", "-T", "keys", "token", "admin"); again != token {
		t.Error("another `up` made other keys")
	}
	if out := cli("events", "list", "--session", "s-clone"); !strings.Contains(out, "effect_recorded") {
		t.Errorf("the ledger is gone: %q", out)
	}
}

// removeImages removes the images that match all filters of `docker images`. An image that a
// running container uses remains.
func removeImages(filters ...string) {
	args := []string{"images", "-q"}
	for _, f := range filters {
		args = append(args, "-f", f)
	}
	out, _ := exec.Command("docker", args...).Output()
	if ids := strings.Fields(string(out)); len(ids) > 0 {
		_ = exec.Command("docker", append([]string{"rmi", "-f"}, ids...)...).Run()
	}
}
