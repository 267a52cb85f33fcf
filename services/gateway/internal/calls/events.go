package calls

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/durable"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// Names of server-sent events.
const (
	eventState  = "state"  // a CallState
	eventResult = "result" // the last event: a CallResponse, or a CallState if the call waits for approval
	eventError  = "error"  // the last event: an apierr.Body
)

// idleEvery is the interval at which a comment is sent in a stream without events, so that proxies
// do not close its connection.
const idleEvery = 15 * time.Second

// acceptsEvents reports whether a request accepts server-sent events.
func acceptsEvents(c echo.Context) bool {
	return strings.Contains(c.Request().Header.Get("Accept"), "text/event-stream")
}

// eventStream is a response of server-sent events, which begins with the first event. It is
// not safe for concurrent use.
type eventStream struct {
	c     echo.Context
	begun bool
	last  []byte    // the last state that the method changed has sent
	sent  time.Time // when the method changed last sent an event or a comment
}

// send writes one event.
func (s *eventStream) send(name string, doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return s.write(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, b))
}

func (s *eventStream) write(b []byte) error {
	w := s.c.Response()
	if !s.begun {
		s.begun = true
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-cache")
		w.WriteHeader(http.StatusOK)
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	w.Flush()
	return nil
}

// fail writes the last event of a stream whose request failed. It logs an error that is not
// meant for the caller, as the error handler does.
func (s *eventStream) fail(err error, log func(err error)) error {
	var e *apierr.Error
	switch {
	case errors.Is(err, context.Canceled):
		return nil // the client has disconnected
	case !errors.As(err, &e):
		log(err)
		e = &apierr.Error{Status: http.StatusInternalServerError, Type: "server_error", Code: contract.CodeInternal, Message: "internal error; see the gateway's log"}
	}
	return s.send(eventError, e.Doc(""))
}

// progressing sends the progress of the call r to a caller that accepts server-sent events,
// until end is called. end returns the stream, or nil if no event was sent: the response is
// then an ordinary one, with its status.
func (s *API) progressing(c echo.Context, r propose.Request) (end func() *eventStream) {
	if !acceptsEvents(c) || Async(c) {
		return func() *eventStream { return nil }
	}
	st := &eventStream{c: c}
	stop := Follow(c.Request().Context(), s.Runner, r, func(n Notice) {
		if !st.begun {
			Headers(c, r, "")
		}
		state := CallState{CallID: r.ID, Session: r.Session, Called: r.SessionName, Status: running, Queued: n.Queued, Poll: pollOf(r.ID)}
		if n.Reported {
			durable.Known(c) // the claim of the call was durable before its program started
			state.Progress = &n.Progress
		}
		_ = st.send(eventState, state) // a client that has disconnected ends the request
	})
	return func() *eventStream {
		stop()
		if !st.begun {
			return nil
		}
		return st
	}
}

// watchEvery is the interval at which the events of a call are read from the ledger for a stream.
const watchEvery = time.Second

// watch responds with the states of a call as server-sent events, one for each change; the last
// one contains the outcome. Audit's index is queried for the call at the beginning only: after that
// its events are read from the ledger, and the gateway's reader ends the wait of the gateway that
// proposed the call. An error before the first event is an ordinary response; a later one
// ends the stream unless it is retryable. The stream counts in Streams, and it is aborted when the
// caller's access ends.
func (s *API) watch(c echo.Context, who *auth.Caller) error {
	leave, ok := s.Streams.Take(who.Tenant)
	if !ok {
		return apierr.ReadsExceeded("tenant " + who.Tenant + " has as many streams open at this gateway as it may; end one, or read the state without a stream")
	}
	defer leave()
	ctx, end := s.Gate.WatchReads(c.Request().Context(), who, false)
	defer end()
	call, last, err := s.watched(ctx, who, c.Param("id"))
	if err != nil {
		return err
	}
	defer call.Close()
	st := &eventStream{c: c}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		out, err := s.current(ctx, who.Tenant, last)
		switch {
		case ctx.Err() != nil && c.Request().Context().Err() == nil && st.begun:
			panic(http.ErrAbortHandler) // the client is still connected, but its access has ended
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !st.begun:
			return err
		case err != nil && !retryable(err):
			return st.fail(err, func(err error) { s.Log.Error("request failed", "path", c.Path(), "err", err) })
		}
		if gone := st.changed(out, err == nil); gone != nil || err == nil && out.ReceiptID != "" {
			return nil // the client has disconnected, or has the outcome
		}
		last = next(ctx, call, tick.C, last)
	}
}

// watched returns a Watch of a call and the newest event of it that audit's index has. Its errors
// are those of State.
func (s *API) watched(ctx context.Context, who *auth.Caller, id string) (*await.Watch, *contract.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, queries.Timeout)
	defer cancel()
	last, at, err := s.lastOf(ctx, who, id)
	if err != nil {
		return nil, nil, err
	}
	first, err := s.Runner.Queries.In(who.Tenant).Event(ctx, audit.ProposalQuery, id)
	if err != nil {
		return nil, nil, err
	}
	var call contract.Call
	if first == nil || contract.Decode(first.Data, &call) != nil {
		return nil, nil, apierr.Unavailable("the proposal of call " + id + " cannot be read now")
	}
	return s.Past.Watch(first, &call, await.Known{Last: last, At: at}), last, nil
}

// next waits for tick, or for the escalation or the outcome of a call, and returns the newest event
// of the call: last if no other one is found, or if the ledger cannot be read now. It returns last
// when ctx is done.
func next(ctx context.Context, call *await.Watch, tick <-chan time.Time, last *contract.Event) *contract.Event {
	select {
	case <-ctx.Done():
		return last
	case out := <-call.Outcome():
		return out.Event
	case <-call.Escalated():
	case <-tick:
	}
	ctx, cancel := context.WithTimeout(ctx, queries.Timeout)
	defer cancel()
	if e, err := call.Next(ctx); err == nil && e != nil {
		return e
	}
	return last
}

// changed sends state if read is set and state differs from the one that was sent last. Otherwise
// it sends a comment if it has sent nothing for idleEvery.
func (s *eventStream) changed(state CallState, read bool) error {
	b, err := json.Marshal(state)
	switch {
	case err != nil:
		return err
	case read && string(b) != string(s.last):
		s.last, s.sent = b, time.Now()
		return s.send(eventState, state)
	case time.Since(s.sent) >= idleEvery:
		s.sent = time.Now()
		return s.write([]byte(":\n\n"))
	}
	return nil
}

// retryable reports whether a read of the state of a call may succeed later.
func retryable(err error) bool {
	e := (*apierr.Error)(nil)
	return errors.As(err, &e) && e.Status == http.StatusServiceUnavailable
}
