// Package mcpbridge connects an MCP client that uses standard input and output with MCP over HTTP.
// It passes messages in both directions without changing their content, so that the client has all
// features of the mesh: with sessions for the protocol versions up to 2025-11-25, and without for
// the later ones. Only the cancellation of a running request by a client without sessions is not
// passed: it ends the HTTP request.
package mcpbridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Bridge passes the messages of one client. Its exported fields are set before Run, which is called
// once.
type Bridge struct {
	URL    string
	Client *http.Client // adds the credential to requests
	Out    io.Writer    // receives one message a line

	out     sync.Mutex // serializes writes to Out
	opening sync.Mutex // serializes the replacement of ended sessions
	pending sync.WaitGroup

	mu         sync.Mutex // guards the members below
	session    session
	initialize *message           // the client's initialize request; nil until the mesh responds to it
	running    map[string]func()  // by id: ends a request of a client without sessions
	listening  context.CancelFunc // ends the stream of notifications; nil if there is none
}

// session is an MCP session with the mesh. It is empty before the client has initialized, and for
// clients without sessions.
type session struct{ id, version string }

// Times of attempts to reach the mesh.
const (
	redial   = 200 * time.Millisecond // before a second attempt
	dialFor  = 30 * time.Second       // for all attempts to send one message
	relisten = time.Second            // before the stream of notifications is opened again
)

// Run passes the messages in the stream in, which are JSON documents, until its end, and then waits
// for the responses. The error states why in cannot be read.
func (b *Bridge) Run(ctx context.Context, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.running = map[string]func(){}
	defer b.end(context.WithoutCancel(ctx))
	for dec := json.NewDecoder(in); ; {
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		b.take(ctx, read(raw))
	}
	b.pending.Wait()
	return nil
}

// take passes a message of the client. Requests are passed concurrently; an initialize request, and
// messages that have no response, in order.
func (b *Bridge) take(ctx context.Context, m *message) {
	if m.Method == "notifications/cancelled" && b.stop(string(m.Params.RequestID)) {
		return // without sessions, the end of the HTTP request is the cancellation
	}
	if !m.request() || m.Method == "initialize" {
		b.pass(ctx, m)
		return
	}
	own, cancel := context.WithCancel(ctx)
	if m.version() != "" {
		b.mu.Lock()
		b.running[string(m.ID)] = cancel
		b.mu.Unlock()
	}
	b.pending.Go(func() {
		defer b.stop(string(m.ID))
		defer cancel()
		b.pass(own, m)
	})
}

// stop ends a request of a client without sessions, and reports whether it was running.
func (b *Bridge) stop(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	end := b.running[id]
	if delete(b.running, id); end != nil {
		end()
	}
	return end != nil
}

// pass sends a message of the client and writes the response of the mesh. If the session has ended,
// for example because the gateway was started again, it opens another one and sends the message
// once more. A request that fails is answered with an error, unless it was cancelled.
func (b *Bridge) pass(ctx context.Context, m *message) {
	s := b.current()
	err := b.post(ctx, m, s)
	if errors.Is(err, errEnded) && m.Method != "initialize" {
		if s, err = b.again(ctx, s); err == nil {
			err = b.post(ctx, m, s)
		}
	}
	switch {
	case err == nil && m.Method == "notifications/initialized":
		b.listen(ctx)
	case err != nil && m.request() && ctx.Err() == nil:
		b.write(m.failed(err))
	}
}

func (b *Bridge) current() session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.session
}

// errEnded is the error for a session that the mesh does not have.
var errEnded = errors.New("the session with the mesh has ended")

// again opens a session in place of one that has ended, unless another request has done so.
func (b *Bridge) again(ctx context.Context, ended session) (session, error) {
	b.opening.Lock()
	defer b.opening.Unlock()
	b.mu.Lock()
	first, s := b.initialize, b.session
	b.mu.Unlock()
	if s != ended || first == nil {
		return s, nil
	}
	silent := &Bridge{URL: b.URL, Client: b.Client, Out: io.Discard}
	if err := silent.post(ctx, first, session{}); err != nil {
		return s, err
	}
	s = silent.current()
	if err := silent.post(ctx, read([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)), s); err != nil {
		return s, err
	}
	b.mu.Lock()
	b.session = s
	b.mu.Unlock()
	b.listen(ctx)
	return s, nil
}

