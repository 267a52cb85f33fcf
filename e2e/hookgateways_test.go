package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestHooksOfClientsAway shows, with Claude Code, Codex, OpenCode and Gemini CLI whose hooks have the
// addresses of two gateways, one process per service, that a session goes on when the first gateway is
// killed: a command runs and another one is denied, both decided through the second gateway. A tool of an
// MCP server has the kind client.mcp.SERVER.TOOL, and runs after a person has granted it. When the second
// gateway is killed too, a command runs because the hooks were installed with --when-away=watch, and is on
// the ledger as an observation, once, when the gateways run again.
func TestHooksOfClientsAway(t *testing.T) {
	m := harness.Processes(t, harness.Options{})
	activateCoding(t, m, "guard")
	cli(t, m, "principals", "register", "ann", "person")
	cli(t, m, "roles", "grant", "ann", "approver")
	ann := m.As(m.TokenFor("ann", "approvals:vote"))
	second := m.StartGateway("gateway-b")
	for _, c := range []*codingClient{claudeCode(t), codex(t), openCode(t), geminiCLI(t)} {
		t.Run(c.name, func(t *testing.T) { awayFromGateways(t, m, ann, second, c) })
	}
}

// awayFromGateways runs the checks of TestHooksOfClientsAway for a client. second is the address of the
// second gateway.
func awayFromGateways(t *testing.T, m, ann *harness.Mesh, second string, c *codingClient) {
	actor := c.name + "-traveller"
	a := newAgent(t, m, actor)
	i := slices.Index(a.env, "BINNACLE_ADDR="+m.URL())
	a.env[i] = "BINNACLE_ADDR=" + m.Addr + "," + second
	a.workFile(t, ".git/HEAD", "ref: refs/heads/main\n")
	a.workFile(t, ".env", "PASSWORD=hidden-value")
	model := harness.NewScripted(t)
	c.configure(t, a, model.URL)
	a.run(t, nil, harness.Bin(t, "binnacle"), "mcp", "config", c.name, "--write", "--addr", m.URL())
	install := []string{harness.Bin(t, "binnacle"), "hook", "install", c.name, "--yes", "--when-away=watch"}
	if c.project {
		install = append(install, "--project", a.work)
	}
	a.run(t, nil, install...)
	step := func(s harness.Step, before func()) harness.Step {
		s.Before = before
		return s
	}
	var granted sync.WaitGroup
	model.Add(harness.Prompt, c.shell("echo one > one.txt"),
		step(c.mcp, func() { granted.Go(func() { grantNext(t, m, ann) }) }),
		step(c.shell("echo two > two.txt"), func() { m.Kill("gateway") }),
		c.shell("cat .env"),
		step(c.shell("echo away > away.txt"), func() { m.Kill("gateway-b") }),
		step(c.shell("echo back > back.txt"), func() {
			m.Restart("gateway")
			m.Restart("gateway-b")
			m.WaitReady()
		}))
	argv := slices.Clone(c.argv)
	if i := slices.Index(argv, "--allowedTools=Bash,Agent"); i >= 0 {
		argv[i] += ",mcp__binnacle"
	}
	out := a.run(t, c.env(a, model.URL), append(argv, harness.Prompt)...)
	granted.Wait()
	for _, name := range []string{"one", "two", "away", "back"} {
		if b, err := os.ReadFile(filepath.Join(a.work, name+".txt")); err != nil || string(b) != name+"\n" {
			t.Errorf("%s: %q %v\n%s", name, b, err, out)
		}
	}
	if r := model.Result(harness.Prompt, 1); !strings.Contains(r, "SHIP") {
		t.Errorf("the result of the MCP tool is %q", r)
	}
	if r := model.Result(harness.Prompt, 3); !strings.Contains(r, "DENY_SECRET_FILE") {
		t.Errorf("the result of the denied command is %q", r)
	}
	eventually(t, "the journal is reported", time.Minute, func() bool {
		return strings.Contains(a.run(t, nil, harness.Bin(t, "binnacle"), "hook", "flush"), "remaining 0")
	})
	const ran = "shell ALLOW succeeded caller"
	var got []string
	calls := acting(hookedCalls(t, m, actor))
	for _, x := range calls {
		if strings.HasPrefix(x.Kind, "client.") {
			got = append(got, strings.TrimPrefix(x.Kind, "client.")+" "+x.Verdict+" "+x.Status+" "+x.AttestedBy)
		}
	}
	if want := []string{ran, "mcp.binnacle.cmd_upper ALLOW succeeded caller", ran, "shell DENY denied ", ran}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	if n := strings.Count(cli(t, m, "search", "actor="+actor, "--limit", "1000", "-o", "jsonl"), `.action_observed.`); n != 2 {
		t.Errorf("%d observations, want the begin and the end of one command", n)
	}
	verifySession(t, m, calls[0].Session)
}
