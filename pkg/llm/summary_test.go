package llm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
)

// TestAbove checks the limits of a request that may go to either of two models.
func TestAbove(t *testing.T) {
	for _, c := range []struct{ a, b, want Limits }{
		{Limits{}, Limits{}, Limits{}},
		{Limits{1, 2, 3}, Limits{3, 2, 1}, Limits{3, 2, 3}},
		{Limits{Context: 5}, Limits{}, Limits{Context: 5}},
		{Limits{Image: 5}, Limits{}, Limits{Image: unknownImage}},
		{Limits{Image: unknownImage + 1}, Limits{}, Limits{Image: unknownImage + 1}},
		{Limits{Output: 5}, Limits{}, Limits{Output: unknownOutput}},
		{Limits{Output: unknownOutput + 1}, Limits{}, Limits{Output: unknownOutput + 1}},
	} {
		if got, other := c.a.Above(c.b), c.b.Above(c.a); got != c.want || other != c.want {
			t.Errorf("%v and %v: %v, %v", c.a, c.b, got, other)
		}
	}
}

// TestArgs checks the bytes that a request may send (Egress), whether its response may be
// stored (Stored), and which values of a summary are permitted (Known).
func TestArgs(t *testing.T) {
	a := Args{Bytes: 1000, History: 10}
	if got := a.Egress(3); got != 3*(2000+60+2048) {
		t.Errorf("%d bytes", got)
	}
	for params, want := range map[string]bool{`{}`: true, `{"store":true}`: true, `{"store":false}`: false, `{"store":"false"}`: true} {
		if got := (&Args{Params: Raw(params)}).Stored(); got != want {
			t.Errorf("%s: %v", params, got)
		}
	}
	for want, all := range map[bool][]Args{
		true: {{Params: Raw(`{}`), Model: "m", Capture: CapturePlain}, {Params: Raw(`{}`), Model: "m", Capture: CaptureOff, Cache: "use"}, {Params: Raw(`{"a":1}`), Model: "m", Capture: CaptureHashed}},
		false: {{Model: "m", Capture: CapturePlain}, {Params: Raw(`[]`), Model: "m", Capture: CapturePlain}, {Params: Raw(`{}`), Capture: CapturePlain}, {Params: Raw(`{}`), Model: "m"},
			{Params: Raw(`{}`), Model: "m", Capture: "some"}, {Params: Raw(`{}`), Model: "m", Capture: CapturePlain, Cache: "off"}},
	} {
		for _, a := range all {
			if a.Known() != want {
				t.Errorf("%+v: %v", a, !want)
			}
		}
	}
}

// TestRequest checks the body and the args of a proposal in the modes that need no key.
func TestRequest(t *testing.T) {
	body := []byte(`{"model":"m"}`)
	for mode, digest := range map[string]string{CapturePlain: "", CaptureOff: "", CaptureHashed: "sha256:c7ba6ea1dcbed4d7d3be7f5b0b9a34f3b4f41a4f6b4a7b6f6c1ff0a4ba15d8bd"} {
		a := Args{Capture: mode, Model: "m", Params: Raw(`{}`), Fields: []string{}, Tools: []string{}}
		var r propose.Request
		if err := Request(t.Context(), nil, &r, &a, body, []string{"pii"}); err != nil {
			t.Fatal(err)
		}
		if (a.Digest != "") != (digest != "") || a.Body != r.Body.Content.Commitment || a.Body == "" || !bytes.Equal(r.Args, contract.Bytes(&a)) || !r.Stream || r.Executor != Executor || r.Body.For != Executor || r.Labels[0] != "pii" {
			t.Errorf("%s: %+v %+v", mode, a, r)
		}
		if carried := len(r.Body.Carried) > 0; carried != (mode != CapturePlain) {
			t.Errorf("%s: carried %v", mode, carried)
		}
	}
}

// keys is one content key.
type keys struct{ key []byte }

func (k keys) Current(context.Context, string, string) (string, []byte, error) {
	return "k-1", k.key, nil
}
func (k keys) Key(context.Context, string, string) ([]byte, error) { return k.key, nil }

