// Package transient is the lossy side of the bus: live frames, queries and
// their answers, sealed secrets. Everything passes through the TRANSIENT
// stream; nothing here is a fact, and losing any of it loses none.
//
// The sender of a message is the service token of its subject, to which the
// server's permissions hold each service; nothing that a message says of itself
// names its sender. A stream takes frames from one service alone, and a verb is
// answered for the services that it is served to.
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

// Frame is one message to a mailbox. Frames of one id are numbered from 1. A
// reader skips members that it does not know.
type Frame struct {
	Kind  string          `json:"kind"`
	N     int64           `json:"n,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`  // of a binary frame, its bytes
	Code  string          `json:"code,omitempty"`  // of Failed; absent from services of release 0.5 and earlier
	Param string          `json:"param,omitempty"` // of Failed: the wrong member of the request
	View  *At             `json:"view,omitempty"`  // of Data and End: what the response was read from
}

// At is the state of the view that a response was read from: the response holds
// at least what was on the ledger up to Position.
type At struct {
	View     string `json:"name"`
	Position uint64 `json:"position"` // ledger sequence of the last entry in the view
	Lag      uint64 `json:"lag"`      // entries that waited to be applied
}

// Frame kinds.
const (
	Data   = "data"
	End    = "end"   // no more frames; Data may hold a closing document
	Failed = "error" // no more frames; Data is a string
	ask    = "ask"
	Sealed = "sealed"
)

// Edge is the service that may send every query that is not restricted to others.
const Edge = "gateway"

// ErrGap is returned when frames were lost between sender and reader.
var ErrGap = errors.New("live stream broken: frames were lost")

// Question is the document of a query.
type Question struct {
	ID       string          `json:"id"`   // see questionID
	From     string          `json:"from"` // instance that receives the response
	Verb     string          `json:"verb"`
	Args     json.RawMessage `json:"args"`
	Deadline time.Time       `json:"deadline"`
}

// Handler answers a question by calling reply any number of times. Bytes are sent
// as they are; everything else as JSON. An At is not sent by itself: the JSON
// frames after it carry it. An error that is an *Error reaches the caller with its
// code, any other as unavailable.
type Handler func(ctx context.Context, args json.RawMessage, reply func(any) error) error

// Box is the inbox of an instance on TRANSIENT, and its query transport.
type Box struct {
	conn     *bus.Conn
	tenant   string
	service  string
	instance string
	follower *follow.Follower

	mu       sync.Mutex
	open     map[string]*Stream
	handlers map[string]served
	warned   map[string]time.Time // by sending service: when a frame of it was last reported as foreign
}

// served is a verb's handler and who may query it.
type served struct {
	handler Handler
	askers  []string
}

// NewBox returns the inbox of an instance. It receives once Run runs.
func NewBox(c *bus.Conn, tenant, service, instance string) *Box {
	b := &Box{conn: c, tenant: tenant, service: service, instance: instance,
		open: map[string]*Stream{}, handlers: map[string]served{}, warned: map[string]time.Time{}}
	b.follower = follow.New(c, instance, bus.Reader{Name: bus.Mailbox, Stream: bus.Transient}, b.deliver)
	return b
}

