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

const claudeHooks = `{"hooks":{"PreToolUse":[{"matcher":"*","hooks":[{"type":"command","command":"binnacle hook run claude-code","timeout":30}]}],"PostToolUse":[{"matcher":"*","hooks":[{"type":"command","command":"binnacle hook run claude-code","timeout":30}]}]}}`

// TestHooksOfClaudeCode shows that every tool that Claude Code runs is decided before, and
// ends as a receipt: an allowed command runs, and a denied one does not, with the reason
// as its result. The receipts are a chain that verifies.
func TestHooksOfClaudeCode(t *testing.T) {
	m := harness.One(t, harness.Options{})
	activateCoding(t, m, "guard")
	a := newAgent(t, m, "coder")
	a.write(t, "work/.claude/settings.json", claudeHooks)
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
	calls := hookedCalls(t, m, "coder")
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
}