// TestEncrypted checks that a body is encrypted with the tenant's key, and that Attach returns
// an error if the store has no keys.
func TestEncrypted(t *testing.T) {
	body := []byte(`{"model":"m"}`)
	a := Args{Capture: CaptureEncrypted}
	if _, err := a.Attach(t.Context(), &blob.Store{}, blob.Under{}, body); err == nil || a.Body != "" {
		t.Errorf("%+v %v", a, err)
	}
	b, err := a.Attach(t.Context(), &blob.Store{Keys: keys{make([]byte, 32)}}, blob.Under{Subject: "ann"}, body)
	if err != nil || b.Content.Encryption == nil || b.Content.Encryption.KeyID != "k-1" || a.Body != b.Content.Commitment || a.Digest != "" {
		t.Errorf("%+v %+v %v", a, b, err)
	}
}

// TestFrame checks that a frame is decoded as it was encoded, and that ParseFrame rejects a
// frame that is cut off before the bytes of its End, or whose head is not JSON.
func TestFrame(t *testing.T) {
	for _, f := range []Frame{{}, {Data: []byte("x")}, {Data: []byte{}, End: []byte("end")}, {Head: &Head{Status: 200, Instance: "r-1"}, Data: bytes.Repeat([]byte("d"), 200), End: []byte("e")}} {
		b, err := f.Append([]byte("before"))
		if err != nil || string(b[:6]) != "before" {
			t.Fatal(string(b), err)
		}
		b = b[6:]
		got, err := ParseFrame(b)
		if err != nil || !bytes.Equal(got.Data, f.Data) || !bytes.Equal(got.End, f.End) || (got.Head == nil) != (f.Head == nil) || f.Head != nil && got.Head.Status != f.Head.Status {
			t.Errorf("%+v became %+v, %v", f, got, err)
		}
		for n := range len(b) - len(f.End) {
			if got, err := ParseFrame(b[:n]); err == nil {
				t.Errorf("%d of %d bytes are the frame %+v", n, len(b), got)
			}
		}
	}
	if _, err := ParseFrame([]byte("\x01x\x00")); err == nil {
		t.Error("a head that is no JSON is accepted")
	}
}

// TestSoft checks the number of lower-case letters and blanks that soft counts, for each byte at
// each position of a text of 17 bytes, and at the end of shorter texts.
func TestSoft(t *testing.T) {
	for at := range 17 {
		for c := range 256 {
			text := bytes.Repeat([]byte{'A'}, 17)
			text[at] = byte(c)
			for _, n := range []int{at + 1, 17} {
				want := 0
				if c >= 'a' && c <= 'z' || c == ' ' {
					want = 1
				}
				if got := soft(text[:n]); got != want {
					t.Errorf("%q: %d, want %d", text[:n], got, want)
				}
			}
			for i := range text {
				text[i] = byte(c)
			}
			want := 0
			if c >= 'a' && c <= 'z' || c == ' ' {
				want = 17
			}
			if got := soft(text); got != want {
				t.Errorf("%q: %d, want %d", text, got, want)
			}
		}
	}
}

// TestSpoken checks the tokens that are counted for texts, numbers, names and files.
func TestSpoken(t *testing.T) {
	for _, c := range []struct {
		raw    string
		tokens bool
		want   int64
	}{
		{`"ab"`, false, 1}, {`"abc"`, false, 2}, {`"AB"`, false, 2}, {`""`, false, 0}, {`"a b c d"`, false, 4},
		{`["ab","cd"]`, false, 2}, {`{"ab":"cd"}`, false, 2}, {`{"AB" : "CD"}`, false, 4},
		{`123`, false, 3}, {`123`, true, 1}, {`[1,22,333]`, true, 3}, {`[1,22,333]`, false, 6}, {`[90,19]`, true, 2}, {`100`, false, 3}, {`0`, true, 1}, {`-1.5`, false, 2}, {`[true,null]`, false, 0},
		{`{"data":"XXXX"}`, false, 2}, {`{"url" : "XXXX","text":"XX"}`, false, 2 + 2 + 2}, {`{"text":"XX","url":"XXXX"}`, false, 2 + 2 + 2},
		{`{"signature":"XXXX","data":"XX"}`, false, 5 + 2}, {`{"datum":"XXXX"}`, false, 3 + 4},
		{`["data","XXXX"]`, false, 2 + 4},
		{`"é"`, false, 2},
	} {
		p := &peek{reader: reader{doc: []byte(c.raw)}}
		(subjectReader{p}).spoken(p.doc, c.tokens)
		if p.tokens != c.want {
			t.Errorf("%s (token ids: %v): %d, want %d", c.raw, c.tokens, p.tokens, c.want)
		}
	}
}

