package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
)

// pool returns a pool of sessions with a server that cannot be reached.
func pool() *Server {
	s := New(Config{URL: "http://server.test", Concurrency: 1, Timeout: time.Minute, Version: "t"})
	s.base = roundTripper(func(*http.Request) (*http.Response, error) { return nil, errDown })
	return s
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

var errDown = errors.New("the server is down")

// joined returns a session of s with a server in memory, and the server's end of it. The
// version of the protocol is one in which a server may send requests.
func joined(t *testing.T, s *Server, srv *mcp.Server) (*session, *mcp.ServerSession) {
	t.Helper()
	x := &session{over: make(chan struct{})}
	here, there := mcp.NewInMemoryTransports()
	ss, err := srv.Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	if x.ClientSession, err = s.client(x).Connect(t.Context(), here, &mcp.ClientSessionOptions{ProtocolVersion: "2025-06-18"}); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = x.Wait()
		x.ended.Store(true)
		close(x.over)
	}()
	return x, ss
}

// empty returns a server without tools.
func empty() *mcp.Server { return mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil) }

// code returns the code of an *Error, "" for nil, and otherwise the text of the error.
func code(err error) string {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	}
	return err.Error()
}

// TestErrorOf checks the code of each error of a request, for a context that has not ended,
// one whose deadline has passed, and one that was cancelled.
func TestErrorOf(t *testing.T) {
	late, stop := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer stop()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	own := &Error{Code: contract.CodeUpstreamMalformed}
	refused := &jsonrpc.Error{Code: -32602, Message: "no such tool"}
	for _, x := range []struct {
		err                   error
		live, late, cancelled string
	}{
		{nil, "", "", ""},
		{own, own.Code, own.Code, own.Code},
		{fmt.Errorf("list: %w", own), "list: ", "list: ", "list: "},
		{&sent{&net.OpError{Op: "dial", Err: errDown}}, contract.CodeUpstreamUnreachable, contract.CodeUpstreamUnreachable, contract.CodeUpstreamUnreachable},
		{&sent{&net.OpError{Op: "read", Err: errDown}}, contract.CodeUpstreamCut, contract.CodeUpstreamTimeout, context.Canceled.Error()},
		{&sent{refused}, contract.CodeUpstreamRefused, contract.CodeUpstreamRefused, contract.CodeUpstreamRefused},
		{&sent{&jsonrpc.Error{Message: "client is closing: x"}}, contract.CodeUpstreamCut, contract.CodeUpstreamTimeout, context.Canceled.Error()},
		{errDown, contract.CodeInternal, contract.CodeUpstreamTimeout, context.Canceled.Error()},
	} {
		for ctx, want := range map[context.Context]string{t.Context(): x.live, late: x.late, cancelled: x.cancelled} {
			got := errorOf(ctx, x.err)
			if strings.HasSuffix(want, ": ") { // an error that wraps an *Error is returned as it is
				if !errors.Is(got, x.err) || code(got) != own.Code {
					t.Errorf("%v: %v", x.err, got)
				}
			} else if code(got) != want {
				t.Errorf("%v after %v: %v, want %s", x.err, ctx.Err(), got, want)
			}
		}
	}
}

// TestRetryDelay checks the time without attempts after failures to connect: it doubles up to
// lastDelay, and requests and subscriptions fail at once while it lasts. After it, a subscription
// is an attempt, too.
func TestRetryDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pool()
		do := func() error {
			return s.Do(t.Context(), "", http.Header{}, nil, func(context.Context, Session) error { return nil })
		}
		for i, want := range []time.Duration{250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000, 30000, 30000} {
			want *= time.Millisecond
			if err := do(); code(err) != contract.CodeUpstreamUnreachable || !strings.Contains(err.Error(), errDown.Error()) {
				t.Fatalf("attempt %d: %v", i, err)
			}
			if h := s.Health(); h.Failures != i+1 || !strings.Contains(h.Error, errDown.Error()) || h.Busy != 0 {
				t.Errorf("attempt %d: %+v", i, h)
			}
			time.Sleep(want - time.Millisecond)
			if err := do(); code(err) != contract.CodeUpstreamUnreachable || !strings.Contains(err.Error(), "the next attempt is in 1ms") {
				t.Errorf("attempt %d, 1 ms before the next one: %v", i, err)
			}
			if _, err := s.Subscribe(t.Context(), "", http.Header{}, nil, "x:y"); code(err) != contract.CodeUpstreamUnreachable || !strings.Contains(err.Error(), "the next attempt is in 1ms") {
				t.Errorf("attempt %d, a subscription: %v", i, err)
			}
			time.Sleep(time.Millisecond)
		}
		if _, err := s.Subscribe(t.Context(), "", http.Header{}, nil, "x:y"); code(err) != contract.CodeUpstreamUnreachable || s.Health().Failures != 13 {
			t.Errorf("a subscription is an attempt: %v, %+v", err, s.Health())
		}
	})
}

