package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
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

// TestTimesToLive shows that the input schema of each tool with a time to live rejects
// one that overflows a time.Duration.
func TestTimesToLive(t *testing.T) {
	var checker toolschema.Checker
	found := 0
	for i := range tools {
		if !strings.Contains(string(tools[i].InputSchema), "ttl_ms") {
			continue
		}
		found++
		for _, ms := range []int64{9223372036855, 18446744073710} {
			if at, keyword := checker.Where(&tools[i], fmt.Appendf(nil, `{"actor":"a","delegate":"d","digest":"sha256:%064d","id":"i","kinds":["k"],"maker":"m","principal":"p","reason":"r","role":"r","scopes":["s"],"session":"s-x","ttl_ms":%d}`, 0, ms)); keyword == "" {
				t.Errorf("%s accepts ttl_ms %d", tools[i].Kind, ms)
			} else if keyword != "maximum" && keyword != "additionalProperties" {
				t.Errorf("%s: %s violates %s", tools[i].Kind, at, keyword)
			}
		}
	}
	if found != 6 {
		t.Errorf("%d tools have a time to live, want 6", found)
	}
}
