package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// composeHooks installs the hooks of Claude Code for an agent that reaches two gateways through the
// balancer. It shows that a tool is allowed and one denied; that a hook that waits for people goes on
// waiting while each of the gateways is killed, and permits the tool when a person has granted it
// in a browser; and that the outcomes of all tools are recorded.
func composeHooks(t *testing.T, m *harness.Mesh) {
	activateCoding(t, m, "guard")
	cli(t, m, "principals", "register", "ann", "person")
	cli(t, m, "roles", "grant", "ann", "approver")
	a := newAgent(t, m, "coder")
	a.install(t, "claude-code", "--project", a.work)
	var settings struct {
		Hooks map[string][]struct{ Hooks []struct{ Command string } }
	}
	raw, err := os.ReadFile(filepath.Join(a.work, ".claude/settings.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &settings); err != nil {
		t.Fatal(err)
	}
	hook := func(event, id, command string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", settings.Hooks[event][0].Hooks[0].Command)
		cmd.Dir, cmd.Env = a.work, append(append([]string{}, a.env...), "XDG_RUNTIME_DIR="+a.home)
		cmd.Stdin = strings.NewReader(hookDocument(event, id, "Bash", map[string]any{"command": command}, a.work))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s %s: %v %s", event, id, err, out)
		}
		return string(out)
	}
	ran := func(id, command string) {
		t.Helper()
		for _, event := range []string{"PreToolUse", "PostToolUse"} {
			if out := hook(event, id, command); out != "" {
				t.Errorf("%s %s: %s", event, id, out)
			}
		}
	}
	ran("h1", "ls")
	if out := hook("PreToolUse", "h2", "cat .env"); !strings.Contains(out, "DENY_SECRET_FILE") {
		t.Error(out)
	}
	asked := make(chan string, 1)
	go func() { asked <- hook("PreToolUse", "h3", "npm install left-pad") }()
	var call string
	eventually(t, "the call waits for approval", 30*time.Second, func() bool {
		for line := range strings.Lines(cli(t, m, "approvals", "list")) {
			if strings.Contains(line, "client.shell") {
				call = strings.Fields(line)[0]
			}
		}
		return call != ""
	})
	for n := 1; n <= 2; n++ { // the balancer has forwarded the hook's connection to one of them
		crashContainer(t, m.Container("gateway", n))
		eventually(t, "the gateway is back", time.Minute, func() bool {
			return m.Inspect("gateway", n, "{{.State.Health.Status}}") == "healthy"
		})
	}
	select {
	case out := <-asked:
		t.Fatalf("the hook did not wait: %s", out)
	default:
	}
	consoleOnCompose(t, m, "ann", call)
	select {
	case out := <-asked:
		if out != "" {
			t.Errorf("after the grant: %s", out)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the hook does not return after the grant")
	}
	if out := hook("PostToolUse", "h3", "npm install left-pad"); out != "" {
		t.Error(out)
	}
	ran("h4", "ls")
	var got []string
	calls := acting(hookedCalls(t, m, "coder"))
	for _, c := range calls {
		got = append(got, c.Status)
	}
	if want := "succeeded denied succeeded succeeded"; strings.Join(got, " ") != want {
		t.Fatalf("calls %q, want %s", got, want)
	}
	verifySession(t, m, calls[0].Session)
	a.run(t, nil, harness.Bin(t, "binnacle"), "hook", "uninstall", "claude-code", "--project", a.work, "--yes")
}

// composeClient runs Claude Code with hooks that reach two gateways through the balancer. It shows that a
// command runs and another one is denied, that a command runs after one of the gateways was killed in the
// middle of the session, and that the session verifies.
func composeClient(t *testing.T, m *harness.Mesh) {
	c, a := claudeCode(t), newAgent(t, m, "claude-code-composed")
	a.workFile(t, ".git/HEAD", "ref: refs/heads/main\n")
	a.workFile(t, ".env", "PASSWORD=hidden-value")
	model := harness.NewScripted(t)
	killed := c.shell("echo two > two.txt")
	killed.Before = func() { crashContainer(t, m.Container("gateway", 1)) }
	model.Add(harness.Prompt, c.shell("echo one > one.txt"), c.shell("cat .env"), killed)
	c.configure(t, a, model.URL)
	a.install(t, c.name, "--project", a.work)
	out := c.run(t, a, harness.Prompt, model.URL)
	for _, name := range []string{"one", "two"} {
		if b, err := os.ReadFile(filepath.Join(a.work, name+".txt")); err != nil || string(b) != name+"\n" {
			t.Errorf("%s: %q %v\n%s", name, b, err, out)
		}
	}
	if r := model.Result(harness.Prompt, 1); !strings.Contains(r, "DENY_SECRET_FILE") {
		t.Errorf("the result of the denied command is %q", r)
	}
	var got []string
	calls := acting(hookedCalls(t, m, "claude-code-composed"))
	for _, x := range calls {
		got = append(got, x.Status)
	}
	if want := "succeeded denied succeeded"; strings.Join(got, " ") != want {
		t.Fatalf("calls %q, want %s", got, want)
	}
	verifySession(t, m, calls[0].Session)
	eventually(t, "the gateway is back", time.Minute, func() bool {
		return m.Inspect("gateway", 1, "{{.State.Health.Status}}") == "healthy"
	})
}
