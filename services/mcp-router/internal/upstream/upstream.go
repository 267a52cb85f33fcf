// Package upstream holds the sessions with MCP servers. A Server is the pool of sessions with one
// server: each request has a session to itself while it runs, so that each message that the server
// sends in the meantime belongs to the request.
package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
)

// Error is the error of a request to a server, with the code of the call's outcome.
type Error struct {
	Code    string
	Message string
	Cause   error
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Config describes a server.
type Config struct {
	Name string // of the server in the mesh
	// Start starts a server that is a command, and returns its standard output and input. It is
	// called for each session, with a context that has the values of that of the request. If it is
	// nil, the server has a URL.
	Start       func(context.Context) (io.ReadWriteCloser, error)
	Once        bool // a session serves one request
	URL         string
	SSE         bool          // the server uses the HTTP transport of protocol version 2024-11-05
	Concurrency int           // maximum number of concurrent requests; subscriptions do not count
	Timeout     time.Duration // maximum time of a request
	Version     string        // of this program
}

// Caller receives the notifications and requests that a server sends while a request runs. Its
// methods may be called concurrently and, for a message that arrived while the request ran, also
// after Do has returned.
type Caller interface {
	Notify(method string, params any)
	Elicit(ctx context.Context, p *mcp.ElicitParams) (*mcp.ElicitResult, error)
	Sample(ctx context.Context, p *mcp.CreateMessageWithToolsParams) (*mcp.CreateMessageWithToolsResult, error)
	Roots(ctx context.Context) (*mcp.ListRootsResult, error)
}

// Times of a pool.
const (
	idleFor     = time.Minute            // time after which put closes an unused session
	firstDelay  = 250 * time.Millisecond // time without attempts after a failure to connect; it doubles up to lastDelay
	lastDelay   = 30 * time.Second
	dialWithin  = 15 * time.Second
	startWithin = time.Minute      // as dialWithin, for a command: its image may have to be unpacked
	maxAge      = 50 * time.Minute // age after which the session with a command is not used again
)

// Server is the pool of sessions with one server. It is safe for concurrent use.
type Server struct {
	cfg   Config
	slots chan struct{}
	base  http.RoundTripper

	mu     sync.Mutex
	idle   map[string][]*session // by key
	closed bool
	failed int       // consecutive failures to connect
	until  time.Time // pause returns an error before this time
	last   string    // message of the last failure; "" after a success
	used   bool      // a session was opened
}

// New returns a pool without sessions. The caller must call Close.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, slots: make(chan struct{}, cfg.Concurrency), base: newTransport(), idle: map[string][]*session{}}
}

// session is a session with the server.
type session struct {
	*mcp.ClientSession
	headers atomic.Pointer[http.Header]
	caller  atomic.Pointer[Caller] // of the request that runs or of the subscription; nil between requests
	lists   atomic.Int64           // 1 plus the number of announcements that the server's tools have changed
	listed  atomic.Int64           // value of lists when the tools were last compared with their documents; 0 before
	ended   atomic.Bool            // the session has ended, for example because the server restarted
	over    chan struct{}          // closed after ended is set
	sent    atomic.Int64           // number of notifications that the server sent in streams
	handled atomic.Int64           // number of notifications that were passed to the caller, or dropped because there was none
	used    time.Time
	opened  time.Time
	watches watches               // of a command; see Server.Subscribe
	command io.ReadWriteCloser    // what Config.Start returned, or nil
	broken  atomic.Pointer[error] // why the output of command ended
	plain   *plainCalls           // nil unless the server has a URL and does not use SSE
}

// Session is a session with a server during Do.
type Session struct {
	*mcp.ClientSession
	s *session
}

// Command returns what Config.Start returned for this session, or nil.
func (s Session) Command() io.ReadWriteCloser { return s.s.command }

// Unlisted returns whether the tools of the server must be compared with their documents
// before a call: they were not compared in this session, or the server has announced a
// change since. The caller calls done after a comparison that need not be repeated before
// the next call.
func (s Session) Unlisted() (done func(), unlisted bool) {
	now := s.s.lists.Load()
	return func() { s.s.listed.Store(now) }, s.s.listed.Load() != now
}

