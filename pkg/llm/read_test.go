package llm

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// FuzzCheck compares Check with the combination of canon.CheckDepth and json.Valid, and
// checks that skip reads every valid document to its end.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.5e+7,true,false,null,"x\u00e9\"\\/",{}],"b":{}}`, `[]`, ` "x" `, `-`, `01`, `1.`, `1e`, `{"a"}`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `{"a":1 "b":2}`, `tru`, `nulll`, `true`, `false`, `null`, `[true`, `t`, `-1`, `1e5`, `0`, `9`, `"a"`, `"`, `"\u00"`, `"\uAfF0"`, `"\ug000"`, `"\x"`, `"\`,
		`"\u12g4"`, "\"\x01\"", "\"12345678\x1f\"", `"1234567\"`, `"abcdefgh\`, `[[[[`, `]`, `[}`, `{]`, `[1 2]`, `1 1`, ``, ` `, strings.Repeat("[", 128) + strings.Repeat("]", 128), strings.Repeat("[", 129) + strings.Repeat("]", 129),
		strings.Repeat(`{"a":`, 127) + `[]` + strings.Repeat("}", 127)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		want := canon.CheckDepth(doc) == nil && json.Valid(doc)
		if err := Check(doc); (err == nil) != want {
			t.Fatalf("%q: %v, want valid %v", doc, err, want)
		}
		if want {
			i := blank(doc, 0)
			if end := skip(doc, i); blank(doc, end) != len(doc) {
				t.Fatalf("%q: the value ends at %d", doc, end)
			}
		}
	})
}

// TestDepth checks that a document with millions of nested lists or objects is refused
// without exhausting the stack.
func TestDepth(t *testing.T) {
	for _, open := range []string{"[", `{"a":`} {
		deep := `{"model":"m","messages":` + strings.Repeat(open, 16<<20/len(open))
		var fe *FieldError
		if _, _, err := Peek(Chat, []byte(deep)); !errors.As(err, &fe) || fe.Field != "body" {
			t.Errorf("%v", err)
		}
	}
}

// TestTools checks that a request is refused, with the pointer of the invalid member, if
// the name of a tool is missing or ambiguous or a member is not permitted. For every
// other request it checks the tools in the summary.
func TestTools(t *testing.T) {
	for _, c := range []struct{ kind, members, want string }{
		{Chat, `"tools":[{"type":"function","function":{"name":"rm_rf"},"name":"safe"}]`, "/tools/0"},
		{Chat, `"tools":[{"type":"function","Function":{"name":"rm_rf"},"name":"safe"}]`, "/tools/0/Function"},
		{Chat, `"tools":[{"type":"function","function":{"Name":"rm_rf","name":"safe"}}]`, "/tools/0/function/Name"},
		{Chat, `"tools":[{"type":"function","function":{"name":"a","n\u0061me":"b"}}]`, "/tools/0/function/name"},
		{Chat, `"tools":[{"type":"function","function":{"name":"a"},"type":"custom"}]`, "/tools/0/type"},
		{Chat, `"tools":[{"type":"function","function":{"name":"a"},"custom":{"name":"b"}}]`, "/tools/0"},
		{Chat, `"tools":[{"type":"web_search","function":{"name":"a"}}]`, "/tools/0"},
		{Chat, `"tools":[{"type":"function","function":{"name":"a"},"tools":[{"name":"b"}]}]`, "/tools/0"},
		{Chat, `"tools":[{"type":"function","function":{"name":"a"},"functionDeclarations":[{"name":"b"}]}]`, "/tools/0"},
		{Chat, `"tools":[{"type":"namespace","name":"a","tools":[{"type":"namespace","name":"b","tools":[{"name":"c"}]}]}]`, "/tools/0/tools/0"},
		{Chat, `"tools":[{"type":"function","function":{"name":7}}]`, "/tools/0/function/name"},
		{Chat, `"tools":[{"type":"function","function":"a"}]`, "/tools/0/function"},
		{Chat, `"tools":[{"type":["function"],"name":"a"}]`, "/tools/0/type"},
		{Chat, `"tools":["rm_rf"]`, "/tools/0"}, {Chat, `"tools":{"name":"rm_rf"}`, "/tools"}, {Chat, `"tools":[{}]`, "/tools/0"}, {Chat, `"tools":[[{"name":"a"}]]`, "/tools/0"},
		{Chat, `"Tools":[{"name":"a"}]`, "/Tools"}, {Chat, `"TOOLS":[]`, "/TOOLS"}, {Chat, `"toolſ":[]`, "/toolſ"}, {Chat, `"MAX_TOKENS":5`, "/MAX_TOKENS"}, {Chat, `"max__tokens":5`, ""}, {Chat, `"Generationconfig":{}`, "/Generationconfig"},
		{Chat, `"tool_choice":{"type":"function","Function":{"name":"a"}}`, "/tool_choice/Function"},
		{Chat, `"functions":[{"name":"a"},{"Name":"b","name":"c"}]`, "/functions/1/Name"},
		{Chat, `"reasoning":{"Max_tokens":5}`, "/reasoning/Max_tokens"}, {Chat, `"models":["a/b"]`, "/models"}, {Chat, `"previous_response_id":"resp_1"`, "/previous_response_id"},
		{Responses, `"conversation":"conv_1"`, "/conversation"}, {Responses, `"conversation":{"id":"conv_1"}`, "/conversation"}, {Responses, `"background":true`, "/background"}, {Responses, `"previous_response_id":["resp_1"]`, "/previous_response_id"},
		{Responses, `"tools":[{"type":"mcp","server_url":"http://x"}]`, "/tools/0"},
		{Messages, `"mcp_servers":[{"type":"url","url":"u","Name":"a"}]`, "/mcp_servers/0/Name"},

		{Chat, `"tools":null`, ""},
		{Chat, `"tools":[{"type":"function","function":{"name":"a"}},{"type":"custom","custom":{"name":"b"}},{"function":{"name":"c"},"x_odd":1},{"name":"d"}]`, "a b c d"},
		{Chat, `"tools":[{"type":"web_search"},{"type":"code_interpreter","name":"harmless"},{"google_search":{}}]`, "web_search code_interpreter harmless google_search"},
		{Chat, `"web_search_options":{},"plugins":[{"id":"web"}]`, "web_search plugin.web"},
		{Chat, `"functions":[{"name":"old"}],"function_call":{"name":"other"}`, "old other"},
		{Chat, `"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"hidden"}},{"type":"web_search"}]}}`, "hidden web_search"},
		{Messages, `"tool_choice":{"type":"tool","name":"a"},"tools":[{"name":"a","input_schema":{"Name":1,"name":2}}]`, "a"},
		{Messages, `"tools":[{"type":"bash_20250124","name":"bash"},{"type":"custom","name":"x"}],"mcp_servers":[{"type":"url","url":"u","name":"gh","tool_configuration":{"allowed_tools":["push"]}},{"type":"url","url":"u","name":"open"}]`, "bash_20250124 bash x mcp mcp.gh.push mcp mcp.open.*"},
		{Messages, `"tools":[{"type":"mcp_toolset","mcp_server_name":"gh"}]`, "mcp_toolset mcp mcp.gh.*"},
		{Responses, `"tools":[{"type":"mcp","server_label":"gh","server_url":"u","allowed_tools":{"tool_names":["pull"]}},{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]`, "mcp mcp.gh.pull n.f"},
		{Responses, `"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"},{"type":"web_search"}]}]`, "/tools/0/tools/1"},
		{Responses, `"prompt":{"id":"pmpt_1"},"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"x"}]}`, "prompt.pmpt_1.* x"},
		{Responses, `"input":[{"type":"tool_search_output","id":"t","tools":[{"type":"function","name":"late"}]}]`, "late"},
	} {
		body := `{"model":"m",` + c.members
		if s := subject[c.kind]; !strings.Contains(c.members, `"`+s+`":`) {
			body += `,"` + s + `":[{"role":"user","content":"x"}]`
		}
		a, _, err := Peek(c.kind, []byte(body+"}"))
		got := ""
		var fe *FieldError
		if errors.As(err, &fe) {
			got = fe.Field
		} else if err == nil {
			got = strings.Join(a.Tools, " ")
		}
		if got != c.want {
			t.Errorf("%s %s: %q (%v), want %q", c.kind, c.members, got, err, c.want)
		}
	}
}

// TestCase checks, for each member of three requests, that the request is refused if the
// name of the member is written in another case, or if the member occurs twice.
func TestCase(t *testing.T) {
	for _, c := range []struct{ kind, body string }{
		{Chat, `{"model":"m","stream":false,"max_tokens":5,"max_completion_tokens":5,"n":1,"best_of":1,"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"u","detail":"low"}},{"type":"file","file":{"file_id":"f"}},{"type":"input_audio","input_audio":{"data":"","format":"wav"}}]},{"role":"assistant","content":null,"refusal":"r","tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{}"}}],"reasoning_details":[{"type":"t","text":"x"}]}],
			"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{},"strict":true}}],"tool_choice":{"type":"function","function":{"name":"f"}},"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{},"strict":true}},"reasoning_effort":"low","stream_options":{"include_usage":true},"generationConfig":{"maxOutputTokens":5,"thinkingConfig":{"thinkingBudget":5}}}`},
		{Responses, `{"model":"m","instructions":"i","max_output_tokens":5,"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"},{"type":"input_image","image_url":"u"}]},{"type":"function_call_output","call_id":"c","output":[{"type":"input_file","file_id":"f"}]}],"reasoning":{"effort":"low"},"text":{"format":{"type":"text"}},"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}],"store":true,"prompt":{"id":"p"}}`},
		{Messages, `{"model":"m","max_tokens":5,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"base64","data":"x","media_type":"image/png"}}]}]}],"thinking":{"type":"enabled","budget_tokens":1024},"output_config":{"effort":"low"},"tools":[{"name":"f","input_schema":{}}],"mcp_servers":[{"type":"url","url":"u","name":"n","tool_configuration":{"allowed_tools":["a"]}}]}`},
	} {
		if _, _, err := Peek(c.kind, []byte(c.body)); err != nil {
			t.Fatal(err)
		}
		names := 0
		for i := 0; i < len(c.body); i++ {
			if c.body[i] != '"' {
				continue
			}
			end := closing([]byte(c.body), i)
			if name := c.body[i+1 : end]; c.body[end+1] == ':' {
				names++
				for _, odd := range []string{strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:], strings.Replace(name, "s", "ſ", 1), strings.Replace(name, "k", "\u212a", 1)} {
					if odd == name {
						continue
					}
					if _, _, err := Peek(c.kind, []byte(c.body[:i+1]+odd+c.body[end:])); err == nil {
						t.Errorf("%s: %s as %s passes", c.kind, name, odd)
					}
				}
				if _, _, err := Peek(c.kind, []byte(c.body[:i]+`"`+name+`":null,`+c.body[i:])); err == nil {
					t.Errorf("%s: a second %s passes", c.kind, name)
				}
			}
			i = end
		}
		if names < 20 {
			t.Errorf("%d names", names)
		}
	}
}

// TestHold checks the number of output tokens that Hold includes and whether the answers
// are unbounded. It also checks that In is not too small for some texts, and for which
// requests Whole is set.
func TestHold(t *testing.T) {
	for _, c := range []struct {
		kind, members string
		out           int64 // expected Hold without the input
		unbound       bool
	}{
		{Chat, `"max_tokens":100`, 100, false},
		{Chat, `"max_tokens":100,"max_completion_tokens":300`, 300, false},
		{Chat, `"max_output_tokens":1`, DefaultOutput, true},
		{Chat, `"max_tokens":null`, DefaultOutput, true},
		{Chat, `"max_tokens":0`, DefaultOutput, true},
		{Chat, `"max_tokens":10,"max_new_tokens":9000`, 9000, false},
		{Chat, `"max_tokens":10,"generationConfig":{"maxOutputTokens":9000,"candidateCount":3}`, 27000, false},
		{Chat, `"max_tokens":100,"n":3`, 300, false},
		{Chat, `"max_tokens":100,"prediction":{"type":"content","content":"abc"}`, 134, false},
		{Completions, `"max_tokens":100,"n":2,"best_of":20`, 2000, false},
		{Completions, `"max_tokens":100,"prompt":["a","b","c"]`, 300, false},
		{Completions, `"max_tokens":100,"prompt":[[1,2],[3]]`, 200, false},
		{Completions, `"max_tokens":100,"prompt":[1,2,3]`, 100, false},
		{Messages, `"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024}`, 2000, false},
		{Messages, `"max_tokens":10,"thinking":{"type":"enabled","budget_tokens":32000}`, 32010, false},
		{Responses, `"max_output_tokens":50,"n":4`, 200, false},
		{Responses, `"max_tokens":50`, DefaultOutput, true},
	} {
		body := `{"model":"m",` + c.members
		if s := subject[c.kind]; !strings.Contains(c.members, `"`+s+`":`) {
			body += `,"` + s + `":` + map[bool]string{true: `"x"`, false: `[{"role":"user","content":"x"}]`}[c.kind == Completions]
		}
		a, _, err := Peek(c.kind, []byte(body+"}"))
		if err != nil || a.Hold-a.In != c.out || a.Unbound != c.unbound {
			t.Errorf("%s %s: %+v %v, want %d", c.kind, c.members, a, err, c.out)
		}
	}
	for text, least := range map[string]int64{strings.Repeat("7", 3000): 3000, strings.Repeat("€", 1000): 3000, strings.Repeat("q ", 1000): 1000, strings.Repeat("[1]", 1000): 3000, strings.Repeat("QZ", 1000): 2000} {
		if a, _, err := Peek(Chat, []byte(`{"model":"m","messages":[{"role":"user","content":"`+text+`"}]}`)); err != nil || a.In < least {
			t.Errorf("%.20s: %d %v, want %d", text, a.In, err, least)
		}
	}
	for members, whole := range map[string]bool{`"tools":[{"type":"web_search"}]`: true, `"tools":[{"type":"mcp","server_label":"x"}]`: true, `"tools":[{"type":"function","name":"x"}]`: false,
		`"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]`: true, `"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]`: true} {
		if !strings.Contains(members, `"input"`) {
			members += `,"input":"x"`
		}
		if a, _, err := Peek(Responses, []byte(`{"model":"m",`+members+`}`)); err != nil || a.Whole != whole {
			t.Errorf("%s: %+v %v", members, a, err)
		}
	}
}

// TestReferences checks that the summary lists the ids of exactly the items that a
// provider stores, and that a reference without an id is refused.
func TestReferences(t *testing.T) {
	for input, want := range map[string]string{
		`[{"type":"item_reference","id":"msg_1"},{"id":"msg_2"},{"role":"user","content":"x"}]`:                                         "msg_1 msg_2",
		`[{"type":"reasoning","id":"rs_1","summary":[]},{"type":"reasoning","id":"rs_2","encrypted_content":"x"}]`:                      "rs_1",
		`[{"type":"message","role":"assistant","id":"msg_1","content":"x"},{"type":"function_call","id":"fc","call_id":"c"}]`:           "",
		`[{"type":"image_generation_call","id":"ig_1"},{"type":"mcp_approval_response","approval_request_id":"mcpr_1"}]`:                "ig_1 mcpr_1",
		`[{"type":"item_reference","role":"user","id":"msg_1"}]`:                                                                        "msg_1",
		`[{"type":"item_reference","id":"msg_1","content":[{"type":"message","id":"msg_2","role":"user"}]}]`:                            "msg_1",
		`[{"type":"message","role":"user","id":"msg_1","content":[{"type":"input_text","text":"x","id":"part"}],"status":"completed"}]`: "",
		`[{"role":"user","id":"msg_1","content":"x"},{"role":null,"id":"msg_2"},{"type":"x","role":"user","id":"msg_3"}]`:               "msg_2 msg_3",
		`[{"type":"reasoning","id":"rs_1","encrypted_content":null}]`:                                                                   "rs_1",
		`[{"type":"item_reference"}]`: "refused",
	} {
		a, _, err := Peek(Responses, []byte(`{"model":"m","input":`+input+`}`))
		got := "refused"
		if err == nil {
			got = strings.Join(a.Refs, " ")
		}
		if got != want {
			t.Errorf("%s: %s %v, want %s", input, got, err, want)
		}
	}
}

// TestWithhold checks that the removed tools are absent from the result, that the other
// tools and members remain, and that a stored prompt cannot be removed.
func TestWithhold(t *testing.T) {
	for _, c := range []struct{ kind, members, names, want string }{
		{Chat, `"tools":[{"type":"function","function":{"name":"a"}}, {"type":"function","function":{"name":"b"}}]`, "b", `"tools":[{"type":"function","function":{"name":"a"}}]`},
		{Chat, `"tools":[{"type":"function","function":{"name":"b"}}],"tool_choice":{"type":"function","function":{"name":"b"}},"x":1`, "b", `"x":1`},
		{Messages, `"tools":[{"type":"bash_20250124","name":"bash"},{"name":"a"}]`, "bash", `"tools":[{"name":"a"}]`},
		{Messages, `"tools":[{"type":"bash_20250124","name":"bash"},{"name":"a"}]`, "bash_20250124", `"tools":[{"name":"a"}]`},
		{Messages, `"mcp_servers":[{"type":"url","name":"a"},{"type":"url","name":"b"}],"tools":[{"type":"mcp_toolset","mcp_server_name":"b"},{"name":"x"}]`, "mcp.b.*", `"mcp_servers":[{"type":"url","name":"a"}],"tools":[{"name":"x"}]`},
		{Responses, `"tools":[{"type":"namespace","name":"n","tools":[{"name":"a"},{"name":"b"}]}]`, "n.b", `"tools":[{"type":"namespace","name":"n","tools":[{"name":"a"}]}]`},
		{Chat, `"functions":[{"name":"b"}],"function_call":{"name":"b"},"web_search_options":{}`, "b web_search", ``},
		{Responses, `"prompt":{"id":"p"}`, "prompt.p.*", "error"},
		{Chat, `"functions":[{"name":"b"}],"function_call":"auto"`, "b", ``},
		{Chat, `"tools":[{"name":"b"}],"tool_choice":"auto","parallel_tool_calls":true`, "b", ``},
		{Chat, `"plugins":[{"id":"web"}],"tools":[{"name":"a"}],"tool_choice":"auto"`, "plugin.web", `"tools":[{"name":"a"}],"tool_choice":"auto"`},
	} {
		tail := `"` + subject[c.kind] + `":[{"role":"user","content":"x"}],"model":"m"`
		got, err := Withhold(c.kind, []byte("{"+c.members+","+tail+"}"), strings.Fields(c.names))
		want := "{" + c.want + "," + tail + "}"
		if c.want == "" {
			want = "{" + tail + "}"
		}
		if c.want == "error" {
			if err == nil {
				t.Errorf("%s: no error", c.members)
			}
			continue
		}
		if err != nil || string(got) != want {
			t.Errorf("%s\n got %s %v\nwant %s", c.members, got, err, want)
			continue
		}
		a, _, err := Peek(c.kind, got)
		if err != nil || slices.ContainsFunc(a.Tools, func(n string) bool { return slices.Contains(strings.Fields(c.names), n) }) {
			t.Errorf("%s: still offered: %+v %v", got, a, err)
		}
	}
}

// TestFind checks which names are those of a member, in the same or in another case.
func TestFind(t *testing.T) {
	s := members("aZ sk " + strings.Repeat("x", 2*maxName) + " " + strings.Repeat("y", 2*maxName+1))
	for name, want := range map[string]string{
		"aZ": "aZ exact", "az": "aZ", "AZ": "aZ", "Az": "aZ", "sk": "sk exact", "ſ\u212a": "sk", "SK": "sk", "a": "", "aZ ": "", "a[": "", "`z": "", "a{": "", "é": "", "aé": "", "": "",
		strings.Repeat("x", 2*maxName): strings.Repeat("x", 2*maxName) + " exact", strings.Repeat("y", 2*maxName+1): "",
	} {
		k, found, exact := s.find([]byte(name))
		got := k.name
		if exact {
			got += " exact"
		}
		if got != want || found != (want != "") {
			t.Errorf("%q: %q %v, want %q", name, got, found, want)
		}
	}
}

// TestChanged compares Check with canon.CheckDepth and json.Valid for documents that are cut
// off or have one byte replaced. For the valid ones it checks that skip reads to the end.
func TestChanged(t *testing.T) {
	compare := func(doc []byte) {
		want := canon.CheckDepth(doc) == nil && json.Valid(doc)
		if err := Check(doc); (err == nil) != want {
			t.Errorf("%q: %v, want valid %v", doc, err, want)
		}
		if want {
			if end := skip(doc, blank(doc, 0)); blank(doc, end) != len(doc) {
				t.Errorf("%q: the value ends at %d", doc, end)
			}
		}
	}
	for _, text := range []string{`{"a":[1,-0.5e+7,true],"b":{}}`, ` [ null , false ] `, `"\u09aF\\\\\"\\" `, `"12345678"`, `["\\","a\\\\",{"\"":"\\\\\\"}]`, `[10,0.25,1E-9,-0]`, "{\"a\"\t:\r\n1}", `"1234567\\"`, `[{"a":[{}]},[]]`} {
		for n := range len(text) + 1 {
			compare([]byte(text)[:n:n]) // with no byte after it
		}
		for i := range len(text) {
			for _, c := range []byte("\"\\/{}[],: \t\n\r\x00\x1f\x20-+.eE019afAFgGutnx@`:\x7f\x80\xff") {
				doc := []byte(text)
				doc[i] = c
				compare(doc)
			}
		}
	}
}
