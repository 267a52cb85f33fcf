package llmrouter

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// translatable returns, for each kind of calls that can be translated, the API in which
// callers send them.
func translatable() map[string]*dialect.API {
	out := map[string]*dialect.API{}
	for _, c := range callers {
		if c.Parse != nil {
			out[c.Kind] = c.Native
		}
	}
	return out
}

// targets returns the APIs into which requests are translated.
func targets() (out []*dialect.API) {
	for _, k := range registry.Kinds() {
		for _, a := range k.APIs {
			if a.Rank > 0 && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out
}

func ptr[T any](v T) *T { return &v }

// everything returns a request with all members that the three callers' APIs have in
// common.
func everything() *ir.Request {
	cache := json.RawMessage(`{"type":"ephemeral"}`)
	return &ir.Request{Model: "m", Stream: true, MaxTokens: 4000, Temperature: ptr(0.5), TopP: ptr(0.9), User: "u", Parallel: ptr(false), Choice: &ir.Choice{Mode: "required"},
		Format: &ir.Format{Type: "json_schema", Name: "answer", Schema: json.RawMessage(`{"type":"object"}`)},
		Tools:  []ir.ToolDef{{Name: "upper", Description: "d", Schema: json.RawMessage(`{"type":"object"}`)}, {Name: "lower", Schema: json.RawMessage(`{"type":"object"}`)}},
		Messages: []ir.Message{
			{Role: ir.System, Parts: []ir.Part{{Type: ir.Text, Text: "be brief", Cache: cache}}},
			{Role: ir.User, Parts: []ir.Part{{Type: ir.Text, Text: "look"}, {Type: ir.Image, Media: &ir.Media{MIME: "image/png", Data: "QUJD"}}, {Type: ir.Image, Media: &ir.Media{URL: "https://example.org/x.png"}}}},
			{Role: ir.Assistant, Parts: []ir.Part{{Type: ir.Text, Text: "two calls"}, {Type: ir.ToolCall, ID: "c1", Name: "upper", Args: `{"text":"a"}`}, {Type: ir.ToolCall, ID: "c2", Name: "lower", Args: `{"text":"b"}`}}},
			{Role: ir.Tool, Parts: []ir.Part{{Type: ir.ToolResult, ID: "c1", Parts: []ir.Part{{Type: ir.Text, Text: "A"}}}, {Type: ir.ToolResult, ID: "c2", Parts: []ir.Part{{Type: ir.Text, Text: "B"}}}}},
			{Role: ir.User, Parts: []ir.Part{{Type: ir.Text, Text: "go on"}}},
		}}
}

// said lists the contents of a request in a normalized form, since the APIs may divide
// the same contents into turns differently.
func said(r *ir.Request) []string {
	var out []string
	add := func(v ...any) { b, _ := json.Marshal(v); out = append(out, string(b)) }
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			role := m.Role
			if p.Type == ir.ToolResult {
				role = ir.Tool
			}
			add(role, p.Type, p.Text, p.Media, p.ID, p.Name, p.Args, ir.PlainText(p.Parts))
		}
	}
	for _, t := range r.Tools {
		add(t.Name, t.Description, string(t.Schema))
	}
	add(r.Model, r.Stream, r.MaxTokens, r.Temperature, r.TopP, r.Choice, r.Parallel, r.Format != nil && string(r.Format.Schema) == `{"type":"object"}`)
	return out
}

