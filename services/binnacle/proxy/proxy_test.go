package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// stand is a test fixture: a proxy between a scripted upstream and a mesh that allows
// llm.forward and the functions whose names begin with "ok", and denies all other calls.
type stand struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string // kinds and arguments of the proposed calls, in order of arrival
	mesh     *httptest.Server
}

func newStand(t *testing.T, upstream http.HandlerFunc) *stand {
	s := &stand{}
	up := httptest.NewServer(upstream)
	t.Cleanup(up.Close)
	s.mesh = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Kind string
			Args json.RawMessage
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || r.URL.Path != "/api/v1/calls" || r.Header.Get("Authorization") != "Bearer mesh-token" {
			t.Errorf("unexpected request: %v %s", err, r.URL)
		}
		s.mu.Lock()
		s.requests = append(s.requests, req.Kind+" "+string(req.Args))
		id := fmt.Sprint("c-", len(s.requests))
		s.mu.Unlock()
		w.Header().Set("X-Binnacle-Call-Id", id)
		w.Header().Set("X-Binnacle-Receipt-Id", "r-"+id)
		w.Header().Set("Content-Type", "application/json")
		if req.Kind == "llm.forward" || strings.HasPrefix(req.Kind, "client.ok") {
			w.Header().Set("X-Binnacle-Verdict", "ALLOW")
			_, _ = io.WriteString(w, `{"output":{"released":true}}`)
			return
		}
		w.Header().Set("X-Binnacle-Verdict", "DENY")
		w.WriteHeader(403)
		_, _ = io.WriteString(w, `{"error":{"message":"denied by policy: UNKNOWN_TOOL","code":"denied"}}`)
	}))
	t.Cleanup(s.mesh.Close)
	u, err := url.Parse(up.URL + "/v1")
	if err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewServer(New(u, Mesh{URL: s.mesh.URL, Token: "mesh-token", Client: &http.Client{}}, "", slog.New(slog.DiscardHandler)))
	t.Cleanup(s.Close)
	return s
}