// TestSummary checks members of summaries: the numbers of messages, images and answers, the
// earlier response, the tools, Whole and Stream, and the labels.
func TestSummary(t *testing.T) {
	for _, c := range []struct{ kind, members, want string }{
		{Chat, `"messages":"x"`, "messages 1"},
		{Chat, `"messages":[{},"x",[]]`, "messages 3"},
		{Responses, `"input":null,"previous_response_id":"r"`, "previous r"},
		{Responses, `"input":"","previous_response_id":"r"`, "messages 1 previous r"},
		{Embeddings, `"input":["a","b"]`, "messages 2"},
		{Embeddings, `"input":[1,2]`, "messages 1"},
		{Embeddings, `"input":[[1,2],[3]]`, "messages 2"},
		{Embeddings, `"input":[{"type":"image_url","image_url":{"url":"u"}}]`, "messages 1 images 1"},
		{Completions, `"prompt":["a"],"max_tokens":1`, "messages 1"},
		{Completions, `"prompt":["a","b"],"max_tokens":1`, "messages 2 answers 2"},
		{Completions, `"prompt":["a","b"],"n":3,"max_tokens":1`, "messages 2 answers 6"},
		{Chat, `"messages":[{}],"n":1024`, "messages 1 answers 1024"},
		{Chat, `"messages":[{}],"generation_config":{"candidate_count":2000}`, "messages 1 answers 1024"},
		{Chat, `"messages":[{"content":[{"type":"image"},{"type":"image_url","image_url":{"url":"u"}},{"type":"video"}]}]`, "messages 1 images 3"},
		{Chat, `"messages":[{"content":[{"image_url":{"url":"u"}},{"image_url":{"url":"u"}}]}]`, "messages 1 images 2"},
		{Chat, `"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"x"}}]}]`, "messages 1 user_file"},
		{Chat, `"messages":[{"content":[{"type":"audio","audio_url":{"url":"x"}}]}]`, "messages 1 whole user_file"},
		{Chat, `"messages":[{"content":[{"type":"text","file_id":null}]}]`, "messages 1"},
		{Chat, `"messages":[{"content":[{"type":"text","file_id":"f"}]}]`, "messages 1 whole user_file"},
		{Chat, `"messages":[{}],"system":[{"type":"document"}]`, "messages 1 whole user_file"},
		{Chat, `"messages":[{}],"stream":null`, "messages 1"},
		{Chat, `"messages":[{}],"stream_options":{"include_usage":false},"stream":true`, "messages 1 stream"},
		{Chat, `"messages":[{}],"stream_options":7,"stream":false`, "messages 1"},
		{Chat, `"messages":[{}],"background":true`, "messages 1"},
		{Chat, `"messages":[{}],"previous_response_id":null,"models":null,"toolConfig":null`, "messages 1"},
		{Responses, `"prompt":{"id":"p"},"input":null`, "tools prompt.p.* whole"},
		{Responses, `"prompt":"p","input":"x"`, "messages 1"},
		{Chat, `"messages":[{}],"plugins":null,"web_search_options":null,"mcp_servers":null,"preset":null`, "messages 1"},
		{Chat, `"messages":[{}],"preset":"x","search_parameters":{}`, "messages 1 tools preset.x.*,search_parameters whole"},
		{Chat, `"messages":[{}],"tools":[{"name":"a"}],"tool_choice":{"type":"auto","name":"a"}`, "messages 1 tools a"},
		{Chat, `"messages":[{}],"tools":[{"name":"a"},{"name":"a"}]`, "messages 1 tools a,a"},
		{Chat, `"messages":[{}],"tool_choice":"auto"`, "messages 1"},
		{Chat, `"messages":[{}],"tool_choice":{"type":"tool","name":"a","function":{"name":"b"},"custom":{"name":""}}`, "messages 1 tools b,a"},
		{Chat, `"messages":[{}],"tool_choice":{"function":"x","custom":null,"allowed_tools":"x","tools":"x"}`, "messages 1"},
		{Chat, `"messages":[{}],"tools":[{"type":"bash_1","name":"bash_1"},{"type":"shell"}]`, "messages 1 tools bash_1,shell"},
		{Messages, `"messages":[{}],"mcp_servers":[{"name":"a","tool_configuration":{"allowed_tools":["x","y"]}},{"name":"b","tool_configuration":null},{"name":"c","tool_configuration":{"allowed_tools":[]}}]`,
			"messages 1 tools mcp,mcp.a.x,mcp.a.y,mcp,mcp.b.*,mcp,mcp.c.* whole"},
		{Responses, `"input":"x","tools":[{"type":"mcp","server_label":"a","allowed_tools":{"tool_names":null,"read_only":true}}]`, "messages 1 tools mcp,mcp.a.* whole"},
		{Responses, `"input":"x","tools":[{"type":"mcp","name":"a","allowed_tools":7}]`, "messages 1 tools mcp,mcp.a.* whole"},
		{Responses, `"input":[{"type":"x","tools":null}]`, "messages 1"},
	} {
		a, labels, err := Peek(c.kind, []byte(`{"model":"m",`+c.members+`}`))
		if err != nil {
			t.Errorf("%s %s: %v", c.kind, c.members, err)
			continue
		}
		var got []string
		for name, n := range map[string]int64{"messages": a.Messages, "images": a.Images, "answers": a.Answers} {
			if n != 0 {
				got = append(got, fmt.Sprint(name, " ", n))
			}
		}
		slices.SortFunc(got, func(a, b string) int { return strings.Compare(b, a) }) // messages, images, answers
		if a.Previous != "" {
			got = append(got, "previous "+a.Previous)
		}
		if len(a.Tools) > 0 {
			got = append(got, "tools "+strings.Join(a.Tools, ","))
		}
		for name, set := range map[string]bool{"whole": a.Whole, "stream": a.Stream} {
			if set {
				got = append(got, name)
			}
		}
		if a.Images == 0 {
			got = append(got, labels...)
		} else if !slices.Equal(labels, []string{labelUserFile}) {
			t.Errorf("%s: %v", c.members, labels)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s %s: %s, want %s", c.kind, c.members, strings.Join(got, " "), c.want)
		}
	}
}