// drainWithin is the maximum time to wait for notifications that were sent before a
// response. If a server sends the name of such a notification as text in a stream, the
// request waits for this whole time, because the text is counted but never handled.
const drainWithin = 250 * time.Millisecond

// Drain waits, for at most drainWithin, until the notifications that the server sent
// before its response were passed to the Caller. Afterwards all of them count as handled.
func (s Session) Drain() {
	for end := time.Now().Add(drainWithin); s.s.handled.Load() < s.s.sent.Load() && time.Now().Before(end); {
		time.Sleep(200 * time.Microsecond)
	}
	s.s.handled.Store(s.s.sent.Load())
}

// States of a server.
const (
	Unused    = "unused"    // this process has not connected to the server
	Reachable = "reachable" // the last attempt to connect has succeeded
	Backoff   = "backoff"   // the last attempt has failed, and the delay after it lasts
	Failing   = "failing"   // the last attempt has failed; the next call makes another one
)

// Health is the state of a server.
type Health struct {
	State    string `json:"state"`              // Unused, Reachable, Backoff or Failing
	RetryMS  int64  `json:"retry_ms,omitempty"` // time until the next attempt in state Backoff
	Failures int    `json:"failures"`           // consecutive failures to connect
	Error    string `json:"error,omitempty"`
	Idle     int    `json:"idle"` // unused sessions
	Busy     int    `json:"busy"` // sessions that requests use
}

// Health returns the state of the pool, and of the last attempt of this process to
// connect to the server.
func (s *Server) Health() Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, l := range s.idle {
		n += len(l)
	}
	h := Health{State: Unused, Failures: s.failed, Error: s.last, Idle: n, Busy: len(s.slots)}
	wait := time.Until(s.until)
	switch {
	case s.last != "" && wait > 0:
		h.State, h.RetryMS = Backoff, wait.Milliseconds()
	case s.last != "":
		h.State = Failing
	case s.used:
		h.State = Reachable
	}
	return h
}

// Do runs f with a session that no other request uses. Sessions are cached by key, and the headers are
// added to each HTTP request of the session. c receives the notifications and requests that the server
// sends while f runs; if c is nil, the server's requests fail. If the server reports that a cached
// session does not exist any more, Do runs f again with a new one. The context of f ends after the
// time that the configuration permits, which for a command does not include its start. The error is or
// wraps an *Error, whatever error f returned, or is that of ctx if ctx was cancelled while f ran.
func (s *Server) Do(ctx context.Context, key string, headers http.Header, c Caller, f func(context.Context, Session) error) error {
	within := s.cfg.Timeout
	if s.cfg.Start != nil {
		within += startWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return &Error{contract.CodeUpstreamTimeout, fmt.Sprintf("all %d sessions with the server were busy: raise concurrency", s.cfg.Concurrency), ctx.Err()}
	}
	x, reused, err := s.take(ctx, key, headers)
	if err != nil {
		return err
	}
	err = s.with(ctx, x, headers, c, f)
	if reused && gone(err) { // for example because the server restarted
		s.drop(x)
		if x, err = s.connect(ctx, headers); err != nil {
			return err
		}
		err = s.with(ctx, x, headers, c, f)
	}
	if s.cfg.Once && (err == nil || Refusal(err) != nil) {
		s.worked()
		s.drop(x)
		return err
	}
	if err == nil || Refusal(err) != nil {
		s.put(key, x)
		return err
	}
	s.drop(x)
	return s.lost(x, err)
}

// lost returns err, or if it reports that a command has ended, an error with the reason for the end,
// after it has begun the delay until the command may be started again.
func (s *Server) lost(x *session, err error) error {
	var e *Error
	if s.cfg.Start == nil || !errors.As(err, &e) || e.Code != contract.CodeUpstreamCut {
		return err
	}
	if why := x.broken.Load(); why != nil {
		err = &Error{e.Code, fmt.Sprintf("the server ended before it responded: %.1200s", *why), *why}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay(err)
	return err
}

// worked ends the delay after failures.
func (s *Server) worked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed, s.until, s.last = 0, time.Time{}, ""
}