func (s *stand) post(t *testing.T, path, body string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest("POST", s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer sk-client")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body) // ReadAll returns the bytes received before a stream was cut, which the test checks
	return resp.StatusCode, string(b), resp.Header
}

const ask = `{"model":"m","messages":[{"role":"user","content":"go"}],"tools":[{"type":"function","function":{"name":"ok"}}]}`

func answering(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		kind := "application/json"
		if strings.HasPrefix(body, "data:") || strings.HasPrefix(body, ":") {
			kind = "text/event-stream; charset=utf-8"
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}
}

func completion(message, finish string) string {
	return `{"id":"x","object":"chat.completion","big":12345678901234567890,"choices":[{"index":0,"message":` + message + `,"finish_reason":"` + finish + `"}],"usage":{"total_tokens":3}}`
}

func call(name, args string) string {
	a, _ := json.Marshal(args)
	return `{"id":"call_` + name + `","type":"function","function":{"name":"` + name + `","arguments":` + string(a) + `}}`
}

func TestPlain(t *testing.T) {
	for name, c := range map[string]struct{ message, want string }{
		"text":    {`{"role":"assistant","content":"hi"}`, completion(`{"role":"assistant","content":"hi"}`, "stop")},
		"allowed": {`{"role":"assistant","content":null,"tool_calls":[` + call("ok", `{"a":1}`) + `]}`, completion(`{"role":"assistant","content":null,"tool_calls":[`+call("ok", `{"a":1}`)+`]}`, "tool_calls")},
		"denied": {`{"role":"assistant","content":null,"tool_calls":[` + call("rm", `{}`) + `]}`,
			completion(`{"role":"assistant","content":null,"refusal":"The call of tool \"rm\" was refused: denied by policy: UNKNOWN_TOOL (receipt r-c-2)"}`, "stop")},
		"older": {`{"role":"assistant","function_call":{"name":"rm","arguments":"{}"}}`,
			completion(`{"role":"assistant","refusal":"The call of tool \"rm\" was refused: denied by policy: UNKNOWN_TOOL (receipt r-c-2)"}`, "stop")},
		"older, allowed": {`{"role":"assistant","function_call":{"name":"ok","arguments":"{}"}}`, completion(`{"role":"assistant","function_call":{"name":"ok","arguments":"{}"}}`, "function_call")},
		"doubled argument": {`{"role":"assistant","tool_calls":[` + call("ok", `{"a":1,"a":2}`) + `]}`,
			completion(`{"role":"assistant","refusal":"The call of tool \"ok\" was refused: its arguments are not one JSON object"}`, "stop")},
		"unknown type": {`{"role":"assistant","tool_calls":[{"id":"1","type":"shell","shell":{"command":"rm"}}]}`,
			completion(`{"role":"assistant","refusal":"The call of tool \"\" was refused: tool calls of type \"shell\" are not known"}`, "stop")},
		"custom": {`{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{"name":"ok","input":"x y"}}]}`,
			completion(`{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{"name":"ok","input":"x y"}}]}`, "tool_calls")},
	} {
		t.Run(name, func(t *testing.T) {
			finish := "stop"
			if strings.Contains(c.message, "tool_calls") {
				finish = "tool_calls"
			} else if strings.Contains(c.message, "function_call") {
				finish = "function_call"
			}
			s := newStand(t, answering(completion(c.message, finish)))
			status, got, _ := s.post(t, "/v1/chat/completions", ask)
			if status != 200 || got != c.want {
				t.Errorf("%d\n got %s\nwant %s\nrequests %q", status, got, c.want, s.requests)
			}
		})
	}
}

// TestMixed checks that the allowed tool calls of a response reach the client complete
// and in order if another call is denied, that they are proposed with canonical
// arguments, and that the response names its session and the receipts of all tool calls.
func TestMixed(t *testing.T) {
	s := newStand(t, answering(completion(`{"tool_calls":[`+call("ok1", `{"b":2,"a":1}`)+`,`+call("rm", `{}`)+`,`+call("ok2", ``)+`]}`, "tool_calls")))
	_, got, h := s.post(t, "/v1/chat/completions", ask)
	if !strings.Contains(got, `"tool_calls":[`+call("ok1", `{"b":2,"a":1}`)+`,`+call("ok2", ``)+`]`) || !strings.Contains(got, `"refusal":"The call of tool \"rm\"`) || !strings.Contains(got, `"finish_reason":"tool_calls"`) {
		t.Error(got)
	}
	if strings.Count(h.Get("X-Binnacle-Tool-Receipts"), "r-c-") != 3 || !strings.HasPrefix(h.Get("X-Binnacle-Session"), "s-") {
		t.Error(h)
	}
	if a := strings.Join(s.requests, "\n"); !strings.HasPrefix(a, `llm.forward {"model":"m","request_digest":"sha256:`) || !strings.Contains(a, `"tools":["ok"]`) || !strings.Contains(a, `client.ok1 {"a":1,"b":2}`) || !strings.Contains(a, `client.ok2 {}`) {
		t.Error(a)
	}
}

func chunk(delta, finish string) string {
	if finish == "" {
		finish = "null"
	}
	return `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + finish + `}]}` + "\n\n"
}

func TestStream(t *testing.T) {
	role := chunk(`{"role":"assistant","content":""}`, "")
	part := func(i int, id, name, args string) string {
		f := map[string]any{"arguments": args}
		d := map[string]any{"index": i, "function": f}
		if id != "" {
			d["id"], d["type"], f["name"] = id, "function", name
		}
		b, _ := json.Marshal(map[string]any{"tool_calls": []any{d}})
		return chunk(string(b), "")
	}
	const done = "data: [DONE]\n\n"
	for name, c := range map[string]struct{ in, out string }{
		"text":    {role + chunk(`{"content":"hi"}`, "") + chunk(`{}`, `"stop"`) + done, role + chunk(`{"content":"hi"}`, "") + chunk(`{}`, `"stop"`) + done},
		"framing": {": hello\r\n\r\nevent: x\r\ndata: {\"choices\":\r\ndata: []}\r\n\r\ndata: [DONE]\r\n\r\n", "data: {\"choices\":[]}\n\n" + done},
		"allowed": {role + part(0, "a", "ok", `{"x"`) + part(0, "", "", `:1}`) + chunk(`{}`, `"tool_calls"`) + done,
			role + chunk(`{"tool_calls":[{"id":"a","type":"function","function":{"name":"ok","arguments":"{\"x\":1}"},"index":0}]}`, "") + chunk(`{}`, `"tool_calls"`) + done},
		"denied": {role + part(0, "a", "rm", `{}`) + chunk(`{}`, `"tool_calls"`) + done,
			role + chunk(`{"refusal":"The call of tool \"rm\" was refused: denied by policy: UNKNOWN_TOOL (receipt r-c-2)"}`, "") + chunk(`{}`, `"stop"`) + done},
		"with text and the end": {chunk(`{"role":"assistant","content":"so","tool_calls":[{"index":0,"id":"a","function":{"name":"ok","arguments":"{}"}}]}`, `"tool_calls"`) + done,
			chunk(`{"tool_calls":[{"id":"a","type":"function","function":{"name":"ok","arguments":"{}"},"index":0}]}`, "") + chunk(`{"role":"assistant","content":"so"}`, `"tool_calls"`) + done},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, answering(c.in))
			status, got, _ := s.post(t, "/v1/chat/completions", ask)
			if status != 200 || got != c.out {
				t.Errorf("%d\n got %s\nwant %s", status, got, c.out)
			}
		})
	}
	t.Run("mixed", func(t *testing.T) {
		s := newStand(t, answering(part(0, "a", "rm", `{}`)+part(1, "b", "ok", `{`)+part(2, "c", "ok2", `{}`)+part(1, "", "", `}`)+chunk(`{}`, `"tool_calls"`)+done))
		_, got, _ := s.post(t, "/v1/chat/completions", ask)
		if !strings.Contains(got, `"tool_calls":[{"id":"b","type":"function","function":{"name":"ok","arguments":"{}"},"index":0},{"id":"c","type":"function","function":{"name":"ok2","arguments":"{}"},"index":1}]`) ||
			!strings.Contains(got, `"refusal":"The call of tool \"rm\"`) || strings.Contains(got, `"id":"a"`) {
			t.Error(got)
		}
	})
}

