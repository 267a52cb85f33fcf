package llmrouter

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

// parrot is an API that no other provider has. It receives text and returns it; a stream
// has one event per word.
var parrot = &dialect.API{
	Name: "parrot", Rank: 9, Path: func(model string, stream bool) string {
		if stream {
			return "/say/" + model + "/words"
		}
		return "/say/" + model
	},
	Build: func(r *ir.Request) ([]byte, error) {
		return json.Marshal(map[string]string{"say": ir.PlainText(r.Messages[len(r.Messages)-1].Parts)})
	},
	Parse: func(body []byte, _ string) (*ir.Response, error) {
		said := gjson.GetBytes(body, "said").Str
		return &ir.Response{ID: "p1", Usage: ir.Usage{In: 1, Out: 2, Known: true}, Choices: []ir.Answer{{Finish: ir.Stop, Parts: []ir.Part{{Type: ir.Text, Text: said}}}}}, nil
	},
	Decoder: func(string) dialect.Decoder { return &parrotWords{} },
	Fault: func(status int, header func(string) string, _ []byte) *ir.Fault {
		return &ir.Fault{Status: status, Message: header("X-Parrot-Says")}
	},
}

type parrotWords struct{ done bool }

func (w *parrotWords) Done() bool { return w.done }

func (w *parrotWords) Event(name string, data []byte) ([]ir.Event, error) {
	if w.done = name == "end"; w.done {
		return []ir.Event{{Kind: ir.End, Finish: ir.Stop}}, nil
	}
	return []ir.Event{{Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: string(data)}}}, nil
}

// TestNewProvider shows that a provider with an API of its own can be added by one value
// in the list: the chat, responses and messages APIs can use it, for documents and
// streams, and its errors are classified.
func TestNewProvider(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		say := gjson.GetBytes(body, "say").Str
		switch {
		case r.Header.Get("X-Parrot-Key") != "seed":
			w.Header().Set("X-Parrot-Says", "no key")
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/say/polly/words":
			for word := range strings.FieldsSeq(say) {
				_, _ = io.WriteString(w, "data: "+word+"\n\n")
			}
			_, _ = io.WriteString(w, "event: end\ndata: x\n\n")
		case r.URL.Path == "/say/polly":
			_, _ = io.WriteString(w, `{"said":"`+say+`"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	own := provider.Kind{Name: "parrot", Trace: "parrot", Base: srv.URL, APIs: []*dialect.API{parrot}, Authorize: provider.KeyIn("X-Parrot-Key")}
	list := provider.NewRegistry(append([]provider.Kind{own}, providers.All.Kinds()...)...)
	p, err := list.New(provider.Config{Name: "p", Kind: "parrot"}, srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	for kind, body := range map[string]string{llm.Chat: `{"model":"p/polly","messages":[{"role":"user","content":"good morning"}]}`, llm.Responses: `{"model":"p/polly","input":"good morning"}`,
		llm.Messages: `{"model":"p/polly","max_tokens":9,"messages":[{"role":"user","content":"good morning"}]}`} {
		api := callerOf(kind)
		a := &attempt{up: &upstream{Provider: p}, api: apiFor(p, api), cand: route.Candidate{Provider: "p", Model: "polly"},
			c: &call{s: &Service{}, api: api, body: []byte(body), args: llm.Args{Model: "p/polly"}, w: &execute.Work{Call: &contract.Call{ID: "c-1", Kind: kind}}}}
		a.ans = answer{caller: api, Frame: dialect.Frame{ID: "x", Model: "p/polly", Body: []byte(body)}}
		sent, err := a.request(t.Context())
		if err != nil {
			t.Fatal(kind, err)
		}
		do := &provider.Call{API: a.api, Model: "polly", Body: sent, Key: "seed", Egress: &provider.Egress{}}
		res, err := p.Do(t.Context(), do)
		if err != nil {
			t.Fatal(kind, err)
		}
		plain, err := a.translate(res.Body)
		if err != nil || !strings.Contains(string(plain), `"good morning"`) || a.usage.Out != 2 {
			t.Errorf("%s: %s %v", kind, plain, err)
		}
		do.Stream = true
		if res, err = p.Do(t.Context(), do); err != nil {
			t.Fatal(kind, err)
		}
		dec, enc, words := a.api.Decoder("1"), a.ans.encoder(), ""
		for !dec.Done() {
			e, err := res.Next()
			if err != nil {
				t.Fatal(kind, err)
			}
			steps, err := dec.Event(e.Name, e.Data)
			if err != nil {
				t.Fatal(kind, err)
			}
			for i := range steps {
				words += string(enc.Encode(&steps[i]))
			}
		}
		res.Close()
		if words += string(enc.Finish()); !strings.Contains(words, `"good"`) || !strings.Contains(words, `"morning"`) {
			t.Errorf("%s: %s", kind, words)
		}
	}
	_, err = p.Do(t.Context(), &provider.Call{API: parrot, Model: "polly", Key: "other", Egress: &provider.Egress{}})
	var f *provider.Failure
	if !errors.As(err, &f) || f.Code != fault.CredentialInvalid || f.Fault.Message != "no key" || !f.Free() || !f.Row().Again(f.Status) {
		t.Errorf("%+v", err)
	}
}
