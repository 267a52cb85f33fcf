package ir

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
)

// TestCollect shows how the events of a stream become a response: consecutive texts of
// one type form one part, and a new part begins for redacted thinking, for a tool call,
// and after signed or redacted thinking.
func TestCollect(t *testing.T) {
	text := func(choice int, typ, s string) Event {
		return Event{Kind: Delta, Choice: choice, Part: Part{Type: typ, Text: s}}
	}
	var c Collect
	for _, e := range []Event{{Kind: Begin, ID: "x", Model: "m"}, text(0, Thinking, "h"), text(0, Thinking, "m"), {Kind: Signed, Part: Part{Signature: "se"}}, {Kind: Signed, Part: Part{Signature: "al"}},
		text(0, Thinking, "again"), {Kind: Delta, Part: Part{Type: Thinking, Redacted: "zz"}}, text(0, Thinking, "after"), text(0, Thinking, "wards"), text(0, Text, "a"), text(0, Text, "b"), text(2, Text, "third"), text(0, Refusal, "no"), text(0, Text, "c"),
		{Kind: CallBegin, Index: 4, Part: Part{ID: "c1", Name: "n"}}, {Kind: CallArgs, Index: 4, Part: Part{Args: `{"a"`}}, {Kind: CallArgs, Index: 5, Part: Part{Args: "lost"}}, {Kind: CallArgs, Index: 4, Part: Part{Args: `:1}`}},
		{Kind: Used, Usage: Usage{In: 3, Known: true}}, {Kind: Used, Usage: Usage{Out: 2}}, {Kind: End, Finish: Stop, StopSeq: "s"}, text(maxChoices, Text, "too many"), {Kind: Signed, Choice: 1}} {
		c.Add(&e)
	}
	r := c.Response()
	var got []string
	for _, p := range r.Choices[0].Parts {
		got = append(got, fmt.Sprint(p.Type, "=", p.Text, p.Redacted, p.Args, p.Signature))
	}
	if want := "thinking=hmseal thinking=again thinking=zz thinking=afterwards text=ab refusal=no text=c tool_call={\"a\":1}"; strings.Join(got, " ") != want {
		t.Errorf("%q\nwant %q", strings.Join(got, " "), want)
	}
	if len(r.Choices) != 3 || r.Choices[2].Parts[0].Text != "third" || r.ID != "x" || r.Model != "m" || r.Usage != (Usage{In: 3, Out: 2, Known: true}) || r.Choices[0].Finish != Stop || r.Choices[0].StopSeq != "s" {
		t.Errorf("%+v", r)
	}
}

func TestMedia(t *testing.T) {
	for url, want := range map[string]Media{"data:image/png;base64,QUJD": {MIME: "image/png", Data: "QUJD"}, "https://h/x.png": {URL: "https://h/x.png"}, "data:text/plain,hi": {URL: "data:text/plain,hi"}, "data:x": {URL: "data:x"}, "": {}} {
		got := FromURL(url)
		if *got != want {
			t.Errorf("%q: %+v, want %+v", url, *got, want)
		}
		if got.DataURL() != url {
			t.Errorf("%q comes back as %q", url, got.DataURL())
		}
	}
}

func TestObject(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 2000) + "1" + strings.Repeat("}", 2000)
	for args, want := range map[string]string{`{"a":1}`: `{"a":1}`, " {} ": `{}`, "": `{}`, "  ": `{}`, "text": `{"input":"text"}`, `{"a":`: `{"input":"{\"a\":"}`, "[1]": `{"input":"[1]"}`} {
		if got := string(Object(args)); got != want {
			t.Errorf("%q: %s, want %s", args, got, want)
		}
	}
	if got := string(Object(deep)); !strings.HasPrefix(got, `{"input":`) {
		t.Errorf("arguments that nest too deep pass as an object: %.40s", got)
	}
}

