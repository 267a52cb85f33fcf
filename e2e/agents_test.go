package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// agentsDir returns the folder with the npm packages of the command-line agents.
func agentsDir(t *testing.T) string {
	dir := filepath.Join(harness.Root(), ".cache/agents/node_modules")
	if _, err := os.Stat(dir); err != nil {
		t.Fatal("the command-line agents are missing; `make test` installs them")
	}
	return dir
}

// TestAgents shows that command-line agents complete a prompt that requires a tool of an MCP server that
// the mesh federates, with the mesh's model API and a virtual server at /mcp as their only configured
// endpoints, and that each of their calls has a receipt.
func TestAgents(t *testing.T) {
	p, doc := harness.NewProviders(t, nil)
	m := harness.One(t, harness.Options{LLM: doc})
	up := newUpstream(t, "127.0.0.1:0", "127.0.0.1")
	up.AddTool(&mcp.Tool{Name: "upper", Description: "Converts a text to upper case.", InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`)}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return textResult(strings.ToUpper(string(r.Params.Arguments))), nil
	})
	permit(t, m, up.host)
	cli(t, m, "mcp", "add", "yard", up.url)
	cli(t, m, "mcp", "publish", "yard", "--tool", "yard.*")
	calls := 0
	dir := agentsDir(t)
	url := "http://" + m.Addr
	mcpURL := url + "/mcp?server=yard"
	write := func(path string, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(t *testing.T, home string, env []string, argv ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = filepath.Join(home, "work")
		if err := os.MkdirAll(cmd.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.Env = append([]string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "BINNACLE_TOKEN=" + m.Token, "TERM=dumb", "NO_COLOR=1"}, env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", filepath.Base(argv[0]), err, out)
		}
		return string(out)
	}
	const prompt = "Call the tool upper with the text x, then say what it said."
	check := func(t *testing.T, model, out string) {
		t.Helper()
		if !strings.Contains(out, "The tool said") || !strings.Contains(out, "X") {
			t.Fatalf("the agent did not finish: %s", out)
		}
		if n := len(p.Requests(model)); n < 2 {
			t.Fatalf("%d requests reached the provider, want at least 2", n)
		}
		before := calls
		calls = 0
		for _, e := range ledger(t, m) {
			var r contract.Recorded
			if e.Name == "effect_recorded" && contract.Decode(e.Data, &r) == nil && r.Effect.Tool == "yard.upper" && r.Receipt.Status == contract.Succeeded && r.Receipt.Executor == "mcp-router" {
				calls++
			}
		}
		if calls <= before {
			t.Error("no call of the server's tool has a receipt")
		}
	}
	t.Run("codex", func(t *testing.T) {
		home := t.TempDir()
		write(filepath.Join(home, ".codex/config.toml"), fmt.Sprintf(`
model = "openai/codex-agent"
model_provider = "binnacle"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.binnacle]
name = "binnacle"
base_url = "%s/v1"
env_key = "BINNACLE_TOKEN"
wire_api = "responses"
[mcp_servers.binnacle]
url = "%s"
bearer_token_env_var = "BINNACLE_TOKEN"
default_tools_approval_mode = "approve"
`, url, mcpURL))
		bin, _ := filepath.Glob(filepath.Join(dir, "@openai/codex-linux-x64/vendor/*/*/codex"))
		if len(bin) == 0 {
			bin, _ = filepath.Glob(filepath.Join(dir, "@openai/codex-linux-x64/vendor/*/codex"))
		}
		if len(bin) == 0 {
			t.Fatal("no codex in its package")
		}
		check(t, "openai/codex-agent", run(t, home, []string{"CODEX_HOME=" + home + "/.codex"}, bin[0], "exec", "--skip-git-repo-check", prompt))
	})
	t.Run("opencode", func(t *testing.T) {
		home := t.TempDir()
		conf, err := json.Marshal(map[string]any{"provider": map[string]any{"binnacle": map[string]any{"npm": "@ai-sdk/openai-compatible", "name": "binnacle",
			"options": map[string]string{"baseURL": url + "/v1", "apiKey": "{env:BINNACLE_TOKEN}"}, "models": map[string]any{"openai/opencode-agent": map[string]any{}}}},
			"autoupdate": false, "share": "disabled", "permission": "allow"})
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(home, "work/opencode.json"), string(conf))
		run(t, home, nil, harness.Bin(t, "binnacle"), "mcp", "config", "opencode", "--project", ".", "--write", "--addr", m.Addr, "--server", "yard")
		check(t, "openai/opencode-agent", run(t, home, []string{"OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1"}, filepath.Join(dir, "opencode-linux-x64-baseline/bin/opencode"), "run", "--model", "binnacle/openai/opencode-agent", prompt))
	})
	t.Run("claude", func(t *testing.T) {
		home := t.TempDir()
		conf, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"binnacle": map[string]any{"type": "http", "url": mcpURL, "headers": map[string]string{"Authorization": "Bearer " + m.Token}}}})
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(home, "mcp.json"), string(conf))
		check(t, "anthropic/claude-agent", run(t, home, []string{"ANTHROPIC_BASE_URL=" + url, "ANTHROPIC_AUTH_TOKEN=" + m.Token, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_TELEMETRY=1", "ENABLE_TOOL_SEARCH=false"},
			filepath.Join(dir, "@anthropic-ai/claude-code-linux-x64/claude"), "-p", prompt, "--model", "anthropic/claude-agent", "--mcp-config", filepath.Join(home, "mcp.json"), "--strict-mcp-config", "--allowedTools", "mcp__binnacle"))
	})
}
