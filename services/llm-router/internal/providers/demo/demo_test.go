package demo

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// TestAnswer shows that the demo repeats the last user message word by word, up to the
// limit, and counts every word of the request.
func TestAnswer(t *testing.T) {
	text := func(role, s string) ir.Message {
		return ir.Message{Role: role, Parts: []ir.Part{{Type: ir.Text, Text: s}}}
	}
	long := strings.Repeat("w ", llm.DefaultOutput+1)
	for _, c := range []struct {
		messages []ir.Message
		bound    int64
		text     string
		finish   string
		in, out  int64
	}{
		{[]ir.Message{text(ir.System, "be brief"), text(ir.User, "first"), text(ir.Assistant, "said"), text(ir.User, "one  two")}, 0, "one  two", ir.Stop, 6, 2},
		{[]ir.Message{text(ir.User, "one two three")}, 2, "one two ", ir.Length, 3, 2},
		{[]ir.Message{text(ir.User, "one two")}, 2, "one two", ir.Stop, 2, 2},
		{[]ir.Message{text(ir.System, "alone")}, 0, "", ir.Stop, 1, 0},
		{nil, 0, "", ir.Stop, 0, 0},
		{[]ir.Message{text(ir.User, long)}, 0, long[:2*llm.DefaultOutput], ir.Length, llm.DefaultOutput + 1, llm.DefaultOutput},
	} {
		var sum ir.Collect
		steps := answer("id", &ir.Request{Messages: c.messages, MaxTokens: c.bound})
		for i := range steps {
			sum.Add(&steps[i])
		}
		r := sum.Response()
		got := ir.PlainText(r.Choices[0].Parts)
		if got != c.text || r.ID != "id" || r.Choices[0].Finish != c.finish || r.Usage != (ir.Usage{In: c.in, Out: c.out, Known: true}) {
			t.Errorf("%q within %d: %.40q %s %+v", c.text, c.bound, got, r.Choices[0].Finish, r.Usage)
		}
	}
}

// TestNames shows that the id of a chat completion identifies the demo, and that the
// error for another model names the one that exists.
func TestNames(t *testing.T) {
	if got := Provider.Local.ID("chatcmpl-1-2"); got != "chatcmpl-demo-1-2" {
		t.Error(got)
	}
	if !strings.Contains(Provider.Local.Missing, Provider.Name+"/"+Provider.Local.Models[0]) {
		t.Errorf("the error for another model does not name the one that exists: %s", Provider.Local.Missing)
	}
}
