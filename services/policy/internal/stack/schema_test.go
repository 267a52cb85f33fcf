package stack

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
)

// TestSchema shows for several examples that a request summary is rejected if and only if
// its schema rejects it, although the schema itself is not evaluated.
func TestSchema(t *testing.T) {
	if !canon.IsCanonical([]byte(llm.Schema)) {
		t.Fatal("the schema is not canonical")
	}
	tool := &contract.Tool{Kind: llm.Chat, InputSchema: contract.Raw(llm.Schema), OutputSchema: contract.Raw(`{}`)}
	const with = `{"body":"x","bytes":5,"cache":"use","capture":"hashed","fields":[],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"tools":[]}`
	good := `{"body":"sha256:x","bytes":5,"capture":"plain","fields":["model"],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{"temperature":0.5},"stream":true,"tools":[]}`
	for _, args := range []string{good, with, strings.Replace(with, `"hashed"`, `"some"`, 1), strings.Replace(with, `"hashed"`, `""`, 1), strings.Replace(with, `"use"`, `"always"`, 1), strings.Replace(with, `"use"`, `""`, 1), strings.Replace(with, `"m"`, `""`, 1), `{}`, `[]`, `null`, `{"body":"x"}`, good[:len(good)-1] + `,"zz":1}`, `{"body":1,"bytes":5,"capture":"plain","fields":[],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"tools":[]}`,
		`{"body":"x","bytes":"5","capture":"plain","fields":[],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"tools":[]}`,
		`{"body":"x","bytes":5,"capture":"plain","fields":{},"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"tools":[]}`,
		`{"body":"x","bytes":5,"capture":"plain","fields":[],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"stream":"yes","tools":[]}`} {
		bySchema := checker.Input("x", tool, []byte(args)) == ""
		in := guard.Inputs{Tool: tool, Facts: guard.Facts{Kind: llm.Chat, Proposer: "judge"}}
		byPolicy := checkArgs(&in, LLMArgs(llm.Chat, []byte(args)), []byte(args), toolschema.Closed).Verdict == ""
		if byPolicy != bySchema {
			t.Errorf("accepted by policy: %t, by the schema: %t: %s", byPolicy, bySchema, args)
		}
		if (args == good || args == with) && !byPolicy {
			t.Error("a summary is refused")
		}
	}
}
