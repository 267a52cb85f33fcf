package hook

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/action"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/install"
)

// TestInstalledEvents checks, for four clients, that each event for which install adds a hook is
// recorded or decided, and at which events the digest of the transcript is recorded.
func TestInstalledEvents(t *testing.T) {
	for client, want := range map[string][]string{
		"claude-code": {"SessionEnd", "SubagentStop"},
		"cursor":      {"sessionEnd"},
		"gemini-cli":  {"SessionEnd"},
		"vscode":      {"Stop", "SubagentStop"},
	} {
		c, err := (&install.Target{Client: client, Home: t.TempDir(), State: t.TempDir(), Command: "binnacle hook run " + client, Timeout: 330}).Install()
		if err != nil {
			t.Fatal(err)
		}
		var doc struct{ Hooks map[string]json.RawMessage }
		if err := json.Unmarshal(c.After, &doc); err != nil || len(doc.Hooks) < 5 {
			t.Fatal(string(c.After), err)
		}
		var digests []string
		for event := range doc.Hooks {
			r, g, work := newRunner(t)
			file := filepath.Join(work, "log")
			if err := os.WriteFile(file, []byte("log"), 0o600); err != nil {
				t.Fatal(err)
			}
			a := r.Handle(t.Context(), client, hookDocument(t, event, work, map[string]any{"transcript_path": file, "conversation_id": "s", "reason": "other"}))
			if a.Exit != 0 || len(g.requests) == 0 {
				t.Errorf("%s %s: %+v, %d requests", client, event, a, len(g.requests))
				continue
			}
			if args, _ := g.requests[0].body["args"].(map[string]any); args["transcript_digest"] == action.Digest([]byte("log")) {
				digests = append(digests, event)
			}
		}
		if slices.Sort(digests); !slices.Equal(digests, want) {
			t.Errorf("%s: digests at %q, want %q", client, digests, want)
		}
	}
}
