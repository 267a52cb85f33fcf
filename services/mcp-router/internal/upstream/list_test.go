package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestList checks what List returns for servers with some of the capabilities, and which list its
// error names. List must not request a list for which the server has no capability.
func TestList(t *testing.T) {
	tools := func(s *mcp.Server) {
		s.AddTool(&mcp.Tool{Name: "t", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return nil, nil })
	}
	resources := func(s *mcp.Server) {
		s.AddResource(&mcp.Resource{Name: "r", URI: "x:r"}, nil)
		s.AddResourceTemplate(&mcp.ResourceTemplate{Name: "r", URITemplate: "x:{r}"}, nil)
	}
	prompts := func(s *mcp.Server) { s.AddPrompt(&mcp.Prompt{Name: "p"}, nil) }
	for _, x := range []struct {
		options   mcp.ServerOptions
		add       []func(*mcp.Server)
		refuse    string // method to which the server responds with an error
		requested string
		want      string
	}{
		{want: "0 0 0 0 false false false"},
		{add: []func(*mcp.Server){tools}, requested: "tools/list", want: "1 0 0 0 false false false"},
		{add: []func(*mcp.Server){resources}, requested: "resources/list resources/templates/list", want: "0 1 1 0 true false false"},
		{add: []func(*mcp.Server){prompts}, requested: "prompts/list", want: "0 0 0 1 false false false"},
		{add: []func(*mcp.Server){tools, resources, prompts}, requested: "tools/list resources/list resources/templates/list prompts/list", want: "1 1 1 1 true true true", options: mcp.ServerOptions{
			SubscribeHandler: func(context.Context, *mcp.SubscribeRequest) error { return nil }, UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
			CompletionHandler: func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) { return nil, nil }}},
		{add: []func(*mcp.Server){tools, prompts}, refuse: "tools/list", requested: "tools/list", want: "tools/list: "},
		{add: []func(*mcp.Server){resources}, refuse: "resources/list", requested: "resources/list", want: "resources/list: "},
		{add: []func(*mcp.Server){resources}, refuse: "resources/templates/list", requested: "resources/list resources/templates/list", want: "resources/templates/list: "},
		{add: []func(*mcp.Server){prompts}, refuse: "prompts/list", requested: "prompts/list", want: "prompts/list: "},
	} {
		x.options.Capabilities = &mcp.ServerCapabilities{}
		srv := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, &x.options)
		for _, add := range x.add {
			add(srv)
		}
		var requested []string
		srv.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
				if strings.HasSuffix(method, "/list") {
					requested = append(requested, method)
				}
				if method == x.refuse {
					return nil, errDown
				}
				return next(ctx, method, r)
			}
		})
		in, _ := joined(t, pool(), srv)
		l, err := Session{in.ClientSession, in}.List(t.Context())
		_ = in.Close()
		got := ""
		if err == nil {
			got = fmt.Sprintf("%d %d %d %d %v %v %v", len(l.Tools), len(l.Resources), len(l.Templates), len(l.Prompts), l.HasResources, l.HasCompletions, l.HasSubscriptions)
		} else if Refusal(err) != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, x.want) || (err != nil) != (x.refuse != "") {
			t.Errorf("%s, %v; want %s", got, err, x.want)
		}
		if got := strings.Join(requested, " "); got != x.requested {
			t.Errorf("%s: requested %s, want %s", x.want, got, x.requested)
		}
	}
}

// TestAll checks that all elements of a sequence are returned, its error, and the error of a
// sequence with more than maxListed elements, which is not read further.
func TestAll(t *testing.T) {
	count := func(n int, end error) (seq iter.Seq2[int, error], read *int) {
		read = new(int)
		return func(yield func(int, error) bool) {
			for i := range n {
				if *read++; !yield(i, nil) {
					return
				}
			}
			if end != nil {
				yield(0, end)
			}
		}, read
	}
	for _, x := range []struct {
		n         int
		end       error
		got, read int
		code      string
	}{{0, nil, 0, 0, ""}, {2, nil, 2, 2, ""}, {2, errDown, 0, 2, errDown.Error()}, {maxListed, nil, maxListed, maxListed, ""}, {maxListed + 9, nil, 0, maxListed + 1, contract.CodeUpstreamMalformed}} {
		seq, read := count(x.n, x.end)
		got, err := all(seq)
		if len(got) != x.got || *read != x.read || code(err) != x.code {
			t.Errorf("%d elements and %v: %d, %d read, %v", x.n, x.end, len(got), *read, err)
		}
		if x.n == 2 && x.end == nil && string(got[1]) != "1" {
			t.Errorf("%s", got)
		}
	}
	if _, err := raw([]any{func() {}}); err == nil {
		t.Error("a function has a JSON form")
	}
}

// TestNoSuchAddress checks that the transport does not connect to the addresses that no
// server may have, and that it tries others.
func TestNoSuchAddress(t *testing.T) {
	rt := newTransport()
	for address, refused := range map[string]bool{
		"169.254.169.254": true, "[::ffff:169.254.169.254]": true, "[fe80::1%25lo]": true, "224.0.0.1": true, "[ff02::1%25lo]": true, "0.0.0.0": true, "[::]": true, "127.0.0.1": false,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+":1", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := rt.RoundTrip(r)
		if err == nil {
			_ = res.Body.Close()
		}
		if err == nil || strings.Contains(err.Error(), "is link-local") != refused {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestHeaders checks that a request is sent with the headers of the session in addition to its
// own, and is not modified itself. It also checks in which responses notifications are
// counted, and that the other responses have a maximum size.
func TestHeaders(t *testing.T) {
	for _, x := range []struct {
		status  int
		kind    string
		counted bool
	}{{200, "text/event-stream", true}, {202, "text/event-stream; charset=utf-8", true}, {200, "application/json", false}, {404, "text/event-stream", false}, {100, "text/event-stream", false}, {300, "text/event-stream", false}} {
		var headers atomic.Pointer[http.Header]
		var sent atomic.Int64
		headers.Store(&http.Header{"Authorization": {"Bearer x"}})
		rt := &withHeaders{roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Authorization") != "Bearer x" || r.Header.Get("Accept") != "a" {
				t.Errorf("%v", r.Header)
			}
			return &http.Response{StatusCode: x.status, Header: http.Header{"Content-Type": {x.kind}}, Body: io.NopCloser(strings.NewReader(`{"method":"notifications/progress"}`))}, nil
		}), &headers, &sent, "s"}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server.test", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "a")
		res, err := rt.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_, limits := res.Body.(*limited)
		if len(r.Header) != 1 || (sent.Load() == 1) != x.counted || limits == x.counted {
			t.Errorf("%+v: %v, %d counted, %T", x, r.Header, sent.Load(), res.Body)
		}
	}
}

// TestLimited checks that a body of exactly the maximum size is read, and a larger one is
// not.
func TestLimited(t *testing.T) {
	for size, want := range map[int]error{9: nil, 10: nil, 11: errTooLarge} {
		got, err := io.ReadAll(&limited{io.NopCloser(bytes.NewReader(make([]byte, size))), 10})
		if !errors.Is(err, want) || want == nil && len(got) != size {
			t.Errorf("%d bytes: %d, %v", size, len(got), err)
		}
	}
}
