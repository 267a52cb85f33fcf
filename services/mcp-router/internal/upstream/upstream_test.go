package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestFaults checks the error codes of several ways in which a server fails, that a
// request to which a server does not respond ends in time, and the health afterwards.
func TestFaults(t *testing.T) {
	srv := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	block := make(chan struct{})
	srv.AddTool(&mcp.Tool{Name: "hang", InputSchema: map[string]any{"type": "object"}}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		<-block
		return nil, errors.New("over")
	})
	h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, nil))
	s := New(Config{URL: h.URL, Concurrency: 1, Timeout: 500 * time.Millisecond, Version: "t"})
	call := func(tool string) error {
		return s.Do(t.Context(), "", http.Header{}, nil, func(ctx context.Context, x Session) error {
			_, err := x.CallTool(ctx, &mcp.CallToolParams{Name: tool})
			return err
		})
	}
	is := func(what, code string, err error) {
		t.Helper()
		var e *Error
		if !errors.As(err, &e) || e.Code != code {
			t.Errorf("%s: %v, want %s", what, err, code)
		}
	}
	is("an unknown tool", contract.CodeUpstreamRefused, call("nosuch"))
	began := time.Now()
	is("no response", contract.CodeUpstreamTimeout, call("hang"))
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("a request of 500 ms took %v", d)
	}
	own := errors.New("own error")
	err := s.Do(t.Context(), "", http.Header{}, nil, func(context.Context, Session) error { return own })
	if is("an error of the function", contract.CodeInternal, err); !errors.Is(err, own) {
		t.Error(err)
	}
	is("an unknown tool, again", contract.CodeUpstreamRefused, call("nosuch"))
	close(block)
	h.CloseClientConnections()
	h.Close()
	var e *Error // the connection is cut, or cannot be made if the client has noticed the end of the server
	if err := call("nosuch"); !errors.As(err, &e) || e.Code != contract.CodeUpstreamCut && e.Code != contract.CodeUpstreamUnreachable {
		t.Errorf("a server that ended: %v", err)
	}
	is("the next call", contract.CodeUpstreamUnreachable, call("nosuch"))
	is("a call within the pause", contract.CodeUpstreamUnreachable, call("nosuch"))
	if got := s.Health(); got.Failures == 0 || got.Error == "" || got.Busy != 0 || got.State != Backoff && got.State != Failing {
		t.Errorf("%+v", got)
	}
}

// TestMessageBound shows that sessions work over each transport, and that a message of a
// server may not have more than maxBody bytes.
func TestMessageBound(t *testing.T) {
	srv := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	srv.AddTool(&mcp.Tool{Name: "fill", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var args struct{ Bytes int }
		err := json.Unmarshal(r.Params.Arguments, &args)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", args.Bytes)}}}, err
	})
	of := func(*http.Request) *mcp.Server { return srv }
	for name, c := range map[string]struct {
		h   http.Handler
		sse bool
	}{
		"streamable":          {mcp.NewStreamableHTTPHandler(of, nil), false},
		"streamable, in JSON": {mcp.NewStreamableHTTPHandler(of, &mcp.StreamableHTTPOptions{JSONResponse: true}), false},
		"SSE":                 {mcp.NewSSEHandler(of, nil), true},
	} {
		h := httptest.NewServer(c.h)
		for size, want := range map[int]bool{1000: true, maxBody + 1: false} {
			s := New(Config{URL: h.URL, SSE: c.sse, Concurrency: 1, Timeout: time.Minute, Version: "t"})
			err := s.Do(t.Context(), "", http.Header{}, nil, func(ctx context.Context, x Session) error {
				_, err := x.CallTool(ctx, &mcp.CallToolParams{Name: "fill", Arguments: map[string]int{"bytes": size}})
				return err
			})
			if (err == nil) != want {
				t.Errorf("%s: %d bytes: %v", name, size, err)
			}
			s.Close()
		}
		h.CloseClientConnections()
		h.Close()
	}
}

// TestCounted checks that names of notifications are counted once, wherever reads end.
func TestCounted(t *testing.T) {
	x := &session{}
	c := &counted{n: &x.sent}
	for _, text := range []string{
		`data: {"method":"notifications/progress"}` + "\n" + `data: {"method":"notifications/message"}` + "\n",
		"notifications/message, notifications/messages of notifications",
		"notifications/progressnotifications/progress",
	} {
		for size := 1; size <= len(text); size++ {
			x.sent.Store(0)
			c.tail, c.ReadCloser = nil, &parts{text, size}
			for p := make([]byte, 64); ; {
				if _, err := c.Read(p); err != nil {
					break
				}
			}
			if got := x.sent.Load(); got != 2 {
				t.Errorf("%q: %d counted in reads of %d bytes, want 2", text, got, size)
			}
		}
	}
}

// parts is a body that is read in parts of a size.
type parts struct {
	rest string
	size int
}

func (p *parts) Read(b []byte) (int, error) {
	if p.rest == "" {
		return 0, errors.New("end")
	}
	n := copy(b[:min(len(b), p.size)], p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

func (p *parts) Close() error { return nil }

// TestUnlisted checks that a session needs a comparison until done is called, even after a
// request that the server refused, and that it needs another one after an announcement, even
// if the announcement was received during a comparison.
func TestUnlisted(t *testing.T) {
	srv := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, nil))
	defer h.Close()
	s := New(Config{URL: h.URL, Concurrency: 1, Timeout: 10 * time.Second, Version: "t"})
	defer s.Close()
	visit := func(want bool, f func(x Session, done func()) error) {
		t.Helper()
		_ = s.Do(t.Context(), "", http.Header{}, nil, func(_ context.Context, x Session) error {
			done, unlisted := x.Unlisted()
			if unlisted != want {
				t.Errorf("unlisted is %v, want %v", unlisted, want)
			}
			return f(x, done)
		})
	}
	compared := func(_ Session, done func()) error { done(); return nil }
	visit(true, func(x Session, _ func()) error {
		_, err := x.CallTool(t.Context(), &mcp.CallToolParams{Name: "nosuch"})
		if Refusal(err) == nil {
			t.Error("want a refusal, which keeps the session:", err)
		}
		return err
	})
	visit(true, compared)
	visit(false, func(x Session, _ func()) error { x.s.lists.Add(1); return nil })
	visit(true, func(x Session, done func()) error { x.s.lists.Add(1); done(); return nil })
	visit(true, compared)
	visit(false, compared)
}

// TestCut checks the code of a request whose connection the server closes before it responds.
func TestCut(t *testing.T) {
	srv := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, nil)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if bytes.Contains(b, []byte("tools/call")) {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		inner.ServeHTTP(w, r)
	}))
	defer h.Close()
	s := New(Config{URL: h.URL, Concurrency: 1, Timeout: 5 * time.Second, Version: "t"})
	defer s.Close()
	err := s.Do(t.Context(), "", http.Header{}, nil, func(ctx context.Context, x Session) error {
		_, err := x.CallTool(ctx, &mcp.CallToolParams{Name: "x"})
		return err
	})
	var e *Error
	if !errors.As(err, &e) || e.Code != contract.CodeUpstreamCut {
		t.Fatal(err)
	}
}
