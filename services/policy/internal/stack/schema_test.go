package stack

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// TestSchema shows for several examples that decoding a request summary rejects what its
// schema rejects, since the schema itself is not evaluated.
func TestSchema(t *testing.T) {
	if !canon.IsCanonical([]byte(llm.Schema)) {
		t.Fatal("the schema is not canonical")
	}
	tool := &contract.Tool{Kind: llm.Chat, InputSchema: contract.Raw(llm.Schema), OutputSchema: contract.Raw(`{}`)}
	good := `{"body":"sha256:x","bytes":5,"capture":"plain","fields":["model"],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{"temperature":0.5},"stream":true,"tools":[]}`
	for _, args := range []string{good, `{}`, `[]`, `null`, `{"body":"x"}`, good[:len(good)-1] + `,"zz":1}`, `{"body":1,"bytes":5,"capture":"plain","fields":[],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"tools":[]}`,
		`{"body":"x","bytes":"5","capture":"plain","fields":[],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"tools":[]}`,
		`{"body":"x","bytes":5,"capture":"plain","fields":{},"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"tools":[]}`,
		`{"body":"x","bytes":5,"capture":"plain","fields":[],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"stream":"yes","tools":[]}`} {
		bySchema := checker.Input("x", tool, []byte(args)) == ""
		byDecoding := contract.Decode([]byte(args), new(llm.Args)) == nil
		if byDecoding && !bySchema {
			t.Errorf("decoding takes what the schema refuses: %s", args)
		}
		if args == good && !byDecoding {
			t.Error("a summary is refused")
		}
	}
}
