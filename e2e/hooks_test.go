package e2e

import (
	"context"
	"encoding/json"
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
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = a.work, append(append([]string{}, a.env...), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(argv[0]), err, out)
	}
	return string(out)
}

// claude runs Claude Code with a prompt against a scripted model.
func (a *agent) claude(t *testing.T, model *harness.Scripted, more ...string) string {
	t.Helper()
	argv := append([]string{filepath.Join(agentsDir(t), "@anthropic-ai/claude-code-linux-x64/claude"), "-p", "Do the work.", "--model", "claude-scripted-1", "--allowedTools", "Bash,Read,Write,Edit"}, more...)
	return a.run(t, []string{"ANTHROPIC_BASE_URL=" + model.URL, "ANTHROPIC_AUTH_TOKEN=x", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_TELEMETRY=1", "ENABLE_TOOL_SEARCH=false"}, argv...)
}

// hooked is the outcome of one call of an agent, as the ledger contains it.
type hooked struct{ Session, Kind, Verdict, Status, Code, AttestedBy, Output string }

// hookedCalls returns the outcomes of the calls of an actor in the order of the ledger.
func hookedCalls(t *testing.T, m *harness.Mesh, actor string) (out []hooked) {
	t.Helper()
	for line := range strings.Lines(cli(t, m, "search", "actor="+actor, "-o", "jsonl")) {
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

// TestHooksOfClaudeCode shows that policy decides on every tool call of Claude Code before
// the tool runs, and that each call has a receipt: an allowed command runs; a denied one
// does not, and the reason is its result. The receipts form a chain that verifies. The
// removal of the hooks restores the settings file.
func TestHooksOfClaudeCode(t *testing.T) {
	m := harness.One(t, harness.Options{})
	activateCoding(t, m, "guard")
	a := newAgent(t, m, "coder")
	const own = "{\n  \"theme\": \"dark\" }\n"
	a.write(t, "work/.claude/settings.json", own)
	a.install(t, "claude-code", "--project", ".")
	a.write(t, "work/.env", "PASSWORD=hidden-value")
	model := harness.NewScripted(t, harness.Step{Tool: "Bash", Input: map[string]any{"command": "echo allowed > made.txt", "description": "x"}},
		harness.Step{Tool: "Bash", Input: map[string]any{"command": "sh -c 'cat .e\"\"nv'", "description": "x"}},
		harness.Step{Tool: "Write", Input: map[string]any{"file_path": filepath.Join(a.work, "new.txt"), "content": "y"}})
	if out := a.claude(t, model); !strings.Contains(out, "finished") {
		t.Error(out)
	}
	if b, err := os.ReadFile(filepath.Join(a.work, "made.txt")); err != nil || string(b) != "allowed\n" {
		t.Errorf("the allowed command: %q %v", b, err)
	}
	if r := model.Result(1); !strings.Contains(r, "DENY_SECRET_FILE") || strings.Contains(r, "hidden-value") {
		t.Error("the result of the denied command:", r)
	}
	calls := acting(hookedCalls(t, m, "coder"))
	if len(calls) != 3 {
		t.Fatalf("%+v", calls)
	}
	for i, want := range []hooked{{Kind: "client.shell", Verdict: "ALLOW", Status: "succeeded", AttestedBy: "caller"}, {Kind: "client.shell", Verdict: "DENY", Status: "denied"}, {Kind: "client.file.write", Verdict: "ALLOW", Status: "succeeded", AttestedBy: "caller"}} {
		got := calls[i]
		if got.Session != calls[0].Session || got.Kind != want.Kind || got.Verdict != want.Verdict || got.Status != want.Status || got.AttestedBy != want.AttestedBy {
			t.Errorf("call %d: %+v, want %+v", i, got, want)
		}
	}
	if out := calls[2].Output; !strings.Contains(out, `"after":"sha256:`) || strings.Contains(out, `"before"`) {
		t.Error("the outcome of the new file:", out)
	}
	verifySession(t, m, calls[0].Session)
	a.run(t, nil, harness.Bin(t, "binnacle"), "hook", "uninstall", "claude-code", "--project", ".", "--yes")
	if b, err := os.ReadFile(filepath.Join(a.work, ".claude/settings.json")); err != nil || string(b) != own {
		t.Errorf("after the removal: %q %v", b, err)
	}
}

// acting returns the calls except those of the kind client.session.
func acting(calls []hooked) []hooked {
	return slices.DeleteFunc(slices.Clone(calls), func(c hooked) bool { return c.Kind == "client.session" })
}

// TestHooksOfCodexAndOpenCode shows that Codex and OpenCode run an allowed command and not
// a denied one, and that the receipts of both calls are in one chain.
func TestHooksOfCodexAndOpenCode(t *testing.T) {
	m := harness.One(t, harness.Options{})
	activateCoding(t, m, "guard")
	check := func(t *testing.T, a *agent, actor string, model *harness.Scripted) {
		t.Helper()
		if b, err := os.ReadFile(filepath.Join(a.work, "made.txt")); err != nil || string(b) != "allowed\n" {
			t.Errorf("the allowed command: %q %v", b, err)
		}
		if r := model.Result(1); !strings.Contains(r, "DENY_SECRET_FILE") || strings.Contains(r, "hidden-value") {
			t.Error("the result of the denied command:", r)
		}
		calls := acting(hookedCalls(t, m, actor))
		if len(calls) != 2 || calls[0].Kind != "client.shell" || calls[0].Status != "succeeded" || calls[0].AttestedBy != "caller" || calls[1].Status != "denied" || calls[1].Session != calls[0].Session {
			t.Fatalf("%+v", calls)
		}
		verifySession(t, m, calls[0].Session)
	}
	dir := agentsDir(t)
	t.Run("codex", func(t *testing.T) {
		a := newAgent(t, m, "codex-coder")
		model := harness.NewScripted(t, harness.Step{Tool: "exec_command", Input: map[string]any{"cmd": "echo allowed > made.txt"}}, harness.Step{Tool: "exec_command", Input: map[string]any{"cmd": "cat .env"}})
		a.write(t, "work/.env", "PASSWORD=hidden-value")
		a.write(t, ".codex/config.toml", "model = \"gpt-5.2\"\nmodel_provider = \"scripted\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n[model_providers.scripted]\nname = \"scripted\"\nbase_url = \""+model.URL+"/v1\"\nwire_api = \"responses\"\n")
		a.install(t, "codex")
		bin, err := filepath.Glob(filepath.Join(dir, "@openai/codex-linux-x64/vendor/*/*/codex"))
		if err != nil || len(bin) == 0 {
			t.Fatal("no codex in its package", err)
		}
		t.Log(a.run(t, []string{"CODEX_HOME=" + a.home + "/.codex"}, bin[0], "exec", "--dangerously-bypass-hook-trust", "--skip-git-repo-check", "Do the work."))
		check(t, a, "codex-coder", model)
	})
	t.Run("opencode", func(t *testing.T) {
		a := newAgent(t, m, "opencode-coder")
		model := harness.NewScripted(t, harness.Step{Tool: "bash", Input: map[string]any{"command": "echo allowed > made.txt", "description": "x"}}, harness.Step{Tool: "bash", Input: map[string]any{"command": "cat .env", "description": "x"}})
		a.write(t, "work/.env", "PASSWORD=hidden-value")
		conf, err := json.Marshal(map[string]any{"provider": map[string]any{"scripted": map[string]any{"npm": "@ai-sdk/openai-compatible", "name": "scripted", "options": map[string]string{"baseURL": model.URL + "/v1", "apiKey": "x"}, "models": map[string]any{"m": map[string]any{}}}},
			"autoupdate": false, "share": "disabled", "permission": "allow"})
		if err != nil {
			t.Fatal(err)
		}
		a.write(t, "work/opencode.json", string(conf))
		// OpenCode would install this package before it loads plugins and, without access to the
		// registry, would retry for a minute. The mesh's plugin does not use the package.
		a.write(t, ".config/opencode/package.json", `{"dependencies":{"@opencode-ai/plugin":"1.18.33"}}`)
		a.write(t, ".config/opencode/package-lock.json", `{"name":"opencode","lockfileVersion":3,"requires":true,"packages":{"":{"dependencies":{"@opencode-ai/plugin":"1.18.33"}},"node_modules/@opencode-ai/plugin":{"version":"1.18.33"}}}`)
		a.write(t, ".config/opencode/node_modules/@opencode-ai/plugin/package.json", `{"name":"@opencode-ai/plugin","version":"1.18.33"}`)
		a.install(t, "opencode")
		t.Log(a.run(t, []string{"OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1"}, filepath.Join(dir, "opencode-linux-x64-baseline/bin/opencode"), "run", "--model", "scripted/m", "Do the work."))
		check(t, a, "opencode-coder", model)
	})
}

// hookDocument returns a document that Claude Code passes to its hook.
func hookDocument(event, id, tool string, input map[string]any, dir string) string {
	b, err := json.Marshal(map[string]any{"session_id": "one", "cwd": dir, "hook_event_name": event, "tool_name": tool, "tool_use_id": id, "tool_input": input, "tool_response": map[string]any{"ok": true}})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// TestHookDocuments shows what the hook answers and records: a tool that waits for
// approval is denied with the call's id, and runs after a person has granted it; a tool
// that ran with another input than the permitted one, or without a decision, is recorded
// as such; a tool of an MCP server has a kind of its own; and while the gateway is not
// running, every tool is denied, and the outcomes are reported when it runs again.
func TestHookDocuments(t *testing.T) {
	t.Run("one process", func(t *testing.T) { hookDocuments(t, harness.One(t, harness.Options{}), "binnacle") })
	t.Run("one process per service", func(t *testing.T) { hookDocuments(t, harness.Processes(t, harness.Options{}), "gateway") })
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
	permitted("PreToolUse", "t1", "Bash", ask, "--wait", "30s")
	permitted("PostToolUse", "t1", "Bash", ask)

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
	// With --when-away=watch tools run, also those that policy denies, and are reported later.
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
	want := []hooked{{Kind: "client.shell", Status: "succeeded"}, {Kind: "client.shell", Status: "failed", Code: "executed_other_args"}, {Kind: "client.session", Status: "succeeded"}, {Kind: "client.shell", Status: "succeeded"}, {Kind: "client.file.read", Status: "succeeded"}}
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

// checkObserved checks that the ledger has the observations of two actions that hookDocuments
// causes while the mesh is away, each once and in order, and no call for them.
func checkObserved(t *testing.T, m *harness.Mesh, actor string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(cli(t, m, "search", "actor="+actor, "-o", "jsonl")) {
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
}
