// Package transient transports messages that may be lost: live frames, queries with
// their responses, and sealed secrets. All of them pass through the stream TRANSIENT.
// None is evidence: the ledger is complete without them.
//
// The sender of a message is the service named in its subject, because NATS permissions
// restrict each service to subjects with its own name; the content of a message is not
// trusted to name its sender. A Stream accepts frames from one service only, and a
// query is handled only if its sender is among the services that Serve names.
package transient

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/hostpath"
)

// Frame is one message to an inbox. The frames of a stream have the same id and, except
// for Sealed frames, are numbered from 1. Readers ignore unknown members.
type Frame struct {
	Kind  string          `json:"kind"`
	N     int64           `json:"n,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`  // JSON, or the raw bytes of a binary frame
	Code  string          `json:"code,omitempty"`  // error code of a Failed frame; absent from services of release 0.5 and earlier
	Param string          `json:"param,omitempty"` // in a Failed frame, the member of the request that is invalid
	View  *At             `json:"view,omitempty"`  // in Data and End frames, the state of the view that the response was read from
}

// At is the state of the view that a response was read from. The response reflects at
// least the ledger up to Position.
type At struct {
	View     string `json:"name"`
	Position uint64 `json:"position"` // ledger sequence of the last entry applied
	Lag      uint64 `json:"lag"`      // entries not applied yet
}

// Values of Frame.Kind.
const (
	Data   = "data"
	End    = "end"   // the last frame; Data may hold a closing document
	Failed = "error" // the last frame; Data is the error message, a JSON string
	query  = "ask"
	Sealed = "sealed"
)

// Edge is the service that may send every query that is not registered for other
// services.
const Edge = "gateway"

// ErrGap is returned by Stream.Next if the numbers of the frames are not consecutive, in
// general because frames were lost.
var ErrGap = errors.New("live stream broken: frames were lost")

// Request is the JSON document of a query.
type Request struct {
	ID       string          `json:"id"`   // see queryID
	From     string          `json:"from"` // instance that receives the response
	Verb     string          `json:"verb"`
	Args     json.RawMessage `json:"args"`
	Deadline time.Time       `json:"deadline"`
}

// Handler handles a query. ctx ends at the query's deadline. The handler sends the
// response by calling reply any number of times, from one goroutine at a time: a []byte
// is sent as a binary frame, any other document as JSON. An At is not sent by itself: it
// is added to the JSON frames that follow. If the handler's error is or wraps an *Error,
// the caller receives its code, and for any other error the code unavailable.
type Handler func(ctx context.Context, args json.RawMessage, reply func(any) error) error

// Transport is the inbox of an instance on the stream TRANSIENT, and the transport of its
// queries. It sends messages for one tenant, and receives messages for every tenant. It
// is safe for concurrent use.
type Transport struct {
	*inbox
	tenant string
}

// inbox is the state that the Transports of an instance share.
type inbox struct {
	conn     *bus.Conn
	service  string
	instance string
	follower *follow.Follower
	standing func(tenant string) (cell, member bool) // see Tenants; nil: every tenant is both

	mu       sync.Mutex
	open     map[string]*Stream
	handlers map[string]served
	warned   map[string]time.Time // by sending service: time at which foreign last logged a frame from it
}

// served holds the handler of a verb and the services that may query it.
type served struct {
	handler Handler
	callers []string
}

// NewTransport returns the inbox of an instance, which sends for the given tenant. It receives
// messages while Run runs.
func NewTransport(c *bus.Conn, tenant, service, instance string) *Transport {
	b := &Transport{tenant: tenant, inbox: &inbox{conn: c, service: service, instance: instance,
		open: map[string]*Stream{}, handlers: map[string]served{}, warned: map[string]time.Time{}}}
	b.follower = follow.New(c, instance, bus.Reader{Name: bus.TransientReader, Stream: bus.Transient}, b.deliver)
	return b
}

// In returns a Transport for the same inbox that sends for the given tenant, and b itself if
// it sends for that tenant.
func (b *Transport) In(tenant string) *Transport {
	if tenant == b.tenant {
		return b
	}
	return &Transport{inbox: b.inbox, tenant: tenant}
}

// Tenants sets the function that Standing calls for the tenant of a query. It must be
// called before Run.
func (b *Transport) Tenants(standing func(tenant string) (cell, member bool)) { b.standing = standing }