// post sends a message once the mesh can be reached, and writes the messages of the response. The
// error is errEnded if the mesh does not have the session.
func (b *Bridge) post(ctx context.Context, m *message, s session) error {
	res, err := b.dial(ctx, m, s)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotFound && s.id != "" {
		return errEnded
	}
	if m.Method == "initialize" {
		b.mu.Lock()
		b.initialize, b.session = m, session{id: res.Header.Get("Mcp-Session-Id")}
		b.mu.Unlock()
	}
	return b.respond(res, m)
}

// dial sends a message. While no connection can be made, so that the mesh has not received the
// message, it tries again, for dialFor.
func (b *Bridge) dial(ctx context.Context, m *message, s session) (*http.Response, error) {
	wait, end := redial, time.Now().Add(dialFor)
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.URL, bytes.NewReader(m.raw))
		if err != nil {
			return nil, err
		}
		m.headers(req.Header, s)
		res, err := b.Client.Do(req)
		var op *net.OpError
		if err == nil || !errors.As(err, &op) || op.Op != "dial" || time.Now().After(end) {
			return res, err
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, 5*time.Second)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// respond writes the messages of a response. It returns an error if the body cannot be read, if a
// stream of events ends before the response to the request m, or if the body is not a message
// although m is a request or the status is that of an error.
func (b *Bridge) respond(res *http.Response, m *message) error {
	answered := false
	take := func(data []byte) {
		x := read(data)
		if x.Method == "" && bytes.Equal(x.ID, m.ID) {
			answered = true
			b.version(m, x)
		}
		b.write(data)
	}
	kind := res.Header.Get("Content-Type")
	if strings.HasPrefix(kind, "text/event-stream") {
		_, err := events(res.Body, take)
		if m.request() && !answered {
			return fmt.Errorf("the connection to the mesh ended before the response: %w", err)
		}
		return nil
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if x := read(body); x.JSONRPC != "" || bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")) {
		take(body)
		return nil
	}
	if res.StatusCode >= http.StatusBadRequest {
		return errors.New(reason(res.Status, body))
	}
	if m.request() {
		return fmt.Errorf("the response to the request is no message: %s", res.Status)
	}
	return nil
}

// version stores the protocol version in the response to initialize.
func (b *Bridge) version(m, response *message) {
	if m.Method != "initialize" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.session.version = response.Result.ProtocolVersion
}

// write writes a message of the mesh as a line. It ignores data that is not JSON.
func (b *Bridge) write(data []byte) {
	var line bytes.Buffer
	if json.Compact(&line, data) != nil {
		return
	}
	line.WriteByte('\n')
	b.out.Lock()
	defer b.out.Unlock()
	_, _ = b.Out.Write(line.Bytes()) // a failure means that the client has ended; then its input ends, too
}

// listen opens the stream of notifications of the session, in place of an earlier one.
func (b *Bridge) listen(ctx context.Context) {
	s := b.current()
	if s.id == "" {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.mu.Lock()
	if b.listening != nil {
		b.listening()
	}
	b.listening = cancel
	b.mu.Unlock()
	go b.follow(ctx, s)
}

// follow writes the notifications of a session. It opens the stream again after its end, from the
// last event on, until ctx is done or the mesh responds with a status of 4xx. If that is 404, the
// session has ended, and follow opens another one, which gets its own stream.
func (b *Bridge) follow(ctx context.Context, s session) {
	last := ""
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL, nil)
		if err != nil {
			return
		}
		req.Header.Set("Accept", "text/event-stream")
		s.headers(req.Header)
		if last != "" {
			req.Header.Set("Last-Event-ID", last)
		}
		if res, err := b.Client.Do(req); err == nil {
			id, _ := events(res.Body, b.write)
			_ = res.Body.Close()
			if id != "" {
				last = id
			}
			if res.StatusCode == http.StatusNotFound && ctx.Err() == nil {
				_, _ = b.again(ctx, s) // if it fails, the next message of the client opens a session
				return
			}
			if res.StatusCode >= http.StatusBadRequest && res.StatusCode < http.StatusInternalServerError {
				return
			}
		}
		select {
		case <-time.After(relisten):
		case <-ctx.Done():
			return
		}
	}
}

// end ends the session.
func (b *Bridge) end(ctx context.Context) {
	b.mu.Lock()
	s, listening := b.session, b.listening
	b.mu.Unlock()
	if listening != nil {
		listening()
	}
	if s.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, b.URL, nil)
	if err != nil {
		return
	}
	s.headers(req.Header)
	if res, err := b.Client.Do(req); err == nil { // otherwise the session ends when it has been idle
		_ = res.Body.Close()
	}
}