// TestHeld checks that the text of a stream is sent before the stream ends, and that a
// tool call is not sent before its choice ends.
func TestHeld(t *testing.T) {
	gate := make(chan struct{})
	s := newStand(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk(`{"content":"first"}`, "")+chunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"ok","arguments":"{}"}}]}`, ""))
		_ = http.NewResponseController(w).Flush()
		<-gate
		_, _ = io.WriteString(w, chunk(`{}`, `"tool_calls"`)+"data: [DONE]\n\n")
	})
	resp, err := http.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(ask))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 4096)
	n, err := resp.Body.Read(buf)
	if got := string(buf[:n]); err != nil || !strings.Contains(got, "first") || strings.Contains(got, "tool_calls\":[") {
		t.Fatalf("%v %s", err, got)
	}
	close(gate)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), `"id":"a"`) {
		t.Fatalf("%v %s", err, rest)
	}
}

// TestHostile checks that ambiguous, malformed or incomplete responses of an upstream do
// not deliver a tool call that the mesh has not allowed.
func TestHostile(t *testing.T) {
	rm := call("rm", `{}`)
	for name, body := range map[string]string{
		"other case":               completion(`{"Tool_Calls":[`+rm+`]}`, "tool_calls"),
		"folded":                   completion("{\"tool_call\u017f\":["+rm+"]}", "tool_calls"),
		"twice":                    completion(`{"tool_calls":[],"tool_calls":[`+rm+`]}`, "tool_calls"),
		"escaped":                  completion(`{"tool\u005fcalls":[`+rm+`]}`, "tool_calls"),
		"two documents":            completion(`{"content":"x"}`, "stop") + completion(`{"tool_calls":[`+rm+`]}`, "tool_calls"),
		"not a list":               completion(`{"tool_calls":`+rm+`}`, "tool_calls"),
		"index a string":           completion(`{"tool_calls":[{"index":"0","function":{"name":"rm"}}]}`, "tool_calls"),
		"choices twice":            `{"choices":[],"choices":[{"message":{"tool_calls":[` + rm + `]}}]}`,
		"a delta as well":          `{"choices":[{"message":{},"delta":{"tool_calls":[` + rm + `]}}]}`,
		"message in a chunk":       `data: {"choices":[{"message":{"tool_calls":[` + rm + `]}}]}` + "\n\n",
		"chunk, other case":        `data: {"choices":[{"delta":{"TOOL_CALLS":[` + rm + `]}}]}` + "\n\n",
		"chunk over two lines":     "data: {\"choices\":[{\"delta\":{\"tool_calls\":\ndata: [" + rm + "]},\"finish_reason\":\"tool_calls\"}]}\n\n",
		"never ends":               chunk(`{"tool_calls":[`+strings.TrimSuffix(rm, "}")+`,"index":0}]}`, ""),
		"done before it ends":      chunk(`{"tool_calls":[`+strings.TrimSuffix(rm, "}")+`,"index":0}]}`, "") + "data: [DONE]\n\n",
		"no empty line at the end": `data: {"choices":[{"delta":{"tool_calls":[` + rm + `]},"finish_reason":"tool_calls"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, answering(body))
			_, got, _ := s.post(t, "/v1/chat/completions", ask)
			if strings.Contains(got, "call_rm") || strings.Contains(strings.ToLower(got), `"tool_calls":[{`) {
				t.Errorf("it got through: %s", got)
			}
		})
	}
}