// Serve registers the handler of a verb for the services that may query it, by default
// Edge. It replaces an earlier handler of the verb.
func (b *Transport) Serve(verb string, h Handler, callers ...string) {
	if len(callers) == 0 {
		callers = []string{Edge}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.handlers[verb] = served{h, callers}
}

// Ready returns a channel that is closed once the inbox receives messages.
func (b *Transport) Ready() <-chan struct{} { return b.follower.Ready() }

// Run receives messages until ctx ends, and then returns nil. It handles each query in a
// goroutine of its own.
func (b *Transport) Run(ctx context.Context) error {
	last, err := b.conn.Tail(ctx, bus.Transient)
	if err != nil {
		return nil // ctx ended
	}
	// TRANSIENT is stored in memory: a restart of NATS may empty it and start its
	// numbering again, so the old position may be meaningless. Continue at the new end.
	b.follower.Restart = func(c context.Context) (uint64, error) { n, err := b.conn.LastSeq(c, bus.Transient); return n + 1, err }
	return b.follower.Run(ctx, last+1)
}

// deliver dispatches one message of the inbox: a query to its handler, in a goroutine of
// its own, and any other frame to the open stream with its id. A frame without an open
// stream, or from another service than the stream's sender, is dropped. Invalid messages
// are logged and dropped; the error is always nil.
func (b *Transport) deliver(en eventlog.Entry) error {
	var f Frame
	from, id, ok := address(en.Subject)
	if !ok {
		slog.Warn("transient: a subject in an unknown form", "subject", en.Subject)
		return nil
	}
	if n, body, ok := cutBinary(en.Data); ok {
		f = Frame{Kind: Data, N: n, Data: body}
	} else if err := readFrame(en.Data, &f); err != nil {
		slog.Warn("transient: not a frame", "subject", en.Subject)
		return nil
	}
	if f.Kind == query {
		go b.In(from.tenant).answer(from.service, id, f.Data)
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch s := b.open[id]; {
	case s == nil: // no stream with this id is open, so the frame is dropped
	case s.from != from.service:
		b.foreign(from.service, s)
	default:
		s.push(f)
	}
	return nil
}

// readFrame decodes a JSON frame. It rejects a frame that is nested too deeply
// (canon.CheckDepth), since any service can send frames.
func readFrame(b []byte, f *Frame) error {
	if err := canon.CheckDepth(b); err != nil {
		return err
	}
	return json.Unmarshal(b, f)
}

// foreign logs a frame from a service that is not the sender of the stream, at most once
// a minute for each such service. The caller holds b.mu.
func (b *Transport) foreign(from string, s *Stream) {
	if now := time.Now(); now.Sub(b.warned[from]) > time.Minute {
		b.warned[from] = now
		slog.Warn("transient: dropped a frame of a service that is not the sender of its stream", "service", from, "want", s.from, "id", s.id)
	}
}

// Open starts receiving the frames with the given id that service from sends. Frames
// that arrived before are dropped, so a receiver opens the stream before it requests
// frames. If a stream with this id is already open, that stream receives no more frames.
// The caller closes the stream.
func (b *Transport) Open(id, from string) *Stream {
	s := &Stream{transport: b, id: id, from: from, wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[id] = s
	return s
}

// Send sends one frame to another instance's inbox. If the error is nil, the frame is
// stored in the stream TRANSIENT.
func (b *Transport) Send(ctx context.Context, to, id string, f Frame) error {
	body, err := Encode(f)
	if err != nil {
		return err
	}
	return b.put(ctx, to, id, body)
}

// put publishes a message to another instance's inbox and waits until it is stored.
func (b *Transport) put(ctx context.Context, to, id string, body []byte) error {
	_, err := b.conn.JS.Publish(ctx, bus.TransientSubject(b.tenant, b.service, to, id), body)
	return err
}

// Post sends binary frame n to another instance's inbox without waiting until it is
// stored. If the frame is lost, Stream.Next returns ErrGap to the receiver when a later
// frame arrives.
func (b *Transport) Post(to, id string, n int64, data []byte) error {
	return b.conn.NC.Publish(bus.TransientSubject(b.tenant, b.service, to, id), binaryFrame(n, data))
}

// binaryFrame encodes a binary data frame: a NUL byte, which no JSON text starts with,
// the number n as a uvarint (encoding/binary), and the bytes.
func binaryFrame(n int64, raw []byte) []byte {
	return append(binary.AppendUvarint(append(make([]byte, 0, len(raw)+11), 0), uint64(n)), raw...)
}

// cutBinary decodes the encoding of binaryFrame; ok is false if b is not a binary
// frame. body is a copy, because b must not be retained.
func cutBinary(b []byte) (n int64, body []byte, ok bool) {
	if len(b) == 0 || b[0] != 0 {
		return 0, nil, false
	}
	v, size := binary.Uvarint(b[1:])
	if size <= 0 {
		return 0, nil, false
	}
	return int64(v), bytes.Clone(b[1+size:]), true
}

// queryID returns a new random id for a query, which contains the name of the sending
// service. Responses have the query's id. A service therefore cannot forge a query that
// makes another service respond into a stream that a third one has open.
func queryID(service string) string { return queryPrefix(service) + rand.Text() }

// queryPrefix returns the prefix of the ids of a service's queries. Names of services
// contain no underscore, so no such prefix is a prefix of another.
func queryPrefix(service string) string { return contract.IDQuery + service + "_" }

// Query sends a query to an instance of a service and returns the stream of its response,
// which accepts frames from that service only. The deadline of the query is that of ctx,
// or 30 s from now if ctx has none. The caller closes the stream. Query is for pkg/rpc and
// tests; other packages send queries with pkg/rpc.
func (b *Transport) Query(ctx context.Context, service, to, verb string, args any) (*Stream, error) {
	raw, err := Encode(args)
	if err != nil {
		return nil, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(30 * time.Second)
	}
	q := Request{ID: queryID(b.service), From: b.instance, Verb: verb, Args: raw, Deadline: deadline}
	body, err := Encode(q)
	if err != nil {
		return nil, err
	}
	// The stream is opened before the query is sent, because frames for an id that is
	// not open are dropped.
	s := b.Open(q.ID, service)
	if err := b.Send(ctx, to, q.ID, Frame{Kind: query, Data: body}); err != nil {
		s.Close()
		return nil, fmt.Errorf("query to %s: %w", to, err)
	}
	return s, nil
}

// sender is the service that sent a message, and the tenant that the message is for.
type sender struct {
	tenant, service string
	standing        func(tenant string) (cell, member bool) // of the receiving inbox
}

// address returns the sender and the id from a subject of the form
// tmp.<tenant>.<service>.<to instance>.<id>; ok is false for any other subject. NATS
// permissions require the sender's own name as the service in the subject, but permit
// any tenant.
func address(subject string) (from sender, id string, ok bool) {
	parts := strings.Split(subject, ".")
	if len(parts) != 5 || parts[0] != contract.SubjectTransient {
		return sender{}, "", false
	}
	return sender{tenant: parts[1], service: parts[2]}, parts[4], true
}

// senderKey is the context key of the sender of a query.
type senderKey struct{}

// From returns the service that sent a query. ctx is the context of the query's handler;
// for any other context, the result is "".
func From(ctx context.Context) string { s, _ := ctx.Value(senderKey{}).(sender); return s.service }

// Tenant returns the tenant that a query was sent for. ctx is the context of the query's
// handler or one that InTenant returned; for any other context, the result is "". The
// sending service names the tenant: the services that may send a query are trusted to name
// that of their caller.
func Tenant(ctx context.Context) string {
	s, _ := ctx.Value(senderKey{}).(sender)
	return s.tenant
}

// Standing reports whether the tenant that a query was sent for is the tenant of the mesh
// itself, and whether it is one that the ledger has: one that was created, or the
// original one. ctx is the context of the query's handler. Both are true for any other
// context, and without a function set by Transport.Tenants.
func Standing(ctx context.Context) (cell, member bool) {
	if s, _ := ctx.Value(senderKey{}).(sender); s.standing != nil {
		return s.standing(s.tenant)
	}
	return true, true
}

// InTenant returns a context for a handler that is called without an inbox, for which
// Tenant returns the given tenant.
func InTenant(ctx context.Context, tenant string) context.Context {
	return context.WithValue(ctx, senderKey{}, sender{tenant: tenant, service: From(ctx)})
}

// answer handles one query from the service from, which was sent for b's tenant, and sends
// its response for the same tenant. The query must have an id of that service's own (see
// queryID). Frames are numbered from 1, and the last one is End or Failed, so that the
// reader detects loss.
func (b *Transport) answer(from, id string, raw []byte) {
	var q Request
	if json.Unmarshal(raw, &q) != nil || q.ID != id || !strings.HasPrefix(id, queryPrefix(from)) || !contract.Token(q.From) {
		slog.Warn("transient: dropped a query whose id is not its sender's", "service", from)
		return
	}
	ctx, cancel := context.WithDeadline(context.WithValue(context.Background(), senderKey{}, sender{tenant: b.tenant, service: from, standing: b.standing}), q.Deadline)
	defer cancel()
	n := int64(0)
	var at *At
	send := func(kind string, doc any) error {
		n++
		if raw, ok := doc.([]byte); ok {
			return b.put(ctx, q.From, q.ID, binaryFrame(n, raw))
		}
		f := Frame{Kind: kind, N: n, View: at}
		if e, ok := doc.(*Error); ok {
			f.Code, f.Param, f.View, doc = e.Code, e.Param, nil, e.Message
		}
		body, err := Encode(doc)
		if err != nil {
			return err
		}
		f.Data = body
		return b.Send(ctx, q.From, q.ID, f)
	}
	b.mu.Lock()
	h, known := b.handlers[q.Verb]
	b.mu.Unlock()
	if !known {
		_ = send(Failed, &Error{Code: contract.CodeQueryUnknown, Message: unknownVerb + q.Verb})
		return
	}
	if !slices.Contains(h.callers, from) {
		slog.Warn("transient: refused a question", "verb", q.Verb, "service", from)
		_ = send(Failed, &Error{Code: contract.CodeDenied, Message: q.Verb + " is not for " + from})
		return
	}
	err := h.handler(ctx, q.Args, func(doc any) error {
		if state, ok := doc.(At); ok {
			at = &state
			return nil
		}
		return send(Data, doc)
	})
	if err != nil {
		slog.Debug("transient: question failed", "verb", q.Verb, "from", from, "err", err)
		e := ErrorOf(err)
		err = send(Failed, &Error{Code: e.Code, Param: e.Param, Message: e.text(hostpath.Strip(err.Error()))})
	} else {
		err = send(End, nil)
	}
	if err != nil {
		slog.Warn("transient: response lost", "verb", q.Verb, "err", err)
	}
}

// Stream receives the frames of one id, in order. Next, Try and Received must be called
// from one goroutine at a time.
type Stream struct {
	transport *Transport
	id        string
	from      string // the only service whose frames are accepted
	wake      chan struct{}
	frames    []Frame // guarded by transport.mu
	n         int64
}

// push queues a frame for Next. The caller holds transport.mu.
func (s *Stream) push(f Frame) {
	s.frames = append(s.frames, f)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ErrEnd is returned by Stream.Next once, with the End frame of a complete stream.
var ErrEnd = errors.New("end of stream")

// Next waits for the next data or sealed frame and returns it. At the end of a complete
// stream it returns the End frame and ErrEnd. It returns ErrGap if the numbers of the
// frames are not consecutive, in general because frames were lost, the *Error of a
// Failed frame, or the error of ctx.
func (s *Stream) Next(ctx context.Context) (Frame, error) {
	for {
		s.transport.mu.Lock()
		if len(s.frames) > 0 {
			f := s.frames[0]
			s.frames = s.frames[1:]
			s.transport.mu.Unlock()
			if f.Kind == Sealed {
				return f, nil
			}
			if s.n++; f.N != s.n {
				return Frame{}, ErrGap
			}
			switch f.Kind {
			case End:
				return f, ErrEnd
			case Failed:
				return f, failed(f)
			}
			return f, nil
		}
		s.transport.mu.Unlock()
		select {
		case <-ctx.Done():
			return Frame{}, ctx.Err()
		case <-s.wake:
		}
	}
}

// Wake returns a channel that receives a value after frames have arrived, one value for
// any number of them. The receiver then calls Try until ok is false.
func (s *Stream) Wake() <-chan struct{} { return s.wake }

// Try is Next without waiting: ok is false and err is nil if no frame has arrived.
func (s *Stream) Try() (f Frame, ok bool, err error) {
	s.transport.mu.Lock()
	none := len(s.frames) == 0
	s.transport.mu.Unlock()
	if none {
		return Frame{}, false, nil
	}
	f, err = s.Next(context.Background())
	return f, err == nil, err
}

// Received returns the number of numbered frames that Next and Try have processed,
// including an End or Failed frame.
func (s *Stream) Received() int64 { return s.n }

// Close stops receiving. Frames that arrive later are dropped.
func (s *Stream) Close() {
	s.transport.mu.Lock()
	defer s.transport.mu.Unlock()
	if s.transport.open[s.id] == s { // leave a newer stream with the same id open
		delete(s.transport.open, s.id)
	}
}

// Encode returns v as JSON. Unlike json.Marshal it does not escape <, > and &, so that
// canonical documents inside v stay unchanged.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
