package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// hookHelpers returns the process ids of the helpers whose sockets are below a folder.
func hookHelpers(t *testing.T, dir string) (pids []int) {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		var pid int
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), "\x00--resident="+dir+"/") {
			if _, err := fmt.Sscanf(f, "/proc/%d/", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// TestHookProgram shows that one helper of binnacle-hook serves all calls with a token, even two
// concurrent ones; that a new helper is started after that one was killed, and another for another
// token; that a document without a tool is an error; that calls are denied while the mesh is away;
// and that the session of the calls verifies.
func TestHookProgram(t *testing.T) {
	m := harness.One(t, harness.Options{})
	activateCoding(t, m, "guard")
	dir := t.TempDir()
	run := t.TempDir()
	t.Cleanup(func() {
		for _, pid := range hookHelpers(t, run) {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	})
	tokens := map[string]string{}
	for _, actor := range []string{"coder", "other"} {
		tokens[actor] = m.TokenFor(actor, "tools:call", "calls:decide")
	}
	hook := func(actor, event, id, tool string, input map[string]any) (string, error) {
		cmd := exec.Command(harness.Bin(t, "binnacle-hook"), "hook", "run", "claude-code", "--wait", "0s")
		cmd.Dir = dir
		cmd.Env = []string{"HOME=" + run, "XDG_RUNTIME_DIR=" + run, "BINNACLE_ADDR=" + m.URL(), "BINNACLE_TOKEN=" + tokens[actor]}
		cmd.Stdin = strings.NewReader(hookDocument(event, id, tool, input, dir))
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		return string(out) + errOut.String(), err
	}
	ran := func(id string) {
		t.Helper()
		for _, event := range []string{"PreToolUse", "PostToolUse"} {
			if out, err := hook("coder", event, id, "Bash", map[string]any{"command": "ls"}); err != nil || out != "" {
				t.Errorf("%s %s: %q %v", event, id, out, err)
			}
		}
	}
	denied := func(actor, id, command, why string) {
		t.Helper()
		out, err := hook(actor, "PreToolUse", id, "Bash", map[string]any{"command": command})
		if err != nil || !strings.Contains(out, `"permissionDecision":"deny"`) || !strings.Contains(out, why) {
			t.Errorf("%s: %q %v, want a denial with %q", id, out, err, why)
		}
	}
	ran("p1")
	denied("coder", "p2", "cat .env", "DENY_SECRET_FILE")
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { ran(fmt.Sprintf("p3-%d", i)) })
	}
	wg.Wait()
	helpers := hookHelpers(t, run)
	if len(helpers) != 1 {
		t.Fatalf("helpers %v, want one", helpers)
	}
	if err := syscall.Kill(helpers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the helper has ended", 10*time.Second, func() bool { return len(hookHelpers(t, run)) == 0 })
	ran("p4")
	if out, err := hook("coder", "PreToolUse", "p5", "", nil); err == nil || !strings.Contains(out, "tool_name") {
		t.Errorf("a document without a tool: %q %v", out, err)
	}
	denied("other", "p6", "cat .env", "DENY_SECRET_FILE")
	if helpers := hookHelpers(t, run); len(helpers) != 2 {
		t.Errorf("helpers %v, want one for each token", helpers)
	}
	calls := acting(hookedCalls(t, m, "coder"))
	var status []string
	for _, c := range calls {
		status = append(status, c.Status)
	}
	if got := strings.Join(status, " "); got != "succeeded denied succeeded succeeded succeeded" {
		t.Errorf("calls %s", got)
	}
	verifySession(t, m, calls[0].Session)
	m.Kill("binnacle")
	denied("coder", "p7", "ls", "there is no decision")
}