// TestWaysAround checks that the proxy forwards neither redirects nor the upstream's own
// header X-Binnacle-Receipt-Id, and that it removes denied tool calls from responses
// with any of six 2xx statuses.
func TestWaysAround(t *testing.T) {
	body := completion(`{"tool_calls":[`+call("rm", `{}`)+`]}`, "tool_calls")
	for _, status := range []int{200, 201, 202, 203, 206, 226} {
		s := newStand(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Binnacle-Receipt-Id", "r-forged")
			w.Header().Set("X-Binnacle-Verdict", "ALLOW")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
		got, text, h := s.post(t, "/v1/chat/completions", ask)
		if got != status || strings.Contains(text, "call_rm") || h.Get("X-Binnacle-Receipt-Id") != "r-c-1" {
			t.Errorf("%d: %d %s %v", status, got, text, h)
		}
	}
	for _, status := range []int{301, 302, 307, 308} {
		s := newStand(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://elsewhere.invalid/")
			w.WriteHeader(status)
		})
		if got, text, h := s.post(t, "/v1/chat/completions", ask); got != 502 || h.Get("Location") != "" || !strings.Contains(text, "redirection") {
			t.Errorf("%d: %d %s %v", status, got, text, h)
		}
	}
}

// TestNothingPasses checks that a request is not forwarded to the upstream if the mesh
// does not respond, if its path is not governed, or if its body is invalid.
func TestNothingPasses(t *testing.T) {
	reached := false
	s := newStand(t, func(w http.ResponseWriter, r *http.Request) { reached = true; answering("{}")(w, r) })
	for path, want := range map[string]int{"/v1/responses/resp_1": 404, "/v1/responses/resp_1/cancel": 404, "/v1/assistants": 404, "/v1/chat/completions/x": 404, "/v1//chat/completions": 404} {
		if status, got, _ := s.post(t, path, ask); status != want || !strings.Contains(got, "not_governed") {
			t.Errorf("%s: %d %s", path, status, got)
		}
	}
	for _, body := range []string{"", "[]", `{"model":1}`, `{"model":"a","model":"b"}`, `{"model":"a","Model":"b"}`, `{"model":"a","stream":"yes"}`, `{"model":"a"} {}`} {
		if status, got, _ := s.post(t, "/v1/chat/completions", body); status != 400 || !strings.Contains(got, "invalid_input") {
			t.Errorf("%q: %d %s", body, status, got)
		}
	}
	s.mesh.Close()
	if status, got, _ := s.post(t, "/v1/chat/completions", ask); status != 503 || !strings.Contains(got, "mesh_unavailable") {
		t.Errorf("%d %s", status, got)
	}
	if reached {
		t.Error("the upstream was reached")
	}
}

