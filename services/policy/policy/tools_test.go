package policy

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
)

// TestToolsHaveCommands shows that each of policy's tools, except the four that this
// package executes itself, has a command in package govern, and that the command accepts
// every argument in the tool's schema.
func TestToolsHaveCommands(t *testing.T) {
	own := []string{kindVote, kindActivate, kindRollback, kindRetire}
	governed := 0
	for _, tool := range tools {
		if slices.Contains(own, tool.Kind) {
			continue
		}
		governed++
		var schema struct {
			Properties map[string]json.RawMessage `json:"properties"`
		}
		if err := json.Unmarshal(tool.InputSchema, &schema); err != nil || len(schema.Properties) == 0 {
			t.Fatalf("%s: %v, %s", tool.Kind, err, tool.InputSchema)
		}
		for member := range schema.Properties {
			if _, err := govern.Parse(tool.Kind, []byte(`{"`+member+`":null}`)); err != nil {
				t.Errorf("%s: %s: %v", tool.Kind, member, err)
			}
		}
	}
	if governed != 20 {
		t.Errorf("%d tools are govern's, want 20", governed)
	}
}