// delay extends the time without attempts after a failure. The caller holds s.mu.
func (s *Server) delay(err error) {
	d := min(firstDelay<<min(s.failed, 10), lastDelay)
	s.failed, s.until, s.last = s.failed+1, time.Now().Add(d), fmt.Sprintf("%.1200s", err)
}

// with runs f with a session. Its errors are those of errorOf.
func (s *Server) with(ctx context.Context, x *session, headers http.Header, c Caller, f func(context.Context, Session) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	x.headers.Store(&headers)
	x.caller.Store(&c)
	defer x.caller.Store(nil)
	return errorOf(ctx, f(ctx, Session{x.ClientSession, x}))
}

// gone reports whether err is the server's response that the session of a request does
// not exist.
func gone(err error) bool {
	return errors.Is(err, mcp.ErrSessionMissing)
}

// local are the beginnings of the messages of the JSON-RPC errors that the SDK itself
// returns when a message cannot be exchanged.
var local = []string{"rejected by transport", "server is closing", "client is closing"}

// Refusal returns the error of JSON-RPC with which the server responded, or nil if err is
// another one.
func Refusal(err error) *jsonrpc.Error {
	var wire *jsonrpc.Error
	if !errors.As(err, &wire) || slices.ContainsFunc(local, func(m string) bool { return strings.HasPrefix(wire.Message, m) }) {
		return nil
	}
	return wire
}

// sent is the error of a request to the server; other errors of the function that Do runs
// are not about the session.
type sent struct{ error }

// Unwrap returns the cause.
func (e *sent) Unwrap() error { return e.error }

// errorOf returns nil for nil, and otherwise err as an *Error with the code of the
// outcome. If ctx was cancelled, it returns the error of ctx instead, unless err is an
// *Error, or the server could not be reached or responded with an error. If no case below
// matches, an error of a request counts as the end of the session, and any other error as
// an internal error.
func errorOf(ctx context.Context, err error) error {
	var e *Error
	var dial *net.OpError
	var request *sent
	wire := Refusal(err)
	switch {
	case err == nil || errors.As(err, &e):
		return err
	case errors.As(err, &dial) && dial.Op == "dial":
		return &Error{contract.CodeUpstreamUnreachable, fmt.Sprintf("the server could not be reached: %.512s", err), err}
	case wire != nil:
		return &Error{contract.CodeUpstreamRefused, fmt.Sprintf("the server responded with error %d: %.1024s", wire.Code, wire.Message), err}
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &Error{contract.CodeUpstreamTimeout, "the server did not respond in time", err}
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.As(err, &request):
		return &Error{contract.CodeInternal, fmt.Sprintf("the request to the server failed in mcp-router: %.512s", err), err}
	}
	return &Error{contract.CodeUpstreamCut, fmt.Sprintf("the session with the server ended before it responded: %.512s", err), err}
}

// take returns a session with the key. reused reports whether the session was cached;
// otherwise it is new. It returns an error without an attempt to connect while the delay
// after a failed attempt lasts.
func (s *Server) take(ctx context.Context, key string, headers http.Header) (x *session, reused bool, err error) {
	s.mu.Lock()
	for l := s.idle[key]; x == nil && len(l) > 0; l = s.idle[key] {
		x = l[len(l)-1]
		if s.idle[key] = l[:len(l)-1]; x.ended.Load() || s.cfg.Start != nil && time.Since(x.opened) > maxAge {
			s.drop(x)
			x = nil
		}
	}
	s.mu.Unlock()
	if x != nil {
		return x, true, nil
	}
	if err := s.pause(); err != nil {
		return nil, false, err
	}
	x, err = s.connect(ctx, headers)
	return x, false, err
}

// Subscription is a subscription to changes of a resource.
type Subscription struct {
	Session Session
	Stop    func()          // ends the subscription; must be called
	Ended   <-chan struct{} // closed when the session has ended
}

