package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// agent is a coding agent that runs headless in a folder of its own.
type agent struct {
	home, work string
	env        []string
	mesh       *harness.Mesh
}

// newAgent returns an agent whose hooks use the mesh with a token for its own actor.
func newAgent(t *testing.T, m *harness.Mesh, actor string) *agent {
	t.Helper()
	home := t.TempDir()
	a := &agent{home: home, work: filepath.Join(home, "work"), mesh: m}
	if err := os.MkdirAll(filepath.Join(a.work, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Dir(harness.Bin(t, "binnacle"))
	a.env = []string{"HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH"), "TERM=dumb", "NO_COLOR=1", "BINNACLE_ADDR=" + m.URL(), "BINNACLE_TOKEN=" + m.TokenFor(actor, "tools:call", "calls:decide")}
	return a
}

// write writes a file below the home folder.
func (a *agent) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(a.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs a program in the work folder, and returns its output.
func (a *agent) run(t *testing.T, env []string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = a.work, append(append([]string{}, a.env...), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(argv[0]), err, out)
	}
	return string(out)
}

// hooked is the outcome of one call of an agent, as the ledger contains it.
type hooked struct{ Session, Kind, Verdict, Status, Code, AttestedBy, Output string }

// hookedCalls returns the outcomes of the calls of an actor in the order of the ledger.
func hookedCalls(t *testing.T, m *harness.Mesh, actor string) (out []hooked) {
	t.Helper()
	for line := range strings.Lines(cli(t, m, "search", "actor="+actor, "--limit", "1000", "-o", "jsonl")) {
		var e struct {
			Event struct {
				Type, Session string
				Data          struct {
					Effect struct {
						Status, Tool string
						ErrorCode    string `json:"error_code"`
						AttestedBy   string `json:"attested_by"`
					}
					Output  struct{ Text string }
					Receipt struct{ Verdict string }
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err, line)
		}
		if d := e.Event.Data; strings.Contains(e.Event.Type, ".effect_recorded.") {
			out = append(out, hooked{e.Event.Session, d.Effect.Tool, d.Receipt.Verdict, d.Effect.Status, d.Effect.ErrorCode, d.Effect.AttestedBy, d.Output.Text})
		}
	}
	slices.Reverse(out) // search lists the last event first
	return out
}

// verifySession exports a session and verifies it with binnacle-verify.
func verifySession(t *testing.T, m *harness.Mesh, session string) {
	t.Helper()
	pack := filepath.Join(t.TempDir(), "p.tar")
	cli(t, m, "export", "--session", session, "--out", pack)
	if out, err := exec.Command(harness.Bin(t, "binnacle-verify"), "--root", filepath.Join(m.Dir, "root.kid"), pack).CombinedOutput(); err != nil {
		t.Fatalf("binnacle-verify: %v %s", err, out)
	}
}

// activateCoding builds, signs and activates the built-in bundle in a mode.
func activateCoding(t *testing.T, m *harness.Mesh, mode string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "coding")
	cli(t, m, "hook", "policy", mode, dir)
	cli(t, m, "trust", "add", "bundle", "coding")
	seed := filepath.Join(m.Dir, "keys/bundle-coding.seed")
	cli(t, m, "policy", "build", dir, "--out", dir+".tar.gz", "--sign", seed)
	eventually(t, "the bundle's key is known and the bundle activated", 30*time.Second, func() bool {
		_, err := m.CLI("policy", "activate", dir+".tar.gz", "--precedence", "10")
		if err != nil && !strings.Contains(err.Error(), "is not in the trust registry") {
			t.Fatal(err)
		}
		return err == nil
	})
}

// install installs the hooks of a client for the agent.
func (a *agent) install(t *testing.T, client string, more ...string) {
	t.Helper()
	a.run(t, nil, append([]string{harness.Bin(t, "binnacle"), "hook", "install", client, "--yes"}, more...)...)
	if out := a.run(t, nil, append([]string{harness.Bin(t, "binnacle"), "hook", "doctor", client}, more...)...); !strings.Contains(out, "decides and records") {
		t.Error(out)
	}
}

// acting returns the calls except those of the kind client.session.
func acting(calls []hooked) []hooked {
	return slices.DeleteFunc(slices.Clone(calls), func(c hooked) bool { return c.Kind == "client.session" })
}

// hookDocument returns a document that Claude Code passes to its hook.
func hookDocument(event, id, tool string, input map[string]any, dir string) string {
	b, err := json.Marshal(map[string]any{"session_id": "one", "cwd": dir, "hook_event_name": event, "tool_name": tool, "tool_use_id": id, "tool_input": input, "tool_response": map[string]any{"ok": true}})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// TestHookDocuments shows what the hook answers and records: a tool that waits for approval is
// denied with the call's id, and runs once after a person has granted it; a tool that ran after the
// client asked its own user is recorded with its escalated call; a tool that ran with
// another input than the permitted one, or without a decision, is recorded as such; a tool of an
// MCP server has a kind of its own; and while the gateway is not running, a tool is denied or,
// with --when-away=watch, runs, and the outcomes are reported when the gateway runs again. One process
// per service shows the failover to a second gateway, too.
func TestHookDocuments(t *testing.T) {
	t.Run("one process", func(t *testing.T) { hookDocuments(t, harness.One(t, harness.Options{}), "binnacle") })
	t.Run("one process per service", func(t *testing.T) {
		m := harness.Processes(t, harness.Options{})
		hookDocuments(t, m, "gateway")
		hookOtherGateway(t, m)
	})
}

// hookOtherGateway shows that a hook with the addresses of two gateways uses the second one after the
// first was killed, also for the outcome of a tool that the first one permitted.
func hookOtherGateway(t *testing.T, m *harness.Mesh) {
	second := m.StartGateway("gateway-b")
	dir, state := t.TempDir(), t.TempDir()
	coder := m.As(m.TokenFor("traveller", "tools:call", "calls:decide"))
	coder.Addr += "," + second
	hook := func(event, id string) {
		t.Helper()
		if out, err := coder.CLIStdin(hookDocument(event, id, "Bash", map[string]any{"command": "ls"}, dir), "hook", "run", "claude-code", "--state", state); err != nil || out != "" {
			t.Errorf("%s %s: %q %v", event, id, out, err)
		}
	}
	hook("PreToolUse", "one")
	m.Kill("gateway")
	hook("PostToolUse", "one")
	hook("PreToolUse", "two")
	hook("PostToolUse", "two")
	m.Restart("gateway")
	m.WaitReady()
	calls := hookedCalls(t, m, "traveller")
	if len(calls) != 2 || calls[0].Status != "succeeded" || calls[1].Status != "succeeded" {
		t.Fatalf("%+v", calls)
	}
	verifySession(t, m, calls[0].Session)
}

// hookDocuments runs the checks of TestHookDocuments on a mesh whose gateway is in the named
// process.
func hookDocuments(t *testing.T, m *harness.Mesh, gateway string) {
	activateCoding(t, m, "guard")
	cli(t, m, "principals", "register", "ann", "person")
	cli(t, m, "roles", "grant", "ann", "approver")
	dir, state := t.TempDir(), t.TempDir()
	coder := m.As(m.TokenFor("coder", "tools:call", "calls:decide"))
	hook := func(event, id, tool string, input map[string]any, more ...string) (string, error) {
		return coder.CLIStdin(hookDocument(event, id, tool, input, dir), append([]string{"hook", "run", "claude-code", "--state", state, "--wait", "0s"}, more...)...)
	}
	permitted := func(event, id, tool string, input map[string]any, more ...string) {
		t.Helper()
		if out, err := hook(event, id, tool, input, more...); err != nil || out != "" {
			t.Fatalf("%s %s: %q %v", event, id, out, err)
		}
	}
	denied := func(why, id, tool string, input map[string]any, more ...string) string {
		t.Helper()
		out, err := hook("PreToolUse", id, tool, input, more...)
		if err != nil || !strings.Contains(out, `"permissionDecision":"deny"`) || !strings.Contains(out, why) {
			t.Fatalf("%s: %q %v, want a denial with %q", id, out, err, why)
		}
		return out
	}
	ask := map[string]any{"command": "npm install left-pad"}
	out := denied("waits for approval", "t1", "Bash", ask)
	call := out[strings.Index(out, "c-"):]
	call = call[:strings.IndexByte(call, ':')]
	if out, err := hook("PreToolUse", "t1", "Bash", ask, "--ask"); err != nil || !strings.Contains(out, `"permissionDecision":"ask"`) {
		t.Errorf("with --ask: %q %v", out, err)
	}
	if out, err := m.As(m.TokenFor("ann", "approvals:vote")).CLI("approvals", "grant", call, "--reason", "seen"); err != nil {
		t.Fatal(out, err)
	}
	permitted("PreToolUse", "t1 again", "Bash", ask, "--wait", "30s") // the model tries again with another id
	permitted("PostToolUse", "t1 again", "Bash", ask)
	for _, id := range []string{"t1", "t1 once more"} {
		if out := denied("waits for approval", id, "Bash", ask); strings.Contains(out, call) {
			t.Errorf("%s: the approval is used twice: %s", id, out)
		}
	}

	// A tool that ran because the client's user said yes is recorded with the escalated call, and the
	// next one waits for another call.
	yes := map[string]any{"command": "npm install yes"}
	out, err := hook("PreToolUse", "y1", "Bash", yes, "--ask")
	if err != nil || !strings.Contains(out, `"permissionDecision":"ask"`) {
		t.Fatalf("with --ask: %q %v", out, err)
	}
	asked := out[strings.Index(out, "c-"):]
	asked = asked[:strings.IndexByte(asked, ':')]
	permitted("PostToolUse", "y1", "Bash", yes, "--ask")
	if out := denied("waits for approval", "y2", "Bash", yes); strings.Contains(out, asked) {
		t.Errorf("the call of the client's own ask is used again: %s", out)
	}
	if line := lineOf(cli(t, m, "search", "actor=coder", "--limit", "1000", "-o", "jsonl"), "ran_after_client_ask"); !strings.Contains(line, asked) {
		t.Errorf("the record of the client's own ask does not name %s: %s", asked, line)
	}

	permitted("PreToolUse", "t2", "Bash", map[string]any{"command": "ls"})
	permitted("PostToolUse", "t2", "Bash", map[string]any{"command": "cat other"})
	if _, err := hook("PostToolUse", "t3", "Bash", map[string]any{"command": "ls"}); err != nil {
		t.Error(err)
	}
	denied("waits for approval", "t4", "mcp__tickets__delete_all", map[string]any{"id": 1}, "--wait", "0s")

	permitted("PreToolUse", "t5", "Bash", map[string]any{"command": "ls"})
	m.Kill(gateway)
	denied("there is no decision", "t6", "Bash", map[string]any{"command": "ls"})
	if _, err := hook("PostToolUse", "t5", "Bash", map[string]any{"command": "ls"}); err != nil {
		t.Error("the outcome while the mesh is away:", err)
	}
	// While the gateway is not running, --when-away=watch permits tools, even those that policy
	// would deny; they are reported later.
	watch := []string{"--when-away", "watch"}
	permitted("PreToolUse", "w1", "Bash", map[string]any{"command": "cat .env"}, watch...)
	permitted("PostToolUse", "w1", "Bash", map[string]any{"command": "cat .env"}, watch...)
	permitted("PreToolUse", "w2", "Bash", map[string]any{"command": "ls"}, watch...)
	if out, err := coder.CLI("hook", "flush", "--state", state); err == nil || !strings.Contains(err.Error()+out, "remaining 3") {
		t.Error("the journal while the mesh is away:", out, err)
	}
	m.Restart(gateway)
	m.WaitReady()
	denied("DENY_SECRET_FILE", "w3", "Bash", map[string]any{"command": "cat .env"}, watch...)
	permitted("PostToolUse", "w2", "Bash", map[string]any{"command": "ls"})
	for range 2 {
		if out, err := coder.CLI("hook", "flush", "--state", state); err != nil || !strings.Contains(out, "remaining 0") {
			t.Error("the journal when the mesh runs again:", out, err)
		}
	}
	checkObserved(t, m, "coder")
	permitted("PreToolUse", "t7", "Read", map[string]any{"file_path": "README"})
	permitted("PostToolUse", "t7", "Read", map[string]any{"file_path": "README"})

	calls := hookedCalls(t, m, "coder")
	calls = slices.DeleteFunc(calls, func(c hooked) bool { return c.Verdict == "DENY" })
	want := []hooked{{Kind: "client.shell", Status: "succeeded"}, {Kind: "client.session", Status: "succeeded"}, {Kind: "client.shell", Status: "failed", Code: "executed_other_args"}, {Kind: "client.session", Status: "succeeded"}, {Kind: "client.shell", Status: "succeeded"}, {Kind: "client.file.read", Status: "succeeded"}}
	if len(calls) != len(want) {
		t.Fatalf("%+v", calls)
	}
	for i, w := range want {
		if c := calls[i]; c.Kind != w.Kind || c.Status != w.Status || c.Code != w.Code || c.AttestedBy != "caller" {
			t.Errorf("call %d: %+v, want %+v", i, c, w)
		}
	}
	if out := cli(t, m, "approvals", "list"); !strings.Contains(out, "client.mcp.tickets.delete_all") {
		t.Error(out)
	}
	verifySession(t, m, calls[0].Session)
	cli(t, m, "replay")
}

// checkObserved checks that the ledger has the observations of the two actions that
// hookDocuments begins with --when-away=watch while the gateway is not running, each once and in
// order, and without a call id, and that the report links to them.
func checkObserved(t *testing.T, m *harness.Mesh, actor string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(cli(t, m, "search", "actor="+actor, "--limit", "1000", "-o", "jsonl")) {
		var e struct {
			Event struct {
				Type, CallID string
				Data         struct {
					Kind, Phase, Status string
					AttestedBy          string `json:"attested_by"`
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err, line)
		}
		if d := e.Event.Data; strings.Contains(e.Event.Type, ".action_observed.") {
			got = append(got, d.Kind+" "+d.Phase+d.Status+" "+d.AttestedBy+e.Event.CallID)
		}
	}
	slices.Reverse(got)
	if want := []string{"client.shell began caller", "client.shell endedsucceeded caller", "client.shell began caller", "client.shell endedsucceeded caller"}; !slices.Equal(got, want) {
		t.Errorf("observations %q, want %q", got, want)
	}
	var report struct {
		Sections []struct {
			Class string
			Lines []struct{ Actor, Verdict, Receipt, Call, Link string }
		}
	}
	if err := json.Unmarshal([]byte(cli(t, m, "report", "--since", "1h", "--format", "json")), &report); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, s := range report.Sections {
		for _, l := range s.Lines {
			if s.Class != "undecided" || l.Actor != actor {
				continue
			}
			lines++
			events, err := m.Do(t.Context(), "GET", strings.TrimPrefix(l.Link, m.URL()), "", "")
			if err != nil || events.Status != http.StatusOK || strings.Count(string(events.Body), ".action_observed.") != len(got) || l.Verdict+l.Receipt+l.Call != "" {
				t.Errorf("the report has %+v, whose link leads to %v %+v", l, err, events)
			}
		}
	}
	if lines != len(got)/2 {
		t.Errorf("the report has %d undecided actions, want %d", lines, len(got)/2)
	}
}