// TestIdle checks that a session that was unused for longer than idleFor is closed when
// another request ends, that a request takes the session that was used last, and that no
// session is cached after Close.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pool()
		want := func(what string, idle int, open ...*session) {
			t.Helper()
			synctest.Wait()
			for _, x := range open {
				if x.ended.Load() {
					t.Errorf("%s: a session was closed", what)
				}
			}
			if got := s.Health().Idle; got != idle {
				t.Errorf("%s: %d unused sessions, want %d", what, got, idle)
			}
		}
		var all []*session
		for range 5 {
			x, _ := joined(t, s, empty())
			all = append(all, x)
		}
		s.put("k", all[0])
		time.Sleep(idleFor / 2)
		s.put("k", all[1])
		s.put("other", all[2])
		want("three requests", 3, all...)
		time.Sleep(idleFor / 2)
		s.put("k", all[3])
		want("after exactly idleFor", 4, all...)
		time.Sleep(time.Second)
		if x, reused, err := s.take(t.Context(), "k", nil); x != all[3] || !reused || err != nil {
			t.Errorf("took %p %v %v", x, reused, err)
		}
		s.put("k", all[3])
		want("after more than idleFor", 3, all[1:]...)
		if !all[0].ended.Load() {
			t.Error("an unused session was not closed")
		}
		time.Sleep(idleFor / 2)
		if x, _, err := s.take(t.Context(), "k", nil); x != all[3] {
			t.Errorf("took %p %v", x, err)
		}
		s.put("k", all[3])
		want("after more than idleFor, all other sessions", 1, all[3:]...)
		if len(s.idle) != 1 {
			t.Errorf("%d keys", len(s.idle))
		}
		_ = all[3].Close()
		synctest.Wait()
		if x, _, err := s.take(t.Context(), "k", nil); x != nil || code(err) != contract.CodeUpstreamUnreachable {
			t.Errorf("took a session that has ended: %v", err)
		}
		s.put("k", all[4])
		s.Close()
		synctest.Wait()
		if !all[4].ended.Load() || s.Health().Idle != 0 {
			t.Error("Close does not close an unused session")
		}
		x, _ := joined(t, s, empty())
		s.put("k", x)
		synctest.Wait()
		if !x.ended.Load() || s.Health().Idle != 0 {
			t.Error("a session is cached after Close")
		}
	})
}

// TestDo checks what becomes of a session after a request: it is cached after a success or a
// refusal of the server, and closed after any other error; and that a request waits for
// a place.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pool()
		for _, x := range []struct {
			err    error
			cached int
		}{{nil, 1}, {&sent{&jsonrpc.Error{Message: "refused"}}, 1}, {&sent{errDown}, 0}, {errDown, 0}} {
			in, _ := joined(t, s, empty())
			s.put("k", in)
			if err := s.Do(t.Context(), "k", http.Header{}, nil, func(context.Context, Session) error {
				if h := s.Health(); h.Busy != 1 || h.Idle != 0 {
					t.Errorf("%+v", h)
				}
				if x.err == nil {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if err := s.Do(ctx, "k", nil, nil, nil); code(err) != contract.CodeUpstreamTimeout || !strings.Contains(err.Error(), "all 1 sessions") {
						t.Errorf("without a place: %v", err)
					}
				}
				return x.err
			}); (err == nil) != (x.err == nil) {
				t.Errorf("%v: %v", x.err, err)
			}
			synctest.Wait()
			if h := s.Health(); h.Idle != x.cached || h.Busy != 0 || in.ended.Load() != (x.cached == 0) {
				t.Errorf("after %v: %+v, closed %v", x.err, h, in.ended.Load())
			}
			s.idle = map[string][]*session{}
			_ = in.Close()
		}
	})
}

// TestRestarted checks that a request runs again in a new session if the server no longer has
// the cached one, and that the error of the connection is returned if no new session can be
// opened.
func TestRestarted(t *testing.T) {
	h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return empty() }, nil))
	defer h.Close()
	s := New(Config{URL: h.URL, Concurrency: 1, Timeout: time.Minute, Version: "t"})
	defer s.Close()
	runs := 0
	do := func() error {
		runs = 0
		return s.Do(t.Context(), "", http.Header{}, nil, func(ctx context.Context, x Session) error {
			runs++
			if runs == 1 {
				return &sent{fmt.Errorf("ping: %w", mcp.ErrSessionMissing)}
			}
			return x.Ping(ctx, nil)
		})
	}
	if err := do(); code(err) != contract.CodeUpstreamCut || runs != 1 {
		t.Errorf("in a new session: %d runs, %v", runs, err)
	}
	cache := func() {
		if err := s.Do(t.Context(), "", http.Header{}, nil, func(ctx context.Context, x Session) error { return x.Ping(ctx, nil) }); err != nil {
			t.Fatal(err)
		}
	}
	cache()
	if err := do(); err != nil || runs != 2 {
		t.Errorf("in a cached session: %d runs, %v", runs, err)
	}
	cache()
	s.base = pool().base
	if err := do(); code(err) != contract.CodeUpstreamUnreachable || runs != 1 {
		t.Errorf("without a server: %d runs, %v", runs, err)
	}
}