// Subscribe subscribes to changes of a resource, which are passed to c until the subscription is stopped.
// It has a session of its own, which is then closed, or if the server is a command, a session with the
// key, which requests use, too. The errors are those of Do.
func (s *Server) Subscribe(ctx context.Context, key string, headers http.Header, c Caller, uri string) (out Subscription, err error) {
	if s.cfg.Start != nil {
		return s.watch(ctx, key, headers, c, uri)
	}
	if err := s.pause(); err != nil {
		return out, err
	}
	x, err := s.connect(ctx, headers)
	if err != nil {
		return out, err
	}
	x.caller.Store(&c)
	stop := func() {
		x.caller.Store(nil)
		s.drop(x)
	}
	if err := x.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
		stop()
		return out, errorOf(ctx, err)
	}
	return Subscription{Session{x.ClientSession, x}, stop, x.over}, nil
}

// pause returns an error while the delay after a failed attempt to connect lasts.
func (s *Server) pause() error {
	s.mu.Lock()
	wait, last := time.Until(s.until), s.last
	s.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	return &Error{contract.CodeUpstreamUnreachable, fmt.Sprintf("the server could not be reached; the next attempt is in %s: %s", wait.Round(time.Millisecond), last), nil}
}

// put caches a session for other requests, and closes the sessions that were unused for
// longer than idleFor. After Close, it closes the session.
func (s *Server) put(key string, x *session) {
	now := time.Now()
	x.used = now
	var old []*session
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.idle[key] = append(s.idle[key], x)
	}
	if s.cfg.Start != nil {
		s.failed, s.until, s.last = 0, time.Time{}, ""
		time.AfterFunc(idleFor+time.Second, s.trim)
	}
	old = append(old, s.expired(now)...)
	s.mu.Unlock()
	if closed {
		old = append(old, x)
	}
	for _, x := range old {
		s.drop(x)
	}
}

// trim closes the sessions that were unused for longer than idleFor.
func (s *Server) trim() {
	s.mu.Lock()
	old := s.expired(time.Now())
	s.mu.Unlock()
	for _, x := range old {
		s.drop(x)
	}
}

// expired removes the sessions that were unused for longer than idleFor, and returns them. The
// caller holds s.mu.
func (s *Server) expired(now time.Time) (old []*session) {
	for k, l := range s.idle {
		s.idle[k] = slices.DeleteFunc(l, func(x *session) bool {
			unused := now.Sub(x.used) > idleFor && x.watches.none()
			if unused {
				old = append(old, x)
			}
			return unused
		})
		if len(s.idle[k]) == 0 {
			delete(s.idle, k)
		}
	}
	return old
}

// drop closes a session without waiting for the server.
func (s *Server) drop(x *session) { go func() { _ = x.Close() }() }

// Close closes the unused sessions. Sessions in use are closed after their requests, and
// those of subscriptions when they are stopped.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, l := range s.idle {
		for _, x := range l {
			s.drop(x)
		}
	}
	s.idle = map[string][]*session{}
}

// connect opens a session. If that fails, it extends the delay during which pause returns
// an error, unless the server rejects the credential in the headers.
func (s *Server) connect(ctx context.Context, headers http.Header) (*session, error) {
	within := dialWithin
	if s.cfg.Start != nil {
		within = startWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	x := &session{over: make(chan struct{}), opened: time.Now()}
	x.lists.Store(1)
	x.headers.Store(&headers)
	// The stream of the transport SSE ends with the context of Connect, so that context must
	// outlive ctx.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	inTime := context.AfterFunc(ctx, end)
	var cs *mcp.ClientSession
	t, err := s.transport(ctx, x)
	if err == nil {
		cs, err = s.client(x).Connect(life, t, nil)
	}
	inTime()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		x.ClientSession, s.used = cs, true
		if s.cfg.Start == nil { // a command may end in its first request
			s.failed, s.until, s.last = 0, time.Time{}, ""
		}
		go func() {
			defer end()
			_ = cs.Wait()
			x.ended.Store(true)
			close(x.over)
		}()
		return x, nil
	}
	end()
	if x.command != nil {
		_ = x.command.Close()
	}
	var own *Error
	if errors.As(err, &own) && errors.Is(err, errUnauthorized) { // another call may have a valid credential
		s.last = own.Message
		return nil, own
	}
	if why := x.broken.Load(); why != nil {
		err = *why
	}
	s.delay(err)
	if errors.As(err, &own) {
		return nil, own
	}
	return nil, &Error{contract.CodeUpstreamUnreachable, "the server could not be reached: " + s.last, err}
}

