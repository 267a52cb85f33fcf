// Package irtest runs a dialect over recorded requests, responses and streams, and
// compares the results with golden files. Only tests import it.
//
// A dialect's package has its fixtures in testdata, in the wire format of the API's
// documentation: request-*.json, answer-*.json, stream-*.sse and fault-*.json. The
// expected result is in a file with the same name and the suffix .golden. `go test
// -update` rewrites these files; a change of one is a change of behaviour and is
// reviewed as such.
package irtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Golden fails the test if got differs from the file, and reports the first line that
// differs. With -update it writes the file instead.
func Golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			t.Fatalf("%s:%d:\n got %s\nwant %s", file, i+1, g[i], strings.Join(w[min(i, len(w)):min(i+1, len(w))], ""))
		}
	}
	t.Fatalf("%s: %d lines are missing", file, len(w)-len(g))
}

// Dump returns values as one line of JSON each, with sorted members. It omits members
// that are null, false, 0 or "", so that a golden file shows only the decoded ones. A
// value that cannot be encoded becomes the text of the error.
func Dump(values ...any) []byte {
	var out []byte
	for _, v := range values {
		doc, err := json.Marshal(v)
		if err != nil {
			doc = []byte(err.Error())
		}
		var tree any
		if json.Unmarshal(doc, &tree) == nil {
			doc, _ = json.Marshal(bare(tree))
		}
		out = append(append(out, doc...), '\n')
	}
	return out
}

// bare removes the members that are null, false, 0 or "" from a document.
func bare(v any) any {
	switch x := v.(type) {
	case map[string]any:
		for k, e := range x {
			switch e := e.(type) {
			case nil:
				delete(x, k)
			case string:
				if e == "" {
					delete(x, k)
				}
			case bool:
				if !e {
					delete(x, k)
				}
			case float64:
				if e == 0 {
					delete(x, k)
				}
			default:
				x[k] = bare(e)
			}
		}
	case []any:
		for i := range x {
			x[i] = bare(x[i])
		}
	}
	return v
}

// each runs do over the fixtures that match a pattern and compares the results with the
// golden files. It fails the test if no fixture matches.
func each(t *testing.T, pattern string, do func(t *testing.T, doc []byte) []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixture %s: %v", pattern, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			doc, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			Golden(t, f+".golden", do(t, doc))
		})
	}
}

// Requests decodes testdata/request-*.json with parse. The golden file contains the
// error for fixtures that must be rejected.
func Requests(t *testing.T, parse func([]byte) (*ir.Request, error)) {
	each(t, "request-*.json", func(_ *testing.T, doc []byte) []byte {
		r, err := parse(doc)
		if err != nil {
			return []byte("error: " + err.Error() + "\n")
		}
		out := Dump(r.Messages)
		r.Messages = nil
		return append(out, Dump(r)...)
	})
}

// Answers decodes testdata/answer-*.json with parse and encodes the result with build,
// unless build is nil, as for an API that callers cannot use. The golden file contains
// the error for fixtures that parse rejects.
func Answers(t *testing.T, parse func([]byte) (*ir.Response, error), build func(*ir.Response) ([]byte, error)) {
	each(t, "answer-*.json", func(t *testing.T, doc []byte) []byte {
		r, err := parse(doc)
		if err != nil {
			return []byte("error: " + err.Error() + "\n")
		}
		out := Dump(r)
		if build == nil {
			return out
		}
		again, err := build(r)
		if err != nil {
			t.Fatal(err)
		}
		return append(append(out, again...), '\n')
	})
}

// Decoder has the methods of dialect.Decoder. It is declared here so that this package
// does not import dialect.
type Decoder interface {
	Event(name string, data []byte) ([]ir.Event, error)
	Done() bool
}