// TestThinking checks the output tokens that are reserved, including those for thinking.
// Embeddings and token counts reserve none.
func TestThinking(t *testing.T) {
	for _, c := range []struct {
		kind, members string
		out           int64
	}{
		{Chat, `"reasoning_effort":"low"`, DefaultOutput + maxEffort}, {Chat, `"reasoning_effort":"none"`, DefaultOutput}, {Chat, `"reasoning_effort":null`, DefaultOutput},
		{Chat, `"reasoning_effort":"low","max_tokens":10`, 10},
		{Chat, `"reasoning":{"effort":"high"}`, DefaultOutput + maxEffort},
		{Chat, `"reasoning":{"max_tokens":50}`, DefaultOutput + 50}, {Chat, `"reasoning":{"max_tokens":-1}`, DefaultOutput}, {Chat, `"reasoning":7`, DefaultOutput},
		{Chat, `"reasoning":{"max_tokens":50,"effort":"low"}`, DefaultOutput + maxEffort}, {Chat, `"reasoning":{"max_tokens":50000,"effort":"low"}`, DefaultOutput + 50000},
		{Chat, `"thinking_budget":60,"max_tokens":60`, 120}, {Chat, `"thinking_budget":59,"max_tokens":60`, 60}, {Chat, `"thinking_budget":61,"max_tokens":60`, 121},
		{Messages, `"output_config":{"effort":"low"}`, DefaultOutput + maxEffort}, {Messages, `"output_config":{"format":{"type":"x"}}`, DefaultOutput},
		{Chat, `"generationConfig":{"thinkingConfig":{"thinkingBudget":70},"maxOutputTokens":9}`, DefaultOutput + 70},
		{Chat, `"max_tokens":5,"maxTokens":9,"inferenceConfig":{"maxTokens":7}`, 9}, {Chat, `"max_tokens":5,"inferenceConfig":{"maxTokens":7}`, 7},
		{Chat, `"max_tokens":2147483648`, 1 << 31},
	} {
		a, _, err := Peek(c.kind, []byte(`{"model":"m","messages":[{}],`+c.members+`}`))
		if err != nil || a.Hold-a.In != c.out {
			t.Errorf("%s %s: %d %v, want %d", c.kind, c.members, a.Hold-a.In, err, c.out)
		}
	}
	for _, kind := range []string{Embeddings, CountTokens} {
		if a, _, err := Peek(kind, []byte(`{"model":"m","`+subject[kind]+`":["a"],"max_tokens":9}`)); err != nil || a.Hold != a.In || a.Unbound {
			t.Errorf("%s: %+v %v", kind, a, err)
		}
	}
}