// transport returns the transport of a new session.
func (s *Server) transport(ctx context.Context, x *session) (mcp.Transport, error) {
	if s.cfg.Start != nil {
		var err error
		if x.command, err = s.cfg.Start(ctx); err != nil {
			return nil, err
		}
		return &mcp.IOTransport{Reader: &output{counted{ReadCloser: x.command, n: &x.sent}, x}, Writer: x.command, MaxLineLength: maxBody}, nil
	}
	h := &http.Client{Transport: &withHeaders{s.base, &x.headers, &x.sent, s.cfg.Name}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if s.cfg.SSE {
		return &mcp.SSEClientTransport{Endpoint: s.cfg.URL, HTTPClient: h, MaxEventSize: maxBody}, nil
	}
	x.plain = &plainCalls{h, s.cfg.URL, s.implementation()}
	return &mcp.StreamableClientTransport{Endpoint: s.cfg.URL, HTTPClient: h, MaxRetries: 2, MaxEventSize: maxBody}, nil
}

// implementation describes this client to servers.
func (s *Server) implementation() *mcp.Implementation {
	return &mcp.Implementation{Name: "binnacle", Version: s.cfg.Version}
}

// client returns the client of a session.
func (s *Server) client(x *session) *mcp.Client {
	current := func() (Caller, error) {
		if c := x.caller.Load(); c != nil && *c != nil {
			return *c, nil
		}
		return nil, errors.New("no call runs in this session")
	}
	notify := func(method string, params any) {
		if c, err := current(); err == nil {
			c.Notify(method, params)
		}
		x.handled.Add(1)
	}
	o := &mcp.ClientOptions{
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		Capabilities: &mcp.ClientCapabilities{RootsV2: &mcp.RootCapabilities{}, Sampling: &mcp.SamplingCapabilities{Tools: &mcp.SamplingToolsCapabilities{}},
			Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}}},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { x.lists.Add(1) },
		ElicitationHandler: func(ctx context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return nil, errors.New("unreachable: see the middleware")
		},
	}
	o.CreateMessageWithToolsHandler = func(ctx context.Context, r *mcp.CreateMessageWithToolsRequest) (*mcp.CreateMessageWithToolsResult, error) {
		c, err := current()
		if err != nil {
			return nil, err
		}
		return c.Sample(ctx, r.Params)
	}
	o.LoggingMessageHandler = func(_ context.Context, r *mcp.LoggingMessageRequest) { notify("notifications/message", r.Params) }
	o.ProgressNotificationHandler = func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		notify("notifications/progress", r.Params)
	}
	o.ResourceUpdatedHandler = func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
		if s.cfg.Start != nil {
			x.watches.updated(r.Params)
			return
		}
		notify(mcpdoc.Updated, r.Params)
	}
	client := mcp.NewClient(s.implementation(), o)
	client.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if err != nil {
				err = &sent{err}
			}
			return res, err
		}
	})
	client.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			c, err := current()
			switch r := req.(type) {
			case *mcp.ElicitRequest: // the SDK would refuse schemas that its own client does not support
				if err != nil {
					return nil, err
				}
				return c.Elicit(ctx, r.Params)
			case *mcp.ClientRequest[*mcp.ListRootsParams]:
				if err != nil {
					return nil, err
				}
				return c.Roots(ctx)
			}
			return next(ctx, method, req)
		}
	})
	return client
}

// raw returns each element of a list as JSON.
func raw[T any](list []T) ([]json.RawMessage, error) {
	out := make([]json.RawMessage, len(list))
	for i := range list {
		b, err := json.Marshal(list[i])
		if err != nil {
			return nil, err
		}
		out[i] = b
	}
	return out, nil
}