// Streams decodes each testdata/stream-*.sse with a new decoder. The golden file
// contains the events, the errors and the result of Done; its last line is the response
// collected from the events. Streams also decodes each stream without its first event,
// which must not make the decoder panic.
func Streams(t *testing.T, decoder func() Decoder) {
	each(t, "stream-*.sse", func(_ *testing.T, doc []byte) []byte {
		d := decoder()
		var out []byte
		var sum ir.Collect
		for block := range strings.SplitSeq(strings.TrimSpace(string(doc)), "\n\n") {
			steps, err := d.Event(members(block))
			for i := range steps {
				out = append(out, Dump(steps[i])...)
				sum.Add(&steps[i])
			}
			if err != nil {
				out = append(append(out, "error: "...), Dump(err)...)
			}
		}
		out = fmt.Appendf(out, "done: %v\n", d.Done())
		broken(decoder(), string(doc))
		return append(out, Dump(sum.Response())...)
	})
}

// members returns the event name and the data of a server-sent event.
func members(block string) (name string, data []byte) {
	for line := range strings.SplitSeq(block, "\n") {
		if v, ok := strings.CutPrefix(line, "event: "); ok {
			name = v
		}
		if v, ok := strings.CutPrefix(line, "data: "); ok {
			data = []byte(v)
		}
	}
	return name, data
}

// broken decodes a stream without its first event, which must not make the decoder panic.
func broken(d Decoder, doc string) {
	_, rest, _ := strings.Cut(strings.TrimSpace(doc), "\n\n")
	for block := range strings.SplitSeq(rest, "\n\n") {
		_, _ = d.Event(members(block))
	}
}

// Faults decodes testdata/fault-*.json as the body of a response with status 400, and as
// the same error within a stream, which has status 0.
func Faults(t *testing.T, parse func(status int, body []byte) *ir.Fault) {
	each(t, "fault-*.json", func(_ *testing.T, doc []byte) []byte { return Dump(parse(400, doc), parse(0, doc)) })
}

func ptr[T any](v T) *T { return &v }

// Everything returns a request that uses every member of the intermediate form, except
// ThinkingBudget, audio, and media by reference.
func Everything() *ir.Request {
	cache := json.RawMessage(`{"type":"ephemeral"}`)
	text := func(s string) ir.Part { return ir.Part{Type: ir.Text, Text: s} }
	return &ir.Request{Model: "m", Stream: true, MaxTokens: 4000, Temperature: ptr(1.5), TopP: ptr(0.9), TopK: ptr(int64(40)), Stop: []string{"x", "y"}, Seed: ptr(int64(7)), N: 1,
		PresencePenalty: ptr(0.1), FrequencyPenalty: ptr(0.2), LogProbs: ptr(false), TopLogProbs: ptr(int64(2)), Effort: "low", User: "u", Metadata: map[string]string{"k": "v"}, CacheKey: "ck",
		Parallel: ptr(false), Choice: &ir.Choice{Mode: "tool", Name: "upper"},
		Format: &ir.Format{Type: "json_schema", Name: "answer", Description: "e", Schema: json.RawMessage(`{"type":"object"}`), Strict: ptr(true)},
		Tools: []ir.ToolDef{{Name: "upper", Description: "d", Schema: json.RawMessage(`{"type":"object"}`), Cache: cache}, {Name: "lower", Namespace: "ns", Strict: ptr(true)},
			{Name: "free", Custom: json.RawMessage(`{"type":"text"}`)}, {Name: "plain", Custom: json.RawMessage("null")}, {Hosted: json.RawMessage(`{"type":"web_search"}`)}},
		Messages: []ir.Message{
			{Role: ir.System, Parts: []ir.Part{{Type: ir.Text, Text: "be brief", Cache: cache}}},
			{Role: ir.User, Name: "ada", Parts: []ir.Part{text("look"), {Type: ir.Image, Media: &ir.Media{MIME: "image/png", Data: "QUJD", Detail: "low"}}, {Type: ir.File, Media: &ir.Media{MIME: "application/pdf", Data: "QUJD", Name: "a.pdf"}}}},
			{Role: ir.Assistant, Parts: []ir.Part{{Type: ir.Thinking, Text: "hm", Signature: "seal"}, {Type: ir.Thinking, Redacted: "zz"}, {Type: ir.Thinking, Text: "unsealed"}, text("two calls"),
				{Type: ir.Refusal, Text: "no"}, {Type: ir.ToolCall, ID: "c1", Name: "upper", Args: `{"text":"a"}`, Signature: "s1"}, {Type: ir.ToolCall, ID: "c2", Namespace: "ns", Name: "lower"}, {Type: ir.ToolCall, ID: "c3", Name: "free", Args: "text", Custom: true}}},
			{Role: ir.Tool, Parts: []ir.Part{{Type: ir.ToolResult, ID: "c1", Parts: []ir.Part{text("A"), {Type: ir.Image, Media: &ir.Media{MIME: "image/png", Data: "QUJD"}}}}, {Type: ir.ToolResult, ID: "c2", Name: "lower", IsError: true, Parts: []ir.Part{text("failed")}},
				{Type: ir.ToolResult, ID: "c3", Parts: []ir.Part{text(`{"ok":true}`)}}}},
			{Role: ir.User, Parts: []ir.Part{text("go on")}},
		}, Extra: map[string]json.RawMessage{"x_odd": json.RawMessage(`[1]`)}}
}