// TestRefusals checks the member that is named in the error of a request with an invalid
// value, and that values at a limit are accepted.
func TestRefusals(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			if strings.Contains(format, "%") {
				fmt.Fprintf(&b, format, i)
			} else {
				b.WriteString(format)
			}
		}
		return b.String()
	}
	for _, c := range []struct{ kind, members, want string }{
		{Chat, `"messages":7`, "/messages"}, {Chat, `"messages":{}`, "/messages"}, {Chat, `"messages":""`, "/messages"}, {Chat, `"messages":null`, "/messages"},
		{Embeddings, `"input":[]`, "/input"}, {Completions, `"prompt":[]`, "/prompt"},
		{Chat, `"messages":[{}],"n":1025`, "/n"}, {Chat, `"messages":[{}],"n":1.5`, "/n"}, {Chat, `"messages":[{}],"n":true`, "/n"}, {Chat, `"messages":[{}],"max_tokens":2147483649`, "/max_tokens"}, {Chat, `"messages":[{}],"max_tokens":"5"`, "/max_tokens"},
		{Chat, `"messages":[{}],"stream_options":{"include_usage":1}`, "/stream_options/include_usage"}, {Chat, `"messages":[{}],"reasoning":{"max_tokens":1.5}`, "/reasoning/max_tokens"},
		{Chat, `"messages":[{}],"toolConfig":{}`, "/toolConfig"}, {Chat, `"messages":[{}],"previous_response_id":""`, "/previous_response_id"},
		{Responses, `"input":"x","previous_response_id":""`, "/previous_response_id"}, {Responses, `"input":"x","previous_response_id":"` + strings.Repeat("r", maxModel-1) + `"`, "/previous_response_id"},
		{Responses, `"input":"x","previous_response_id":"` + strings.Repeat("r", maxModel-2) + `"`, ""},
		{Responses, `"input":"x","background":true`, "/background"}, {Responses, `"input":"x","background":false`, ""},
		{Responses, `"input":"x","prompt":{"id":""}`, "/prompt/id"}, {Responses, `"input":"x","prompt":{"id":7}`, "/prompt/id"},
		{Chat, `"messages":[{}],"plugins":["web"]`, "/plugins/0"}, {Chat, `"messages":[{}],"plugins":[{"id":""}]`, "/plugins/0/id"}, {Chat, `"messages":[{}],"plugins":[{"id":7}]`, "/plugins/0/id"}, {Chat, `"messages":[{}],"plugins":[{}]`, "/plugins/0"},
		{Chat, `"messages":[{}],"tools":7`, "/tools"}, {Messages, `"messages":[{}],"mcp_servers":7`, "/mcp_servers"}, {Messages, `"messages":[{}],"mcp_servers":["a"]`, "/mcp_servers/0"}, {Messages, `"messages":[{}],"mcp_servers":[{"url":"u"}]`, "/mcp_servers/0"},
		{Responses, `"input":"x","tools":[{"type":"mcp","server_label":"a","allowed_tools":[""]}]`, "/tools/0/0"}, {Responses, `"input":"x","tools":[{"type":"mcp","server_label":"a","allowed_tools":[7]}]`, "/tools/0/0"},
		{Chat, `"messages":[{}],"tools":[{"type":"namespace","name":"n"}]`, "/tools/0"}, {Chat, `"messages":[{}],"tools":[{"type":"namespace","tools":[]}]`, "/tools/0"}, {Chat, `"messages":[{}],"tools":[{"type":"namespace","name":"n","tools":[],"function":{"name":"a"}}]`, "/tools/0"},
		{Chat, `"messages":[{}],"tools":[{"type":"namespace","name":"n","tools":[],"custom":{"name":"a"}}]`, "/tools/0"}, {Chat, `"messages":[{}],"tools":[{"type":"namespace","name":"n","tools":7}]`, "/tools/0/tools"},
		{Chat, `"messages":[{}],"tools":[{"name":""}]`, "/tools/0/name"}, {Chat, `"messages":[{}],"tools":[{"custom":{}}]`, "/tools/0/custom"}, {Chat, `"messages":[{}],"tools":[{"type":"custom","custom":{}}]`, "/tools/0/custom"},
		{Chat, `"messages":[{}],"tools":[{"custom":{"name":"a"}}]`, "/tools/0"}, {Chat, `"messages":[{}],"tools":[{"custom":{"name":"a"},"type":"function"}]`, "/tools/0"}, {Chat, `"messages":[{}],"tools":[{"type":"custom","custom":{"name":"a"},"name":"b"}]`, "/tools/0"},
		{Chat, `"messages":[{}],"tools":[{"type":"x","tools":[]}]`, "/tools/0"}, {Chat, `"messages":[{}],"tools":[{"a":1,"b":2}]`, "/tools/0"}, {Chat, `"messages":[{}],"tools":[{"description":"x"}]`, "/tools/0"}, {Chat, `"messages":[{}],"tools":[{"function":null}]`, "/tools/0"},
		{Chat, `"messages":[{}],"tools":[` + many(maxTools, `{"name":"a"}`) + `]`, ""}, {Chat, `"messages":[{}],"tools":[` + many(maxTools+1, `{"name":"a"}`) + `]`, "/tools/1024"},
		{Chat, `"messages":[{}],"tools":[` + many(maxTools, `{"name":"a"}`) + `],"functions":[{"name":"b"}]`, "/functions"}, {Chat, `"messages":[{}],"tools":[` + many(maxTools, `{"name":"a"}`) + `],"tool_choice":{"name":"b"}`, "/tool_choice"},
		{Responses, `"input":[` + many(maxRefs, `{"type":"item_reference","id":"i%d"}`) + `]`, ""}, {Responses, `"input":[` + many(maxRefs+1, `{"type":"item_reference","id":"i%d"}`) + `]`, "/input/256"},
		{Responses, `"input":[` + many(maxRefs, `{"type":"item_reference","id":"i%d"}`) + `,{"type":"item_reference","id":"i0"}]`, ""},
		{Chat, `"messages":[{}],` + many(maxFields-2, `"f%d":1`), ""}, {Chat, `"messages":[{}],` + many(maxFields-1, `"f%d":1`), "body"},
		{Chat, `"messages":[{}],"` + strings.Repeat("f", maxParam) + `":1`, ""}, {Chat, `"messages":[{}],"` + strings.Repeat("f", maxParam+1) + `":1`, "body"},
		{Chat, `"messages":[{}],"x":1,"X":2`, "/X"}, {Chat, `"messages":[{}],"a/b~c":1,"A/b~c":1`, "/A~1b~0c"},
		{Chat, `"messages":[{"content":[{"type":"text"},{"Type":"text"}]}]`, "/messages/0/content/1/Type"},
	} {
		_, _, err := Peek(c.kind, []byte(`{"model":"m",`+c.members+`}`))
		var fe *FieldError
		_ = errors.As(err, &fe)
		if c.want == "" && err != nil || c.want != "" && (fe == nil || fe.Field != c.want) {
			t.Errorf("%s %.120s: %v, want %q", c.kind, c.members, err, c.want)
		}
	}
	for n, ok := range map[int]bool{maxModel: true, maxModel + 1: false} {
		if _, _, err := Peek(Chat, []byte(`{"model":"`+strings.Repeat("m", n)+`","messages":[{}]}`)); (err == nil) != ok {
			t.Errorf("a model of %d bytes: %v", n, err)
		}
	}
}

