package mcprouter

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/upstream"
)

// held is the prefix of the requestState of an exchange that waits in this service for
// answers of the client. A requestState without it is the server's.
const held = "binnacle-held."

// heldWithin is the time within which the client must answer a server's requests.
const heldWithin = 2 * time.Minute

// maxHeld is the maximum number of exchanges that an instance holds.
const maxHeld = 256

// exchange is one request to a server, from its beginning to its result. A server of an
// older protocol version may request input from the client before it responds. The call
// then ends with these requests as its output, as calls of servers of newer versions do,
// and the exchange is held until another call brings the answers, or heldWithin has
// passed. So every answer of a client belongs to a call that was decided.
type exchange struct {
	tenant, actor, kind string
	can                 mcpdoc.Round // what the client declared
	began               *call        // the call with which the exchange began

	cancel   context.CancelFunc
	requests chan *request // of the server, for the client
	asked    atomic.Bool   // the server has sent a request for the client
	done     chan struct{} // closed when the request has ended; out, refused and err are then set
	out      mcp.Result
	refused  *execute.Result
	err      error
	// attestation is that of the server's sandbox, or nil; set before done is closed.
	attestation *contract.Attestation

	mu   sync.Mutex
	call *call               // the call to which notifications belong; nil while the exchange is held
	open map[string]*request // requests that the client has not answered, by key
	n    int                 // number of requests that the client has received
}

// request is a request of the server.
type request struct {
	input  mcp.InputRequest
	answer chan mcp.InputResponse
}

// errUnanswered is returned to a server whose request was not answered.
var errUnanswered = errors.New("the client did not answer")

// ask passes a request of the server to the client, and returns the answer. It returns an
// error if the client has not declared the capability or does not answer.
func (x *exchange) ask(ctx context.Context, capability string, in mcp.InputRequest) (mcp.InputResponse, error) {
	x.asked.Store(true)
	if !x.can.Can(capability) {
		return nil, errors.New("the client does not have the capability " + capability)
	}
	r := &request{in, make(chan mcp.InputResponse, 1)}
	select {
	case x.requests <- r:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-x.done:
		return nil, errUnanswered
	}
	select {
	case a := <-r.answer:
		if a == nil {
			return nil, errUnanswered
		}
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-x.done:
		return nil, errUnanswered
	}
}

// Notify implements upstream.Caller.
func (x *exchange) Notify(method string, params any) {
	x.mu.Lock()
	c := x.call
	x.mu.Unlock()
	if c != nil {
		c.notify(method, params)
	}
}

// Elicit implements upstream.Caller.
func (x *exchange) Elicit(ctx context.Context, p *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	a, err := x.ask(ctx, "elicitation", p)
	if r, ok := a.(*mcp.ElicitResult); ok {
		return r, nil
	}
	return nil, errors.Join(err, errUnanswered)
}

// Sample implements upstream.Caller.
func (x *exchange) Sample(ctx context.Context, p *mcp.CreateMessageWithToolsParams) (*mcp.CreateMessageWithToolsResult, error) {
	a, err := x.ask(ctx, "sampling", p)
	switch r := a.(type) {
	case *mcp.CreateMessageWithToolsResult:
		return r, nil
	case *mcp.CreateMessageResult:
		return &mcp.CreateMessageWithToolsResult{Meta: r.Meta, Content: []mcp.Content{r.Content}, Model: r.Model, Role: r.Role, StopReason: r.StopReason}, nil
	}
	return nil, errors.Join(err, errUnanswered)
}

// Roots implements upstream.Caller.
func (x *exchange) Roots(ctx context.Context) (*mcp.ListRootsResult, error) {
	a, err := x.ask(ctx, "roots", &mcp.ListRootsParams{})
	if r, ok := a.(*mcp.ListRootsResult); ok {
		return r, nil
	}
	return nil, errors.Join(err, errUnanswered)
}

// begin starts the request of a call.
func (c *call) begin(ctx context.Context, round *mcpdoc.Round, key string) *exchange {
	running, cancel := context.WithCancel(context.WithoutCancel(withWork(ctx, c.w, c.w.Secrets))) // it may outlive the call
	x := &exchange{tenant: c.w.Event.Tenant, actor: c.w.Event.Actor, kind: c.w.Call.Kind, can: *round, began: c, cancel: cancel,
		requests: make(chan *request), done: make(chan struct{}), call: c, open: map[string]*request{}}
	go func() {
		defer close(x.done)
		defer cancel()
		rejected := func(err error) bool { return !x.asked.Load() && upstream.Rejected(err) }
		x.err = renewed(running, c.w, c.cfg, c.w.Secrets, rejected, func(secrets map[string]string) error {
			return c.s.pool(c.cfg).Do(running, key, headers(c.cfg, secrets), x, func(ctx context.Context, u upstream.Session) error { return x.do(ctx, u, round) })
		})
	}()
	return x
}