// TestDrain checks that Drain waits until all notifications were handled, and at most
// drainWithin.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, x := range []struct {
			sent, handled int64
			after, want   time.Duration // time after which the others are handled, and time for which Drain waits
		}{{0, 0, 0, 0}, {2, 2, 0, 0}, {2, 3, 0, 0}, {2, 1, 100 * time.Millisecond, 100 * time.Millisecond}, {2, 1, time.Second, drainWithin}} {
			s := Session{s: &session{}}
			s.s.sent.Store(x.sent)
			s.s.handled.Store(x.handled)
			began := time.Now()
			if x.after > 0 {
				time.AfterFunc(x.after, func() { s.s.handled.Store(x.sent) })
			}
			s.Drain()
			if took := time.Since(began); took < x.want || took > x.want+time.Millisecond || s.s.handled.Load() != x.sent {
				t.Errorf("%+v: %v, %d handled", x, took, s.s.handled.Load())
			}
		}
	})
}

// caller is a Caller that records the notifications and requests that it receives.
type caller struct {
	mu  sync.Mutex
	got []string
}

func (c *caller) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, what)
}

func (c *caller) Notify(method string, _ any) { c.add(method) }

func (c *caller) Elicit(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	c.add("elicit")
	return &mcp.ElicitResult{Action: "decline"}, nil
}

func (c *caller) Sample(context.Context, *mcp.CreateMessageWithToolsParams) (*mcp.CreateMessageWithToolsResult, error) {
	c.add("sample")
	return &mcp.CreateMessageWithToolsResult{Model: "m", Role: "assistant", Content: []mcp.Content{&mcp.TextContent{Text: "x"}}}, nil
}

func (c *caller) Roots(context.Context) (*mcp.ListRootsResult, error) {
	c.add("roots")
	return &mcp.ListRootsResult{Roots: []*mcp.Root{}}, nil
}

// TestCaller checks that requests and notifications of a server reach the caller of the
// request that runs. Without a caller, the server's requests fail, and its notifications
// count as handled.
func TestCaller(t *testing.T) {
	x, ss := joined(t, pool(), empty())
	defer x.Close()
	ctx := t.Context()
	send := func() map[string]error {
		_, roots := ss.ListRoots(ctx, nil)
		_, sample := ss.CreateMessageWithTools(ctx, &mcp.CreateMessageWithToolsParams{MaxTokens: 1, Messages: []*mcp.SamplingMessageV2{}})
		_, elicit := ss.Elicit(ctx, &mcp.ElicitParams{Mode: "form", Message: "x", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}})
		return map[string]error{"roots": roots, "sample": sample, "elicit": elicit, "progress": ss.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p"})}
	}
	handled := func(n int64) {
		t.Helper()
		for x.handled.Load() < n { // notifications are handled concurrently
			time.Sleep(time.Millisecond)
		}
	}
	var none Caller
	for i, c := range []*Caller{nil, &none} {
		x.caller.Store(c)
		for what, err := range send() {
			if (err == nil) != (what == "progress") {
				t.Errorf("%s without a caller: %v", what, err)
			}
		}
		handled(int64(i + 1))
	}
	var c caller
	var as Caller = &c
	x.caller.Store(&as)
	for what, err := range send() {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	handled(3)
	if want := []string{"elicit", "notifications/progress", "roots", "sample"}; !slices.Equal(slices.Sorted(slices.Values(c.got)), want) {
		t.Errorf("%v, want %v", c.got, want)
	}
}

// TestSubscribe checks that the notifications of a subscription reach its caller, and that the
// session is closed when the subscription is stopped or the server refuses it.
func TestSubscribe(t *testing.T) {
	const uri = "x:y"
	var refuse error
	closed := make(chan struct{}, 8)
	srv := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return refuse },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, nil)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r)
		if r.Method == http.MethodDelete {
			closed <- struct{}{}
		}
	}))
	defer h.Close()
	s := New(Config{URL: h.URL, Concurrency: 1, Timeout: time.Minute, Version: "t"})
	var c caller
	in, err := s.Subscribe(t.Context(), "", http.Header{}, &c, uri)
	if err != nil {
		t.Fatal(err)
	}
	received := func() []string {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Clone(c.got)
	}
	for len(received()) == 0 { // the stream of notifications opens after the response
		if err := srv.ResourceUpdated(t.Context(), &mcp.ResourceUpdatedNotificationParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if got := received(); got[0] != mcpdoc.Updated {
		t.Error(got)
	}
	in.Stop()
	<-closed
	<-in.Ended
	refuse = &jsonrpc.Error{Code: -32602, Message: "no such resource"}
	if _, err := s.Subscribe(t.Context(), "", http.Header{}, &c, uri); code(err) != contract.CodeUpstreamRefused {
		t.Errorf("a subscription that the server refuses: %v", err)
	}
	<-closed
}
