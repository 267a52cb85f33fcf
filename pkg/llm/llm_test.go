package llm

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

func TestPeek(t *testing.T) {
	body := `{"model":"openai/gpt","stream":true,"stream_options":{"include_usage":true},"temperature":0.70,"seed":9223372036854775807,"n":2,"max_tokens":100,
		"messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"x"}}]}],
		"tools":[{"type":"function","function":{"name":"a"}},{"type":"custom","custom":{"name":"b"}},{"type":"namespace","name":"mcp__s","tools":[{"type":"function","name":"c"}]},{"type":"web_search"}],"x_odd":[1]}`
	a, labels, err := Peek(Chat, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if a.Model != "openai/gpt" || !a.Stream || !a.Usage || a.Messages != 2 || !slices.Equal(a.Tools, []string{"a", "b", "mcp__s.c", "web_search"}) || !slices.Equal(labels, []string{"user_file"}) {
		t.Errorf("%+v %v", a, labels)
	}
	if string(a.Params) != `{"max_tokens":100,"n":2,"seed":"9223372036854775807","temperature":0.7}` {
		t.Errorf("params %s", a.Params)
	}
	if a.In != int64(len(body))/3+1 || a.Hold != a.In+200 {
		t.Errorf("hold %d of %d", a.In, a.Hold)
	}
	a.Capture = CapturePlain
	if _, err := a.Attach(t.Context(), nil, blob.Under{}, []byte(body)); err != nil {
		t.Fatal(err)
	}
	var b Args
	if err := contract.Decode(contract.Bytes(a), &b); err != nil || string(contract.Bytes(&b)) != string(contract.Bytes(a)) {
		t.Errorf("the summary does not read back: %v", err)
	}
	for body, field := range map[string]string{`{}`: "/model", `{"model":""}`: "/model", `{"model":"m"}`: "/messages", `{"model":"m","messages":[]}`: "/messages", `{"model":"m","messages":"x"}`: "",
		`{"model":"m","messages":[{}],"stream":"yes"}`: "/stream", `{"model":"m","messages":[{}],"max_tokens":-1}`: "/max_tokens", `{"model":"m","messages":[{}],"n":99999}`: "/n",
		`{"model":"m","messages":[{}],"tools":[{}]}`: "/tools/0", `{"model":"m","Model":"n","messages":[{}]}`: "/Model", `nope`: "body", `[1]`: "body", `{"model":"m","messages":[{}]}x`: "body",
		`{"model":"` + strings.Repeat("m", 300) + `","messages":[{}]}`: "/model"} {
		_, _, err := Peek(Chat, []byte(body))
		var fe *FieldError
		_ = errors.As(err, &fe)
		if field == "" && err != nil || field != "" && (fe == nil || fe.Field != field) {
			t.Errorf("%.80s: %v, want field %q", body, err, field)
		}
	}
}

// TestFiles checks that images and files are recognized at several places of a request,
// and that a request is refused if two readers could interpret its content differently.
func TestFiles(t *testing.T) {
	const file = `{"type":"im\u0061ge","source":{}}`
	for messages, want := range map[string]string{
		`[{"role":"user","content":"x"}]`:                                                "",
		`[{"role":"user","content":[{"type":"text","text":"image"}]}]`:                   "",
		`[{"role":"user","content":[` + file + `]}]`:                                     "user_file",
		`[{"type":"input_image"}]`:                                                       "user_file",
		`[{"role":"user","content":[{"type":"tool_result","content":[` + file + `]}]}]`:  "user_file",
		`[{"type":"function_call_output","output":[{"type":"input_file"}]}]`:             "user_file",
		`[{"role":"user","content":"x","content":[` + file + `]}]`:                       "refused",
		`[{"role":"user","content":"x","Content":[` + file + `]}]`:                       "refused",
		`[{"role":"user","content":[{"type":"text","type":"image"}]}]`:                   "refused",
		`[{"role":"user","content":[{"type":"tool_result","content":[],"content":[]}]}]`: "refused",
	} {
		_, labels, err := Peek(Chat, []byte(`{"model":"m","messages":`+messages+`}`))
		got := strings.Join(labels, ",")
		if err != nil {
			got = "refused"
		}
		if got != want {
			t.Errorf("%s: %s %v, want %s", messages, got, err, want)
		}
	}
}

func BenchmarkPeek(b *testing.B) {
	long := strings.Repeat("The quick brown fox jumps over the lazy dog.\\n", 1780)
	for name, content := range map[string]string{"text": `"` + long + `"`, "parts": `[{"type":"text","text":"` + long + `"}]`} {
		body := []byte(`{"model":"m","messages":[{"role":"user","content":` + content + `}]}`)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := Peek(Chat, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func FuzzPeek(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"name":"a"}],"a":1.50}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, k := range Kinds {
			a, labels, err := Peek(k, body)
			if err != nil {
				continue
			}
			a.Capture = CaptureOff
			p, err := a.Attach(t.Context(), nil, blob.Under{}, body)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := p.Content.Open(p.Carried); err != nil || string(got) != string(body) {
				t.Fatalf("the body does not open: %v", err)
			}
			var b Args
			if err := contract.Decode(contract.Bytes(a), &b); err != nil {
				t.Fatalf("%v: %s %v", err, contract.Bytes(a), labels)
			}
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte{2, '{', '}', 1, 'x', 'y'})
	f.Add([]byte{0, 0})
	f.Add([]byte{0, 9, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := ParseFrame(b)
		if err != nil {
			return
		}
		b, err = x.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if y, err := ParseFrame(b); err != nil || !reflect.DeepEqual(x, y) {
			t.Fatalf("%v became %v, %v", x, y, err)
		}
	})
}
