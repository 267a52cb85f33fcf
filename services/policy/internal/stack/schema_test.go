package stack

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
)

// TestSchema shows that a request summary is rejected if and only if its schema rejects
// it, although the schema itself is not evaluated: for complete and incomplete summaries,
// and for one in which each member in turn has values of each type. An optional list or
// string that is empty is rejected although the schema permits it, because an encoder
// omits it.
func TestSchema(t *testing.T) {
	if !canon.IsCanonical([]byte(llm.Schema)) {
		t.Fatal("the schema is not canonical")
	}
	tool := &contract.Tool{Kind: llm.Chat, InputSchema: contract.Raw(llm.Schema), OutputSchema: contract.Raw(`{}`)}
	accepted := func(args string, omitted bool) bool {
		bySchema := checker.Input("x", tool, []byte(args)) == ""
		in := guard.Inputs{Tool: tool, Facts: guard.Facts{Kind: llm.Chat, Proposer: "judge"}}
		byPolicy := checkArgs(&in, LLMArgs(llm.Chat, []byte(args)), []byte(args), toolschema.Closed).Verdict == ""
		if byPolicy != (bySchema && !omitted) {
			t.Errorf("accepted by policy: %t, by the schema: %t: %s", byPolicy, bySchema, args)
		}
		return byPolicy
	}
	const good = `{"body":"sha256:x","bytes":5,"cache":"use","capture":"plain","fields":["model"],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{"temperature":0.5},"stream":true,"tools":[]}`
	if !accepted(good, false) {
		t.Error("a summary is rejected")
	}
	for _, args := range []string{`{}`, `[]`, `null`, `{"body":"x"}`, good[:len(good)-1] + `,"zz":1}`} {
		if accepted(args, false) {
			t.Errorf("accepted: %s", args)
		}
	}
	var schema struct {
		Properties map[string]any `json:"properties"`
		Required   []string       `json:"required"`
	}
	if err := json.Unmarshal([]byte(llm.Schema), &schema); err != nil {
		t.Fatal(err)
	}
	for name := range schema.Properties {
		valid := 0
		for _, value := range []string{`null`, `true`, `5`, `-1`, `1.5`, `"x"`, `""`, `"use"`, `"hashed"`, `[]`, `["x"]`, `[5]`, `[null]`, `{}`, `{"x":1}`} {
			var doc map[string]json.RawMessage
			if err := json.Unmarshal([]byte(good), &doc); err != nil {
				t.Fatal(err)
			}
			doc[name] = json.RawMessage(value)
			raw, err := json.Marshal(doc) // sorts the members, as canonical JSON does
			if err != nil {
				t.Fatal(err)
			}
			if accepted(string(raw), (value == `[]` || value == `""`) && !slices.Contains(schema.Required, name)) {
				valid++
			}
		}
		if valid == 0 {
			t.Errorf("no value of %s is accepted", name)
		}
	}
}