// TestTranslation shows that a translation from each API to each API preserves the
// contents that the function said returns, and that it preserves cache hints unless one
// of the two is the responses API.
func TestTranslation(t *testing.T) {
	kinds := translatable()
	for a, wa := range kinds {
		for b, wb := range kinds {
			first, err := wa.Request(everything())
			if err != nil {
				t.Fatal(err)
			}
			in, err := callerOf(a).Parse(first)
			if err != nil {
				t.Fatalf("%s: %v: %s", a, err, first)
			}
			over, err := wb.Request(in)
			if err != nil {
				t.Fatal(err)
			}
			back, err := callerOf(b).Parse(over)
			if err != nil {
				t.Fatalf("%s: %v: %s", b, err, over)
			}
			if got, want := said(back), said(everything()); !reflect.DeepEqual(got, want) {
				t.Errorf("%s to %s:\n got %s\nwant %s", a, b, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
			}
			if hint := strings.Contains(string(over), `"cache_control":{"type":"ephemeral"}`); hint != (a != llm.Responses && b != llm.Responses) {
				t.Errorf("%s to %s: the cache hint: %v", a, b, hint)
			}
		}
	}
}

// TestAnswers shows that each API preserves the parts, the finish reason and the usage
// of a response that it encodes and decodes, as a document and as a stream.
func TestAnswers(t *testing.T) {
	r := &ir.Response{ID: "x", Model: "m", Created: 7, Usage: ir.Usage{In: 30, Out: 9, Cached: 10, Known: true}, Choices: []ir.Answer{{Finish: ir.ToolCalls, Parts: []ir.Part{
		{Type: ir.Text, Text: "hello"}, {Type: ir.ToolCall, ID: "c1", Name: "upper", Args: `{"a":1}`}, {Type: ir.ToolCall, ID: "c2", Name: "lower", Args: `{}`}}}}}
	events := []ir.Event{{Kind: ir.Begin, ID: "x", Model: "m"}, {Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: "hel"}}, {Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: "lo"}},
		{Kind: ir.CallBegin, Part: ir.Part{ID: "c1", Name: "upper"}}, {Kind: ir.CallArgs, Part: ir.Part{Args: `{"a"`}}, {Kind: ir.CallArgs, Part: ir.Part{Args: `:1}`}},
		{Kind: ir.CallBegin, Index: 1, Part: ir.Part{ID: "c2", Name: "lower"}}, {Kind: ir.CallArgs, Index: 1, Part: ir.Part{Args: `{}`}}, {Kind: ir.End, Finish: ir.ToolCalls}, {Kind: ir.Used, Usage: r.Usage}}
	check := func(what string, got *ir.Response) {
		t.Helper()
		if got.Usage != r.Usage || len(got.Choices) != 1 || got.Choices[0].Finish != ir.ToolCalls || len(got.Choices[0].Parts) != len(r.Choices[0].Parts) {
			t.Errorf("%s: %+v", what, got)
			return
		}
		for i, p := range got.Choices[0].Parts {
			if w := r.Choices[0].Parts[i]; p.Type != w.Type || p.Text != w.Text || p.ID != w.ID || p.Name != w.Name || p.Args != w.Args {
				t.Errorf("%s: part %d: %+v", what, i, p)
			}
		}
	}
	for kind, wire := range translatable() {
		a := answer{caller: callerOf(kind), Frame: dialect.Frame{ID: "x", Model: "m", Created: 7, Usage: true}}
		c := *r
		body, err := a.build(&c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := wire.Parse(body, "x")
		if err != nil {
			t.Fatalf("%s: %v: %s", kind, err, body)
		}
		check(kind+" plain", got)
		enc, dec := a.encoder(), wire.Decoder("x")
		var stream []byte
		for i := range events {
			stream = append(stream, enc.Encode(&events[i])...)
		}
		stream = append(stream, enc.Finish()...)
		var sum ir.Collect
		for ev := range strings.SplitSeq(strings.TrimSpace(string(stream)), "\n\n") {
			_, data, _ := strings.Cut(ev, "data: ")
			steps, err := dec.Event("", []byte(data))
			if err != nil {
				t.Fatalf("%s: %v: %s", kind, err, ev)
			}
			for i := range steps {
				sum.Add(&steps[i])
			}
		}
		if !dec.Done() {
			t.Errorf("%s: the stream does not say that it is complete", kind)
		}
		check(kind+" stream", sum.Response())
	}
}

func FuzzTranslate(f *testing.F) {
	for _, wire := range translatable() {
		b, err := wire.Request(everything())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, body []byte) {
		for kind := range translatable() {
			r, err := callerOf(kind).Parse(body)
			if err != nil {
				continue
			}
			for _, wire := range targets() {
				_, _ = wire.Request(r)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add("contentBlockDelta", []byte(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}}]}`))
	f.Add("", []byte(`{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"x"}}`))
	f.Fuzz(func(_ *testing.T, name string, data []byte) {
		for _, wire := range targets() {
			d := wire.Decoder("x")
			for range 2 {
				steps, err := d.Event(name, data)
				if err != nil {
					break
				}
				var sum ir.Collect
				for kind := range translatable() {
					e := (&answer{caller: callerOf(kind)}).encoder()
					for i := range steps {
						sum.Add(&steps[i])
						e.Encode(&steps[i])
					}
					e.Finish()
				}
			}
			_, _ = wire.Parse(data, "x")
		}
	})
}