// Requested encodes every variation of Everything, for the model "m" and for each of
// models, and compares the documents with testdata/built.golden.
func Requested(t *testing.T, build func(*ir.Request) ([]byte, error), models ...string) {
	var out []byte
	for _, model := range append([]string{"m"}, models...) {
		for name, change := range variations {
			r := Everything()
			r.Model = model
			change(r)
			doc, err := build(r)
			if err != nil {
				doc = []byte("error: " + err.Error())
			}
			out = fmt.Appendf(out, "# %s, %s\n%s\n", model, name, doc)
		}
	}
	Golden(t, "testdata/built.golden", sorted(out))
}

// sorted sorts the documents, each of which follows a line with its name, because they
// are built in the random order of a map.
func sorted(b []byte) []byte {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	var pairs []string
	for i := 0; i+1 < len(lines); i += 2 {
		pairs = append(pairs, lines[i]+"\n"+lines[i+1]+"\n")
	}
	for i := range pairs {
		for j := i; j > 0 && pairs[j] < pairs[j-1]; j-- {
			pairs[j], pairs[j-1] = pairs[j-1], pairs[j]
		}
	}
	return []byte(strings.Join(pairs, ""))
}

var variations = map[string]func(*ir.Request){
	"everything":  func(*ir.Request) {},
	"any tool":    func(r *ir.Request) { r.Choice = &ir.Choice{Mode: "required"} },
	"no tool":     func(r *ir.Request) { r.Choice = &ir.Choice{Mode: "none"} },
	"free choice": func(r *ir.Request) { r.Choice, r.Parallel, r.Stream = &ir.Choice{Mode: "auto"}, nil, false },
	"no choice":   func(r *ir.Request) { r.Choice, r.Parallel = nil, ptr(true) },
	"no tools":    func(r *ir.Request) { r.Tools = nil },
	"own tools only": func(r *ir.Request) {
		r.Tools = []ir.ToolDef{{Hosted: json.RawMessage(`{"type":"bash_1","name":"bash"}`)}}
	},
	"budget":             func(r *ir.Request) { r.Effort, r.ThinkingBudget = "", 2000 },
	"budget above bound": func(r *ir.Request) { r.Effort, r.ThinkingBudget = "", 9000 },
	"no bound":           func(r *ir.Request) { r.MaxTokens, r.Effort = 0, "high" },
	"no effort":          func(r *ir.Request) { r.Effort = "" },
	"object":             func(r *ir.Request) { r.Format = &ir.Format{Type: "json_object"} },
	"audio": func(r *ir.Request) {
		r.Messages[1].Parts = []ir.Part{{Type: ir.Audio, Media: &ir.Media{MIME: "audio/wav", Data: "QUJD"}}}
	},
	"by reference": func(r *ir.Request) {
		r.Messages[1].Parts = []ir.Part{{Type: ir.Image, Media: &ir.Media{URL: "https://example.org/x.png"}}, {Type: ir.File, Media: &ir.Media{ID: "file-1"}}}
	},
	"an empty turn":       func(r *ir.Request) { r.Messages[2].Parts = []ir.Part{{Type: ir.Text}} },
	"an empty tool":       func(r *ir.Request) { r.Tools = []ir.ToolDef{{Name: "t"}} },
	"only a refused turn": func(r *ir.Request) { r.Messages[2].Parts = []ir.Part{{Type: ir.Refusal, Text: "no"}} },
}