// TestParams checks which members are recorded as parameters, and their values.
func TestParams(t *testing.T) {
	long := strings.Repeat("x", maxParam-2)
	for members, want := range map[string]string{
		`"a":1,"b":true,"c":false,"d":"x","e":null,"f":[],"g":{}`: `{"a":1,"b":true,"c":false,"d":"x"}`,
		`"a":"` + long + `","b":"` + long + `x"`:                  `{"a":"` + long + `"}`,
		`"system":"s","instructions":"i","suffix":"s"`:            `{}`,
		`"a":1234567890123456,"b":12345678901234567`:              `{"a":1234567890123456,"b":"12345678901234567"}`,
		`"a":1e400,"b":1.50`:                                      `{"a":"1e400","b":1.5}`,
		`"a":"\ud800"`:                                            `{"a":"\"\\ud800\""}`,
		`"stream":true,"stop":"x"`:                                `{"stop":"x"}`,
	} {
		a, _, err := Peek(Chat, []byte(`{"model":"m","messages":[{}],`+members+`}`))
		if err != nil || string(a.Params) != want {
			t.Errorf("%s: %s %v, want %s", members, a.Params, err, want)
		}
	}
}

// TestEdit checks the bytes that remain if a member is replaced or removed.
func TestEdit(t *testing.T) {
	for _, c := range []struct{ doc, value, want string }{
		{`{"a":1}`, "", `{}`}, {`{"a":1,"b":2}`, "", `{"b":2}`}, {` { "a" : 1 , "b":2}`, "", ` { "b":2}`}, {`{"b":2,"a":1}`, "", `{"b":2}`}, {`{"b":2 , "a":1 }`, "", `{"b":2  }`}, {`{"b":[1,{"a":1}],"a":"x,}","c":3}`, "", `{"b":[1,{"a":1}],"c":3}`},
		{`{"a":1}`, "2", `{"a":2}`}, {`{"b":1, "a" : [1] ,"c":3}`, "2", `{"b":1, "a" : 2 ,"c":3}`}, {`{"\u0061":1}`, "2", `{"\u0061":2}`}, {`{"b":"a"}`, "2", `{"b":"a"}`}, {`{}`, "2", `{}`},
	} {
		var value []byte
		if c.value != "" {
			value = []byte(c.value)
		}
		if got := edit([]byte(c.doc), "a", value); string(got) != c.want {
			t.Errorf("%s with %q: %s, want %s", c.doc, c.value, got, c.want)
		}
	}
}

