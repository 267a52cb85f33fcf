package llmrouter

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/scan"
)

// TestFilter shows that findings in a text in two pieces, and in arguments of tool calls
// that are divided anywhere, are redacted and counted, and that arguments remain a valid
// document.
func TestFilter(t *testing.T) {
	g := scan.Guard{}
	if err := g.Add("email", scan.Redact); err != nil {
		t.Fatal(err)
	}
	const args = `{"to":"x\nada@example.org","n":1}`
	for cut := 1; cut < len(args); cut++ {
		f := filter{g: g, seen: scan.Seen{}}
		text := func(s string) ir.Event { return ir.Event{Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: s}} }
		call := func(i int, s string) ir.Event { return ir.Event{Kind: ir.CallArgs, Index: i, Part: ir.Part{Args: s}} }
		var sum ir.Collect
		for _, e := range []ir.Event{text("mail to bob@exa"), text("mple.org"), {Kind: ir.CallBegin, Part: ir.Part{ID: "1", Name: "a"}}, call(0, args[:cut]), call(0, args[cut:]),
			{Kind: ir.CallBegin, Index: 1, Part: ir.Part{ID: "2", Name: "b"}}, call(1, "{}"), {Kind: ir.End, Finish: ir.ToolCalls}} {
			steps, blocked := f.step(e)
			if blocked != "" {
				t.Fatal(blocked)
			}
			for i := range steps {
				sum.Add(&steps[i])
			}
		}
		p := sum.Response().Choices[0].Parts
		if len(p) != 3 || p[0].Text != "mail to [redacted:email]" || p[1].Args != `{"to":"x\n[redacted:email]","n":1}` || p[2].Args != "{}" || f.seen["email"] != 2 {
			t.Fatalf("cut at %d: %+v", cut, p)
		}
	}
}

// TestFilterJoined shows that texts that the caller joins are scanned as one text, even
// with other events between them.
func TestFilterJoined(t *testing.T) {
	g := scan.Guard{}
	if err := g.Add("email", scan.Redact); err != nil {
		t.Fatal(err)
	}
	f := filter{g: g, seen: scan.Seen{}, joined: true}
	text := func(typ, s string) ir.Event { return ir.Event{Kind: ir.Delta, Part: ir.Part{Type: typ, Text: s}} }
	spelled := map[string]string{}
	for _, e := range []ir.Event{text(ir.Text, "mail to bob@exa"), {Kind: ir.CallBegin}, {Kind: ir.CallArgs, Part: ir.Part{Args: "{}"}}, text(ir.Thinking, "is it ada@exa"), text(ir.Text, "mple.org"), text(ir.Thinking, "mple.org?"), {Kind: ir.End}} {
		steps, blocked := f.step(e)
		if blocked != "" {
			t.Fatal(blocked)
		}
		for _, e := range steps {
			spelled[e.Part.Type] += e.Part.Text + e.Part.Args
		}
	}
	if spelled[ir.Text] != "mail to [redacted:email]" || spelled[ir.Thinking] != "is it [redacted:email]?" || spelled[""] != "{}" {
		t.Errorf("%q", spelled)
	}
}