// TestAccepted checks the refusals of calls to which the mesh responds with 202: only a
// call that waits for approval is refused as such.
func TestAccepted(t *testing.T) {
	for body, want := range map[string]struct {
		status int
		code   string
	}{
		`{"status":"pending_approval"}`: {http.StatusForbidden, contract.CodeApprovalRequired},
		`{"status":"proposed"}`:         {http.StatusServiceUnavailable, contract.CodeMeshUnavailable},
		``:                              {http.StatusServiceUnavailable, contract.CodeMeshUnavailable},
	} {
		mesh := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Binnacle-Call-Id", "c-1")
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, body)
		}))
		a := asker{mesh: Mesh{URL: mesh.URL, Client: mesh.Client()}}
		if v := a.decide(t.Context(), "llm.forward", nil); v.Allowed || v.Status != want.status || v.Code != want.code || !strings.Contains(v.Message, "call c-1") {
			t.Errorf("%q: %+v", body, v)
		}
		mesh.Close()
	}
}

// TestPassedOn checks that the upstream receives the request body and the client's API
// key unchanged, but not the proxy's token for the mesh, and that the status, the body
// and the header Retry-After of an error response are forwarded unchanged.
func TestPassedOn(t *testing.T) {
	s := newStand(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer sk-client" || r.Header.Get("X-Binnacle-Session") != "" || !bytes.Equal(b, []byte(ask)) || r.URL.Path != "/v1/chat/completions" {
			t.Errorf("%v %s %s", r.Header, r.URL, b)
		}
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(429)
		_, _ = io.WriteString(w, `{"error":{"message":"slow down"}}`)
	})
	status, got, h := s.post(t, "/v1/chat/completions", ask)
	if status != 429 || got != `{"error":{"message":"slow down"}}` || h.Get("Retry-After") != "7" || h.Get("X-Binnacle-Receipt-Id") != "r-c-1" {
		t.Errorf("%d %s %v", status, got, h)
	}
}

// TestCut checks that a response that the upstream breaks off is also incomplete for the
// client.
func TestCut(t *testing.T) {
	s := newStand(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk(`{"content":"hi"}`, ""))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	resp, err := http.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(ask))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("it looks whole: %s", b)
	}
}

func FuzzGoverned(f *testing.F) {
	f.Add([]byte(completion(`{"tool_calls":[`+call("rm", `{}`)+`]}`, "tool_calls")))
	mesh := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }))
	f.Cleanup(mesh.Close)
	f.Fuzz(func(t *testing.T, body []byte) {
		out, err := governed(t.Context(), body, &asker{mesh: Mesh{URL: mesh.URL, Client: http.DefaultClient}})
		if err != nil {
			return
		}
		var doc struct { // parses leniently, as clients may: encoding/json ignores the case of names
			Choices []struct {
				Message struct {
					ToolCalls    []any `json:"tool_calls"`
					FunctionCall any   `json:"function_call"`
				}
			}
		}
		if err := json.Unmarshal(out, &doc); err != nil {
			return
		}
		for _, c := range doc.Choices {
			if len(c.Message.ToolCalls) > 0 || c.Message.FunctionCall != nil {
				t.Errorf("%s became %s", body, out)
			}
		}
	})
}
