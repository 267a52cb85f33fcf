package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// plainServer is an MCP server that answers calls of tools with answer, and everything else by
// the SDK.
func plainServer(t *testing.T, answer http.HandlerFunc) *Server {
	sdk := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return empty() }, &mcp.StreamableHTTPOptions{Stateless: true})
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Method") != "tools/call" {
			sdk.ServeHTTP(w, r)
			return
		}
		answer(w, r)
	}))
	t.Cleanup(h.Close)
	s := New(Config{Name: "s", URL: h.URL, Concurrency: 1, Timeout: 2 * time.Second, Version: "t"})
	t.Cleanup(s.Close)
	return s
}

// call makes a plain call.
func call(ctx context.Context, s *Server) (out mcp.Result, err error) {
	err = s.Do(ctx, "", http.Header{"X-Key": {"k"}}, nil, func(ctx context.Context, x Session) (err error) {
		if !x.Plain() {
			return fmt.Errorf("the server is of version %s", x.InitializeResult().ProtocolVersion)
		}
		out, err = x.CallPlain(ctx, "echo", json.RawMessage(`{"a":1}`), json.RawMessage(`{}`))
		return err
	})
	return out, err
}

// TestCallPlain checks the request of a plain call, and that its result has every member that the
// server sent, in JSON and in a stream in which notifications and comments precede it.
func TestCallPlain(t *testing.T) {
	result := `{"content":[{"type":"hologram","depth":3}],"structuredContent":{"a":1},"future":true,"_meta":{"x":1}}`
	for _, stream := range []bool{false, true} {
		s := plainServer(t, func(w http.ResponseWriter, r *http.Request) {
			raw, _ := io.ReadAll(r.Body)
			var m struct {
				Params struct {
					Name      string
					Arguments map[string]any
					Meta      map[string]any `json:"_meta"`
				}
			}
			if json.Unmarshal(raw, &m) != nil || m.Params.Name != "echo" || m.Params.Arguments["a"] != 1. || m.Params.Meta[mcp.MetaKeyProtocolVersion] != sessionless ||
				m.Params.Meta[mcp.MetaKeyClientCapabilities] == nil || r.Header.Get("Mcp-Name") != "echo" || r.Header.Get("X-Key") != "k" || r.Header.Get("Mcp-Protocol-Version") != sessionless {
				t.Errorf("%v %s", r.Header, raw)
			}
			if !stream {
				w.Header().Set("Content-Type", "application/json; charset=utf-8")
				_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":`+result+`}`)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, ": comment\n\nevent: other\ndata: x\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\n"+
				`data: {"jsonrpc":"2.0","id":1,"result":`+result+"}\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done() // the call does not wait for the end of the stream
		})
		for range 2 {
			began := time.Now()
			out, err := call(t.Context(), s)
			if r, ok := out.(*Result); err != nil || !ok || string(r.JSON) != result || string(r.Shape.StructuredContent) != `{"a":1}` || time.Since(began) > restWithin/2 {
				t.Errorf("stream %v: %v %+v after %v", stream, err, out, time.Since(began))
			}
		}
		if h := s.Health(); h.Idle != 1 {
			t.Errorf("%+v", h)
		}
	}
}

// TestCallPlainFaults checks the error of each response that is not a result.
func TestCallPlainFaults(t *testing.T) {
	type response struct {
		status     int
		kind, body string
		code       string // of the error; "" if the result is one that requires input
	}
	const jsonType, streamType = "application/json", "text/event-stream"
	for name, x := range map[string]response{
		"error":               {200, jsonType, `{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"no"}}`, contract.CodeUpstreamRefused},
		"error and status":    {400, jsonType, `{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"no"}}`, contract.CodeUpstreamRefused},
		"error in a stream":   {200, streamType, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-5,\"message\":\"no\"}}\n\n", contract.CodeUpstreamRefused},
		"credential rejected": {401, jsonType, `{}`, contract.CodeUpstreamRefused},
		"another status":      {500, "text/plain", `oops`, contract.CodeUpstreamCut},
		"redirect":            {302, "text/plain", ``, contract.CodeUpstreamCut},
		"nothing":             {200, jsonType, ``, contract.CodeUpstreamMalformed},
		"no JSON":             {200, jsonType, `{`, contract.CodeUpstreamMalformed},
		"a batch":             {200, jsonType, `[]`, contract.CodeUpstreamMalformed},
		"another version":     {200, jsonType, `{"jsonrpc":"1.0","id":1,"result":{}}`, contract.CodeUpstreamMalformed},
		"another id":          {200, jsonType, `{"jsonrpc":"2.0","id":2,"result":{}}`, contract.CodeUpstreamMalformed},
		"no result":           {200, jsonType, `{"jsonrpc":"2.0","id":1}`, contract.CodeUpstreamMalformed},
		"a list":              {200, jsonType, `{"jsonrpc":"2.0","id":1,"result":[1]}`, contract.CodeUpstreamMalformed},
		"content as text":     {200, jsonType, `{"jsonrpc":"2.0","id":1,"result":{"content":"x"}}`, contract.CodeUpstreamMalformed},
		"content of no type":  {200, jsonType, `{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"x"}]}}`, contract.CodeUpstreamMalformed},
		"a task":              {200, jsonType, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"1"}}`, contract.CodeUpstreamMalformed},
		"another media type":  {200, "text/html", `<p>`, contract.CodeUpstreamMalformed},
		"an empty stream":     {200, streamType, ``, contract.CodeUpstreamCut},
		"a cut stream":        {200, streamType, `data: {"jsonrpc":"2.0","id":1,"res`, contract.CodeUpstreamCut},
		"too large":           {200, jsonType, `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", maxBody) + `"}]}}`, contract.CodeUpstreamCut},
		"too large an event":  {200, streamType, `data: {"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", maxBody) + `"}]}}` + "\n\n", contract.CodeUpstreamCut},
		"requires input":      {200, jsonType, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object"}}}},"requestState":"s"}}`, ""},
	} {
		s := plainServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", x.kind)
			w.WriteHeader(x.status)
			_, _ = io.WriteString(w, x.body)
		})
		out, err := call(t.Context(), s)
		if x.code == "" {
			if r, ok := out.(*mcp.CallToolResult); err != nil || !ok || r.RequestState != "s" || len(r.InputRequests) != 1 {
				t.Errorf("%s: %v %+v", name, err, out)
			}
		} else if code(err) != x.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"dies before its response": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"dies in its response": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"jsonrpc":`)
			panic(http.ErrAbortHandler)
		},
	} {
		if _, err := call(t.Context(), plainServer(t, answer)); code(err) != contract.CodeUpstreamCut {
			t.Errorf("%s: %v", name, err)
		}
	}
	silent := plainServer(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	if _, err := call(t.Context(), silent); code(err) != contract.CodeUpstreamTimeout {
		t.Errorf("silent: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := call(ctx, silent); err == nil || code(err) == contract.CodeUpstreamTimeout {
		t.Errorf("cancelled: %v", err)
	}
}