// Events returns the events of a response: signed and redacted thinking, text, a refusal
// and three tool calls, with usage at the beginning and the end. They include arguments
// of a call that has not begun, and text of a second answer.
func Events() []ir.Event {
	delta := func(typ, s string) ir.Event { return ir.Event{Kind: ir.Delta, Part: ir.Part{Type: typ, Text: s}} }
	args := func(i int, s string) ir.Event { return ir.Event{Kind: ir.CallArgs, Index: i, Part: ir.Part{Args: s}} }
	return []ir.Event{{Kind: ir.Begin, ID: "x", Model: "other"}, {Kind: ir.Used, Usage: ir.Usage{In: 30, Cached: 10, Known: true}},
		delta(ir.Thinking, "h"), delta(ir.Thinking, "m"), {Kind: ir.Signed, Part: ir.Part{Signature: "seal"}}, {Kind: ir.Delta, Part: ir.Part{Type: ir.Thinking, Redacted: "zz"}},
		{Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: "hel"}, LogProbs: json.RawMessage(`{"content":[]}`)}, delta(ir.Text, "lo"), delta(ir.Refusal, "no"), delta(ir.Text, "again"),
		{Kind: ir.CallBegin, Part: ir.Part{ID: "c1", Name: "ns__lower"}}, args(0, `{"a"`), args(0, `:1}`), args(9, "stray"),
		{Kind: ir.CallBegin, Index: 1, Part: ir.Part{ID: "c2", Name: "free"}}, args(1, `{"input":"t"}`),
		{Kind: ir.CallBegin, Index: 2, Part: ir.Part{ID: "c3", Name: "upper"}}, args(2, ""), {Kind: ir.Delta, Choice: 1, Part: ir.Part{Type: ir.Text, Text: "beside"}},
		{Kind: ir.End, Finish: ir.ToolCalls}, {Kind: ir.End, Choice: 1, Finish: ir.Stop}, {Kind: ir.Used, Usage: ir.Usage{Out: 9, Reasoning: 2, Known: true}}}
}

// Encoder has the methods of dialect.Encoder. It is declared here so that this package
// does not import dialect.
type Encoder interface {
	Encode(*ir.Event) []byte
	Finish() []byte
}

// Encoded encodes Events, one short answer for each finish reason, including an unknown
// and an empty one, an answer without content and a stream without events, with a new
// encoder each time, and compares the bytes with testdata/encoded.golden.
func Encoded(t *testing.T, encoder func() Encoder) {
	var out []byte
	write := func(events []ir.Event) {
		e := encoder()
		for i := range events {
			out = append(out, e.Encode(&events[i])...)
		}
		out = append(append(out, e.Finish()...), "----\n"...)
	}
	write(Events())
	for _, end := range []string{ir.Stop, ir.Length, ir.ToolCalls, ir.Filtered, ir.Paused, "odd", ""} {
		write([]ir.Event{{Kind: ir.Begin}, {Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: "a"}}, {Kind: ir.End, Finish: end}})
	}
	write([]ir.Event{{Kind: ir.End, Finish: ir.Stop, StopSeq: "x"}})
	write(nil)
	Golden(t, "testdata/encoded.golden", out)
}