// TestInput checks the input tokens that are reserved: at least a third of the bytes, and more
// if the texts for the model may have more tokens, in whichever member they are.
func TestInput(t *testing.T) {
	digits := strings.Repeat("7", 3000)
	ids := "[" + strings.Repeat("777777,", 999) + "777777]"
	for _, c := range []struct {
		kind, members string
		want          int64 // 0 means a third of the bytes
	}{
		{Responses, `"input":"` + digits + `"`, 3000 + perMessage},
		{Chat, `"messages":[{"content":"` + digits + `"}]`, 4 + 3000 + perMessage},
		{Chat, `"messages":[{},{}],"tools":[{"name":"` + digits + `"}]`, 2 + 3000 + 2*perMessage},
		{Chat, `"messages":[{}],"metadata":{"a":"` + digits + `"}`, 1 + 3000 + perMessage},
		{Chat, `"messages":[{}],"x_odd":"` + digits + `"`, 3000 + perMessage},
		{Chat, `"messages":[{}],"user":"` + digits + `"`, 0},
		{Chat, `"messages":[{}],"user":"` + digits + `","metadata":null`, 0},
		{Messages, `"messages":[{}],"system":"` + digits + `"`, 3000 + perMessage},
		{Responses, `"input":"x","instructions":"` + digits + `"`, 1 + 3000 + perMessage},
		{Completions, `"prompt":"x","suffix":"` + digits + `"`, 1 + 3000 + perMessage},
		{Completions, `"prompt":` + ids, 0}, {Embeddings, `"input":` + ids, 0}, {Chat, `"messages":[{}],"metadata":` + ids, 6000 + perMessage},
	} {
		body := `{"model":"m",` + c.members + `}`
		a, _, err := Peek(c.kind, []byte(body))
		want := c.want
		if want == 0 {
			want = int64(len(body))/3 + 1
		}
		if err != nil || a.In != want {
			t.Errorf("%s %.60s: %d %v, want %d", c.kind, c.members, a.In, err, want)
		}
	}
}

// TestEscapedNames checks that a name with escapes is that of the member that it spells.
func TestEscapedNames(t *testing.T) {
	if a, _, err := Peek(Chat, []byte(`{"\u006dodel":"m","message\u0073":[{}]}`)); err != nil || a.Model != "m" || a.Messages != 1 {
		t.Errorf("%+v %v", a, err)
	}
	if _, _, err := Peek(Chat, []byte(`{"\u006dodel":"m","model":"n","messages":[{}]}`)); err == nil {
		t.Error("two models are accepted")
	}
}