// TestNames shows that Unflatten finds a tool and its namespace by the flat name, and
// that it leaves other names unchanged.
func TestNames(t *testing.T) {
	r := &Request{Tools: []ToolDef{{Name: "b", Namespace: "a"}, {Name: "free", Custom: json.RawMessage("null")}}}
	for name, want := range map[string]string{"a__b": "a/b false", "free": "/free true", "other": "/other false", "b": "/b false"} {
		p := Part{Name: name}
		r.Unflatten(&p)
		if got := fmt.Sprint(p.Namespace, "/", p.Name, " ", p.Custom); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	(*Request)(nil).Unflatten(&Part{})
	if FlatName("", "b") != "b" || r.Tools[0].Flat() != "a__b" {
		t.Error("flat names")
	}
}

// TestMembers shows that taking a member removes it, that the other members remain, and that
// null leaves the destination unchanged. An error names the member and contains no type name
// of Go. Documents that are neither objects nor null are errors.
func TestMembers(t *testing.T) {
	m, err := Split([]byte(`{"a":1,"b":null,"c":"x","d":[1]}`))
	if err != nil {
		t.Fatal(err)
	}
	var a int64
	b, c := "kept", ""
	if err := m.TakeAll("a", &a, "b", &b, "none", &b, "c", &c); err != nil || a != 1 || b != "kept" || c != "x" || len(m) != 1 {
		t.Errorf("%v: %d %q %q %v", err, a, b, c, m)
	}
	if err := m.TakeAll("d"); err != nil || len(m) != 1 {
		t.Errorf("a name without a destination: %v %v", err, m)
	}
	for doc, want := range map[string]string{`{"a":"x"}`: "a: a string does not belong here", `{"a":[1]}`: "a: an array does not belong here", `{"a":{}}`: "a: an object does not belong here", `{"a":true}`: "a: a boolean does not belong here", `{"a":1.5}`: "a: a number does not belong here"} {
		m, err := Split([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Take("a", &a); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", doc, err, want)
		}
	}
	for _, bad := range []string{"", "[]", `"x"`, "{"} {
		if _, err := Split([]byte(bad)); err == nil {
			t.Errorf("%q is an object", bad)
		}
	}
}

// TestPut shows that values that represent absent members are omitted from the document,
// and that other values, such as pointers to false and 0, are included.
func TestPut(t *testing.T) {
	o := Obj{}
	zero, no, none := 0.0, false, int64(0)
	for name, v := range map[string]any{"nil": nil, "text": "", "number": int64(0), "float": (*float64)(nil), "int": (*int64)(nil), "flag": (*bool)(nil), "list": []string{}, "map": map[string]string{}, "raw": json.RawMessage{}} {
		o.Put(name, v)
	}
	if len(o) != 0 {
		t.Errorf("%v", o)
	}
	o.Put("float", &zero)
	o.Put("flag", &no)
	o.Put("int", &none)
	o.Put("other", []int{})
	if b, err := o.Bytes(); err != nil || string(b) != `{"flag":false,"float":0,"int":0,"other":[]}` {
		t.Errorf("%s %v", b, err)
	}
}

func TestAlternate(t *testing.T) {
	message := func(role string, texts ...string) Message {
		m := Message{Role: role}
		for _, s := range texts {
			m.Parts = append(m.Parts, Part{Type: Text, Text: s})
		}
		return m
	}
	write := func(parts []Part) (out []string, err error) {
		for _, p := range parts {
			if p.Text == "bad" {
				return nil, fmt.Errorf("content: bad")
			}
			if p.Text != "" {
				out = append(out, p.Text)
			}
		}
		return out, nil
	}
	system, turns, err := Alternate([]Message{message(User, "a"), message(System, "s"), message(Tool, "b"), message(Assistant, ""), message(User, "c"), message(Assistant, "d"), message(Assistant, "e", "f"), message(System, "t")}, write)
	if err != nil || fmt.Sprint(system, turns) != "[s t] [{user [a b c]} {assistant [d e f]}]" {
		t.Errorf("%v %v %v", system, turns, err)
	}
	if _, _, err := Alternate([]Message{message(User, "bad")}, write); err == nil {
		t.Error("an error of a part is lost")
	}
}

// TestCollectIndex shows that events of an answer whose index is negative or too high
// are ignored and create no answer.
func TestCollectIndex(t *testing.T) {
	var c Collect
	for _, choice := range []int{-1, math.MinInt, maxChoices, math.MaxInt} {
		for _, e := range []Event{text("x"), {Kind: Signed}, begin(0), args(0, "{}"), {Kind: End, Finish: Stop}} {
			e.Choice = choice
			c.Add(&e)
		}
	}
	if r := c.Response(); len(r.Choices) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestUsageChecked(t *testing.T) {
	for _, c := range [][2]Usage{
		{{In: 10, Out: 5, Cached: 4, CacheWrite: 6, Reasoning: 5, Known: true}, {In: 10, Out: 5, Cached: 4, CacheWrite: 6, Reasoning: 5, Known: true}},
		{{In: maxTokens, Known: true}, {In: maxTokens, Known: true}}, {{In: maxTokens + 1, Known: true}, {}},
		{{In: 10, Out: -5, Known: true}, {}}, {{In: -1, Known: true}, {}}, {{In: 10, Cached: -1, Known: true}, {}}, {{In: 10, Out: math.MaxInt64, Known: true}, {}},
		{{In: 10, Cached: 12, CacheWrite: 3, Known: true}, {In: 10, Cached: 10, Known: true}}, {{In: 10, Cached: 4, CacheWrite: 9, Known: true}, {In: 10, Cached: 4, CacheWrite: 6, Known: true}}, {{}, {}},
	} {
		if got := c[0].Checked(); got != c[1] {
			t.Errorf("%+v: %+v, want %+v", c[0], got, c[1])
		}
	}
}

// TestContent shows which events contain text or a part of a tool call.
func TestContent(t *testing.T) {
	for _, c := range []struct {
		e    Event
		want bool
	}{{text("a"), true}, {text(""), false}, {Event{Kind: Signed, Part: Part{Text: "a"}}, false}, {begin(0), true}, {args(0, ""), true}, {Event{Kind: Begin}, false}, {Event{Kind: End}, false}} {
		if got := c.e.Content(); got != c.want {
			t.Errorf("%+v: %t", c.e, got)
		}
	}
}

// TestCheckIndex shows that only a negative index is an error, which names the member.
func TestCheckIndex(t *testing.T) {
	for index, want := range map[int]string{0: "<nil>", 1: "<nil>", -1: "index: -1 is negative"} {
		if got := fmt.Sprint(CheckIndex("index", index)); got != want {
			t.Errorf("%d: %s", index, got)
		}
	}
}

func TestPlainText(t *testing.T) {
	parts := []Part{{Type: Text, Text: "a"}, {Type: Thinking, Text: "b"}, {Type: Refusal, Text: "c"}, {Type: ToolResult, Text: "d"}}
	if got := PlainText(parts); got != "ac" {
		t.Errorf("%q", got)
	}
}

// TestDecoded shows how Content and Output decode a text, a list of parts and an absent
// content. Output omits parts of an unknown type, and Content returns the error.
func TestDecoded(t *testing.T) {
	type part struct{ Type, Text string }
	read := func(p *part) (Part, error) {
		switch p.Type {
		case "text":
			return Part{Type: Text, Text: p.Text}, nil
		case "bad":
			return Part{}, fmt.Errorf("text: bad")
		}
		return Part{}, fmt.Errorf("type %s: %w", p.Type, ErrUnknownType)
	}
	for raw, want := range map[string][2]string{
		"":                                 {"[] <nil>", "[] <nil>"},
		"null":                             {"[] <nil>", "[] <nil>"},
		`""`:                               {"[text=] <nil>", "[text=] <nil>"},
		`"a"`:                              {"[text=a] <nil>", "[text=a] <nil>"},
		`[]`:                               {"[] <nil>", "[] <nil>"},
		`[{"type":"text","text":"a"}]`:     {"[text=a] <nil>", "[text=a] <nil>"},
		`[{"type":"text"},{"type":"bad"}]`: {"[] content[1].text: bad", "[] content[1].text: bad"},
		`[{"type":"odd"},{"type":"text"}]`: {"[] content[0].type odd: is unknown", "[text=] <nil>"},
		`7`:                                {"[] content: a number does not belong here", "[] content: a number does not belong here"},
	} {
		show := func(parts []Part, err error) string {
			var out []string
			for _, p := range parts {
				out = append(out, p.Type+"="+p.Text)
			}
			return fmt.Sprint(out, " ", err)
		}
		if got := show(Content(json.RawMessage(raw), read)); got != want[0] {
			t.Errorf("content %s: %s, want %s", raw, got, want[0])
		}
		if got := show(Output(json.RawMessage(raw), read)); got != want[1] {
			t.Errorf("output %s: %s, want %s", raw, got, want[1])
		}
	}
}

// TestParameters shows the schemas of a function, a custom tool and a tool without one.
func TestParameters(t *testing.T) {
	schema, other := json.RawMessage(`{"a":1}`), json.RawMessage(`{"b":2}`)
	for _, c := range []struct {
		tool         ToolDef
		want, orElse string
	}{
		{ToolDef{Schema: schema}, string(schema), string(schema)},
		{ToolDef{Schema: schema, Custom: json.RawMessage("null")}, string(CustomSchema), string(CustomSchema)},
		{ToolDef{}, "", string(other)},
		{ToolDef{Schema: json.RawMessage{}, Custom: json.RawMessage{}}, "", string(other)},
	} {
		if got, or := string(c.tool.Parameters()), string(c.tool.ParametersOr(other)); got != c.want || or != c.orElse {
			t.Errorf("%+v: %s and %s", c.tool, got, or)
		}
	}
}

// TestAppendEvent shows the bytes of a server-sent event, and that an event that cannot be
// encoded adds none.
func TestAppendEvent(t *testing.T) {
	b := AppendEvent([]byte("x"), "done", Obj{"a": 1})
	if want := "xevent: done\ndata: {\"a\":1,\"type\":\"done\"}\n\n"; string(b) != want {
		t.Errorf("%q, want %q", b, want)
	}
	if b := AppendEvent([]byte("x"), "done", Obj{"a": func() {}}); string(b) != "x" {
		t.Errorf("%q", b)
	}
}
