package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/tenant"
)

// TestToolsHaveCommands shows that each of policy's tools, except the four that this
// package executes itself, has a command in package govern or in package tenant, and that
// the command accepts every argument in the tool's schema and rejects one that the schema
// lacks.
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
			if err := parse(tool.Kind, `{"`+member+`":null}`); err != nil {
				t.Errorf("%s: %s: %v", tool.Kind, member, err)
			}
		}
		if err := parse(tool.Kind, `{"other":null}`); err == nil {
			t.Errorf("%s accepts an argument that its schema lacks", tool.Kind)
		}
	}
	if governed != 40 {
		t.Errorf("%d tools have commands, want 40", governed)
	}
}

// parse returns the error of decoding the arguments of a governing call. It returns nil for
// a *tenant.Error: the arguments could be decoded, but do not name a tenant.
func parse(kind, args string) error {
	if !tenant.Governs(kind) {
		_, err := govern.Parse(kind, []byte(args))
		return err
	}
	_, err := tenant.Parse(kind, []byte(args))
	if errors.As(err, new(*tenant.Error)) {
		return nil
	}
	return err
}

// TestTimesToLive shows that the input schema of each tool with a time to live rejects a
// document whose ttl_ms overflows a time.Duration. The document has the members of all these
// tools, so the reported violation may also be one of additionalProperties.
func TestTimesToLive(t *testing.T) {
	var checker toolschema.Checker
	found := 0
	for i := range tools {
		if !strings.Contains(string(tools[i].InputSchema), "ttl_ms") {
			continue
		}
		found++
		id := "l-12345678"
		if tools[i].Kind == govern.KindInvite {
			id = "iv-12345678"
		}
		for _, ms := range []int64{9223372036855, 18446744073710} {
			if v := checker.Where(&tools[i], fmt.Appendf(nil, `{"actor":"a","code":"sha256:%064[1]d","delegate":"d","digest":"sha256:%064[1]d","id":%[3]q,"kinds":["k"],"maker":"m","method":"password","refresh":"sha256:%064[1]d","principal":"p","reason":"r","role":"r","scopes":["s"],"secret":"x","session":"s-x","subject":"x","ttl_ms":%[2]d}`, 0, ms, id)); v.Keyword == "" {
				t.Errorf("%s accepts ttl_ms %d", tools[i].Kind, ms)
			} else if v.Keyword != "maximum" && v.Keyword != "additionalProperties" {
				t.Errorf("%s: %s violates %s", tools[i].Kind, v.Pointer, v.Keyword)
			}
		}
	}
	if found != 10 {
		t.Errorf("%d tools have a time to live, want 10", found)
	}
}
