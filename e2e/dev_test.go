package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// TestDev shows that the tool of `make dev` restarts only the service whose sources have
// changed, on the same ledger. It changes a copy of the tree, since other tests read the tree.
func TestDev(t *testing.T) {
	root := harness.Root()
	dir := t.TempDir()
	tool := filepath.Join(dir, "dev")
	build := exec.Command("go", "build", "-o", tool, "./scripts/tools/dev")
	build.Dir, build.Env = root, append(os.Environ(), "GO111MODULE=off", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The folder contains symbolic links to the programs, so that a rebuild replaces a
	// link and not a program that other tests use.
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(filepath.Join(bin, "svc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"binnacle", "packs", "svc/nats-server"}, programs()...) {
		if err := os.Symlink(filepath.Join(root, "bin", name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	addr, data := ports.Free(t), filepath.Join(dir, "data")
	cmd := exec.Command(tool, "mesh", "-addr", addr, "-nats", ports.Free(t), "-data", data, "-bin", bin, "-services", strings.Join(harness.Services, " "))
	tree := copyOfTree(t)
	cmd.Dir, cmd.Env = tree, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOWORK=") // with -trimpath, the build cache serves both trees
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := make(chan string, 10000)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			lines <- in.Text()
		}
	}()
	starts := map[string]int{} // number of starts of each service
	await := func(text string) {
		t.Helper()
		limit := time.After(2 * time.Minute)
		for {
			select {
			case line, ok := <-lines:
				if !ok {
					t.Fatalf("ended before %q", text)
				}
				if rest, ok := strings.CutPrefix(line, "dev: "); ok {
					t.Log(line)
					if name, _, ok := strings.Cut(rest, " runs as process "); ok {
						starts[name]++
					}
				}
				if strings.Contains(line, text) {
					return
				}
			case <-limit:
				t.Fatalf("no line with %q within two minutes", text)
			}
		}
	}
	binnacle := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(filepath.Join(bin, "binnacle"), append(args, "--addr", addr, "--data", data)...).CombinedOutput()
		if err != nil {
			t.Fatalf("binnacle %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	await("the mesh is up")
	binnacle("call", "cmd.upper", `{"text":"before"}`, "--session", "s-dev")
	before := binnacle("events", "list", "--session", "s-dev")
	now := time.Now()
	if err := os.Chtimes(filepath.Join(tree, "services/judge/main.go"), now, now); err != nil {
		t.Fatal(err)
	}
	await("dev: restarted judge in")
	for _, s := range harness.Services {
		want := 1
		if s == "judge" {
			want = 2
		}
		if starts[s] != want {
			t.Errorf("%s was started %d times, want %d", s, starts[s], want)
		}
	}
	if after := binnacle("events", "list", "--session", "s-dev"); after != before {
		t.Errorf("the ledger is not the one of before:\n%s\n%s", before, after)
	}
	if got := binnacle("call", "cmd.upper", `{"text":"after"}`, "--session", "s-dev"); !strings.Contains(got, "AFTER") {
		t.Error(got)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for range lines { // drain until every process has closed its output, which closes the channel
	}
	if err := cmd.Wait(); err != nil {
		t.Error("it does not end in order:", err)
	}
}

// programs returns the paths of the services' programs, relative to bin.
func programs() (out []string) {
	for _, s := range harness.Services {
		out = append(out, "svc/"+s)
	}
	return out
}
