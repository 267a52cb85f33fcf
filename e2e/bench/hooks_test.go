//go:build bench

package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// hooked compares the hook before a tool that is allowed, run by binnacle-hook and by `binnacle
// hook run`, with an empty Go program that gets the same document. The time of a hook includes the
// decision of a mesh on this machine. The programs are run alternately.
func hooked(t *testing.T) {
	m := harness.One(t, harness.Options{})
	dir, err := os.MkdirTemp("", "h") //nolint:usetesting // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // without its socket the helper ends
	source, empty := filepath.Join(dir, "main.go"), filepath.Join(dir, "empty")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", empty, source)
	build.Env = append(os.Environ(), "GOWORK=off", "GO111MODULE=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	env := []string{"HOME=" + dir, "XDG_RUNTIME_DIR=" + dir, "BINNACLE_ADDR=" + m.URL(), "BINNACLE_TOKEN=" + m.TokenFor("coder", "tools:call", "calls:decide")}
	const times, first = 200, 10
	list := []struct {
		name, budget string
		argv         []string
		took, cpu    []time.Duration
	}{
		{name: "floor: an empty Go program", argv: []string{empty}},
		{name: "hook before a tool, binnacle-hook", budget: "added p50 <= 5000 us", argv: []string{harness.Bin(t, "binnacle-hook"), "hook", "run", "claude-code"}},
		{name: "hook before a tool, binnacle hook run", argv: []string{harness.Bin(t, "binnacle"), "hook", "run", "claude-code"}},
	}
	for i := range first + times {
		for k := range list {
			x := &list[k]
			cmd := exec.Command(x.argv[0], x.argv[1:]...)
			cmd.Dir, cmd.Env = dir, env
			cmd.Stdin = bytes.NewReader(fmt.Appendf(nil, `{"session_id":"bench","cwd":%q,"hook_event_name":"PreToolUse","tool_name":"Bash","tool_use_id":"t-%d-%d","tool_input":{"command":"go test ./... | tail -20"}}`, dir, k, i))
			began := time.Now()
			out, err := cmd.CombinedOutput()
			if took := time.Since(began); i >= first {
				x.took, x.cpu = append(x.took, took), append(x.cpu, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
			}
			if err != nil || len(out) > 0 {
				t.Fatalf("%s: %v %s", x.name, err, out)
			}
		}
	}
	add(row{Name: "load average after the rows of hooks", Durability: "none", Value: loadAverage(t)})
	for _, x := range list {
		slices.Sort(x.took)
		slices.Sort(x.cpu)
		add(row{Name: x.name, Durability: "process", Clients: 1, P50us: us(x.took, .5), P99us: us(x.took, .99), Value: fmt.Sprintf("added p50 %.0f us; CPU of the program, p50: %.0f us", us(x.took, .5)-us(list[0].took, .5), us(x.cpu, .5)), Budget: x.budget})
	}
}