// do sends the request of the call with which the exchange began, unless the tool has changed. If the
// server announces a change of its tools meanwhile, do compares them again after the request, so that
// clients are notified of the change before the next call.
func (x *exchange) do(ctx context.Context, u upstream.Session, round *mcpdoc.Round) (err error) {
	c := x.began
	x.attestation = attestation(u)
	if done, unlisted := u.Unlisted(); unlisted {
		if x.refused, err = c.s.compare(ctx, u, c); x.refused != nil || err != nil {
			return err
		}
		done()
	}
	x.out, err = c.request(ctx, u, round)
	if round.Progress || round.LogLevel != "" {
		u.Drain()
	}
	if done, unlisted := u.Unlisted(); unlisted && err == nil {
		if _, failed := c.s.compare(ctx, u, c); failed == nil {
			done()
		}
	}
	return err
}

// gather is the time for which wait collects further requests of a server after the first
// one.
const gather = 5 * time.Millisecond

// maxAsked is the maximum number of requests of a server that a client receives at once.
const maxAsked = 9

// keep adds a request to those that the client has not answered.
func (x *exchange) keep(all map[string]*request, r *request) {
	x.n++
	all["request-"+strconv.Itoa(x.n)] = r
}

// wait waits until the exchange has ended, or the server requests input: it then holds the
// exchange and returns the requests as the result. If the client has left requests
// unanswered, wait does not wait for another one before it returns them. If ctx ends first,
// or if the exchange cannot be held, wait cancels the exchange and returns an error.
func (c *call) wait(ctx context.Context, x *exchange) (mcp.Result, *execute.Result, error) {
	x.mu.Lock()
	keep := x.open
	x.open = nil
	x.mu.Unlock()
	if len(keep) == 0 {
		keep = map[string]*request{}
		select {
		case <-x.done:
			return x.out, x.refused, x.err
		case <-ctx.Done():
			x.cancel()
			return nil, nil, ctx.Err()
		case r := <-x.requests:
			x.keep(keep, r)
		}
	}
	for late := time.After(gather); late != nil; {
		select {
		case r := <-x.requests:
			if x.keep(keep, r); len(keep) < maxAsked {
				continue
			}
		case <-late:
		case <-x.done:
		}
		late = nil
	}
	x.mu.Lock()
	x.call, x.open = nil, keep
	x.mu.Unlock()
	state, ok := c.s.hold(x)
	if !ok {
		x.cancel()
		return nil, nil, &upstream.Error{Code: contract.CodeUnavailable, Message: "too many requests wait for answers of clients: call again later"}
	}
	in := mcp.InputRequestMap{}
	for k, r := range keep {
		in[k] = r.input
	}
	switch {
	case strings.HasPrefix(c.w.Call.Kind, mcpdoc.ResourcePrefix):
		return &mcp.ReadResourceResult{InputRequests: in, RequestState: state}, nil, nil
	case strings.HasPrefix(c.w.Call.Kind, mcpdoc.PromptPrefix):
		return &mcp.GetPromptResult{InputRequests: in, RequestState: state}, nil, nil
	}
	return &mcp.CallToolResult{InputRequests: in, RequestState: state}, nil, nil
}

// hold keeps an exchange until its answers arrive, and cancels it if they have not
// arrived within heldWithin. It returns a state that cannot be guessed, by which resume
// finds the exchange, or false if maxHeld exchanges are held.
func (s *Service) hold(x *exchange) (state string, ok bool) {
	state = held + s.env.Instance + "." + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) >= maxHeld {
		return "", false
	}
	s.held[state] = x
	time.AfterFunc(heldWithin, func() {
		s.mu.Lock()
		late := s.held[state] != nil
		delete(s.held, state)
		s.mu.Unlock()
		if late {
			x.cancel()
		}
	})
	return state, true
}

// resume passes the answers of a client to the exchange that waits for them, and returns
// the exchange. An exchange is found only by calls of the same kind by the same actor in
// the same tenant; if none is found, resume returns an error. If the answers are
// malformed, it cancels the exchange and returns an error.
func (c *call) resume(round *mcpdoc.Round) (*exchange, error) {
	c.s.mu.Lock()
	x := c.s.held[round.RequestState]
	if x != nil && (x.tenant != c.w.Event.Tenant || x.actor != c.w.Event.Actor || x.kind != c.w.Call.Kind) {
		x = nil
	}
	if x != nil {
		delete(c.s.held, round.RequestState)
	}
	c.s.mu.Unlock()
	if x == nil {
		return nil, &upstream.Error{Code: contract.CodeInvalidInput, Message: "requestState: no request of the server waits under this state in instance " + c.s.env.Instance + ", or its time is over: call again without requestState"}
	}
	var answers mcp.InputResponseMap
	if err := json.Unmarshal(or(round.InputResponses, "{}"), &answers); err != nil {
		x.cancel()
		return nil, &upstream.Error{Code: contract.CodeInvalidInput, Message: "inputResponses are malformed: " + err.Error()}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.call = c
	for k, r := range x.open {
		if answers[k] != nil {
			delete(x.open, k)
			r.answer <- answers[k] // does not block
		}
	}
	return x, nil
}

// or returns b, or other if b is empty.
func or(b json.RawMessage, other string) json.RawMessage {
	if len(b) == 0 {
		return json.RawMessage(other)
	}
	return b
}
