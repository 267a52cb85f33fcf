package hook

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLimitsOfVersions checks that the limits name the versions of the clients with which the tests in
// e2e run, and that the tools that they compare are listed for each of these clients.
func TestLimitsOfVersions(t *testing.T) {
	b, err := os.ReadFile("../../../e2e/agents/package.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Dependencies map[string]string }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	packages := map[string]string{"claude-code": "@anthropic-ai/claude-code", "codex": "@openai/codex", "gemini-cli": "@google/gemini-cli", "opencode": "opencode-ai"}
	versions := regexp.MustCompile(`^[A-Za-z ]+ ([0-9.]+): `)
	for _, client := range Clients() {
		version, tools, known := Unasked(client)
		failures, tried := FailsOpen(client)
		if name := packages[client]; known != (name != "") || tried != known || known && !strings.HasSuffix(version, " "+doc.Dependencies[name]) {
			t.Errorf("%s: version %q, known %t, failures known %t", client, version, known, tried)
		}
		if !slices.IsSorted(tools) || !slices.IsSorted(failures) {
			t.Errorf("%s: %q and %q are not sorted", client, tools, failures)
		}
		for _, l := range Limits(client)[1:] {
			if m := versions.FindStringSubmatch(l); (m != nil) != known || m != nil && !strings.HasPrefix(l, version+": ") {
				t.Errorf("%s: the limit %q is not one of %q", client, l, version)
			}
		}
	}
	if len(doc.Dependencies) != len(packages) {
		t.Errorf("the tests run %d clients, want %d", len(doc.Dependencies), len(packages))
	}
}