// Serve registers the handler of a verb for the services that may query it;
// without any, that is the edge.
func (b *Box) Serve(verb string, h Handler, askers ...string) {
	if len(askers) == 0 {
		askers = []string{Edge}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.handlers[verb] = served{h, askers}
}

// Ready is closed when the inbox receives.
func (b *Box) Ready() <-chan struct{} { return b.follower.Ready() }

// Run receives until ctx ends.
func (b *Box) Run(ctx context.Context) error {
	last, err := b.conn.Tail(ctx, bus.Transient)
	if err != nil {
		return nil // ctx ended
	}
	// A NATS restart empties the stream and its numbering starts anew, so
	// the position means nothing after one: begin at the new end.
	b.follower.Restart = func(c context.Context) (uint64, error) { n, err := b.conn.LastSeq(c, bus.Transient); return n + 1, err }
	return b.follower.Run(ctx, last+1)
}

func (b *Box) deliver(en eventlog.Entry) error {
	var f Frame
	from, id, ok := address(en.Subject)
	if !ok {
		slog.Warn("transient: not a subject of ours", "subject", en.Subject)
		return nil
	}
	if n, body, ok := cutBinary(en.Data); ok {
		f = Frame{Kind: Data, N: n, Data: body}
	} else if err := readFrame(en.Data, &f); err != nil {
		slog.Warn("transient: not a frame", "subject", en.Subject)
		return nil
	}
	if f.Kind == ask {
		go b.answer(from, id, f.Data)
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch s := b.open[id]; {
	case s == nil: // no stream with this id is open, so the frame is dropped
	case s.from != from:
		b.foreign(from, s)
	default:
		s.push(f)
	}
	return nil
}

// readFrame reads a frame of JSON; what it holds nests no deeper than a request.
func readFrame(b []byte, f *Frame) error {
	if err := canon.CheckDepth(b); err != nil {
		return err
	}
	return json.Unmarshal(b, f)
}

// foreign reports a frame from a service that is not the stream's sender, once
// in a while. The lock is held.
func (b *Box) foreign(from string, s *Stream) {
	if now := time.Now(); now.Sub(b.warned[from]) > time.Minute {
		b.warned[from] = now
		slog.Warn("transient: dropped a frame of a service that is not the sender of its stream", "service", from, "want", s.from, "id", s.id)
	}
}

// Open starts receiving frames of id that service from sends. Frames that came
// before are lost, so a receiver opens first and asks for frames afterwards.
func (b *Box) Open(id, from string) *Stream {
	s := &Stream{box: b, id: id, from: from, wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[id] = s
	return s
}

// Send stores one frame in another instance's inbox. It is stored on return.
func (b *Box) Send(ctx context.Context, to, id string, f Frame) error {
	body, err := Encode(f)
	if err != nil {
		return err
	}
	return b.put(ctx, to, id, body)
}

func (b *Box) put(ctx context.Context, to, id string, body []byte) error {
	_, err := b.conn.JS.Publish(ctx, bus.TransientSubject(b.tenant, b.service, to, id), body)
	return err
}

// Post sends one binary frame to another instance's inbox without waiting until it is
// stored. The reader detects a gap if one is lost.
func (b *Box) Post(to, id string, n int64, data []byte) error {
	return b.conn.NC.Publish(bus.TransientSubject(b.tenant, b.service, to, id), binaryFrame(n, data))
}

// A binary data frame is NUL, which begins no JSON, the number, and the bytes.
func binaryFrame(n int64, raw []byte) []byte {
	return append(binary.AppendUvarint(append(make([]byte, 0, len(raw)+11), 0), uint64(n)), raw...)
}

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

// questionID returns the id of a query, which names the sending service. Responses carry
// the query's id, so no service can make another respond into a stream that a third has
// open.
func questionID(service string) string { return questionsOf(service) + rand.Text() }

// questionsOf returns the prefix of the ids of a service's queries. Names of services
// have no underscore, so no prefix begins another.
func questionsOf(service string) string { return "q_" + service + "_" }

// Ask sends a query to an instance of a service and returns the stream of its response,
// which that service alone can send. pkg/rpc sends queries, which have schemas; nothing
// else uses Ask.
func (b *Box) Ask(ctx context.Context, service, to, verb string, args any) (*Stream, error) {
	raw, err := Encode(args)
	if err != nil {
		return nil, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(30 * time.Second)
	}
	q := Question{ID: questionID(b.service), From: b.instance, Verb: verb, Args: raw, Deadline: deadline}
	body, err := Encode(q)
	if err != nil {
		return nil, err
	}
	s := b.Open(q.ID, service)
	if err := b.Send(ctx, to, q.ID, Frame{Kind: ask, Data: body}); err != nil {
		s.Close()
		return nil, fmt.Errorf("ask %s: %w", to, err)
	}
	return s, nil
}

// address reads tmp.<tenant>.<service>.<to instance>.<id>: the service that
// sent it, to whose own token the server's permissions hold it, and the id.
func address(subject string) (service, id string, ok bool) {
	parts := strings.Split(subject, ".")
	if len(parts) != 5 || parts[0] != "tmp" {
		return "", "", false
	}
	return parts[2], parts[4], true
}

type fromKey struct{}

// From returns the service whose query a handler serves.
func From(ctx context.Context) string { s, _ := ctx.Value(fromKey{}).(string); return s }

func (b *Box) answer(from, id string, raw []byte) {
	var q Question
	if json.Unmarshal(raw, &q) != nil || q.ID != id || !strings.HasPrefix(id, questionsOf(from)) || !contract.Token(q.From) {
		slog.Warn("transient: dropped a question that is not its sender's own", "service", from)
		return
	}
	ctx, cancel := context.WithDeadline(context.WithValue(context.Background(), fromKey{}, from), q.Deadline)
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
	if !slices.Contains(h.askers, from) {
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
		err = send(Failed, &Error{Code: e.Code, Param: e.Param, Message: hostpath.Strip(err.Error())})
	} else {
		err = send(End, nil)
	}
	if err != nil {
		slog.Warn("transient: answer lost", "verb", q.Verb, "err", err)
	}
}

// Stream is the frames of one id, in order.
type Stream struct {
	box    *Box
	id     string
	from   string // the only service whose frames it takes
	wake   chan struct{}
	frames []Frame // guarded by box.mu
	n      int64
}

func (s *Stream) push(f Frame) {
	s.frames = append(s.frames, f)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ErrEnd is returned after the last frame.
var ErrEnd = errors.New("end of stream")

// Next returns the next data or sealed frame. ErrEnd ends a complete stream,
// ErrGap a broken one, an *Error is the sender's, any other the context's.
func (s *Stream) Next(ctx context.Context) (Frame, error) {
	for {
		s.box.mu.Lock()
		if len(s.frames) > 0 {
			f := s.frames[0]
			s.frames = s.frames[1:]
			s.box.mu.Unlock()
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
		s.box.mu.Unlock()
		select {
		case <-ctx.Done():
			return Frame{}, ctx.Err()
		case <-s.wake:
		}
	}
}

// Wake receives when frames may have arrived; Try returns them.
func (s *Stream) Wake() <-chan struct{} { return s.wake }

// Try is Next without waiting; ok is false if no frame has arrived.
func (s *Stream) Try() (f Frame, ok bool, err error) {
	s.box.mu.Lock()
	none := len(s.frames) == 0
	s.box.mu.Unlock()
	if none {
		return Frame{}, false, nil
	}
	f, err = s.Next(context.Background())
	return f, err == nil, err
}

// Received is the number of frames taken so far.
func (s *Stream) Received() int64 { return s.n }

// Close stops receiving.
func (s *Stream) Close() {
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	if s.box.open[s.id] == s { // not a newer stream with the same id
		delete(s.box.open, s.id)
	}
}

// Encode returns v as JSON and leaves documents inside v unchanged: json.Marshal would
// escape <, > and &, which canonical JSON does not.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
