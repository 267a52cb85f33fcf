package mcpapi

import (
	"bytes"
	"context"
	"iter"
	"net/http"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits of the events that are stored for clients that reconnect.
const (
	replayPerSession = 256 << 10 // bytes of a session; its newest event is stored even if it is larger
	replayInAll      = 64 << 20  // bytes of all sessions
	replayOverhead   = 128       // bytes that an event counts in addition to its data
	replayEmpty      = 1024      // streams of a session whose next index is stored although all their events were dropped
)

// replays stores the newest events of the streams of MCP sessions in memory, so that a
// client that lost its connection receives the events after the last one that it has
// seen (Last-Event-ID). If events exceed a limit, the oldest of the session are dropped,
// or the oldest of the session whose events use the most memory. It implements
// mcp.EventStore. The zero value is empty.
type replays struct {
	mu       sync.Mutex
	sessions map[string]*replay // by id
	size     int
}

// replay holds the stored events of one session, in the order in which they were sent.
type replay struct {
	events []sent
	next   map[string]int // by stream: index of its next event
	empty  []string       // streams that have no events any more, in the order in which the last ones were dropped; without ""
	size   int
}

// sent is an event that was sent.
type sent struct {
	stream string
	index  int
	data   []byte
}

func (e *sent) size() int { return len(e.data) + replayOverhead }

// Open implements mcp.EventStore. A stream needs no storage before its first event.
func (*replays) Open(context.Context, string, string) error { return nil }

// Append implements mcp.EventStore.
func (s *replays) Append(_ context.Context, session, stream string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.sessions[session]
	if r == nil {
		if s.sessions == nil {
			s.sessions = map[string]*replay{}
		}
		r = &replay{next: map[string]int{}}
		s.sessions[session] = r
	}
	e := sent{stream, r.next[stream], data}
	r.events = append(r.events, e)
	r.next[stream]++
	if i := slices.Index(r.empty, stream); e.index > 0 && i >= 0 {
		r.empty = slices.Delete(r.empty, i, i+1)
	}
	r.size += e.size()
	s.size += e.size()
	for r.size > replayPerSession && len(r.events) > 1 {
		s.drop(r)
	}
	for s.size > replayInAll {
		most := r
		for _, x := range s.sessions {
			if x.size > most.size {
				most = x
			}
		}
		s.drop(most)
	}
	return nil
}

// drop drops the oldest event of a session. The caller holds mu.
func (s *replays) drop(r *replay) {
	e := r.events[0]
	r.events = slices.Delete(r.events, 0, 1)
	r.size -= e.size()
	s.size -= e.size()
	if e.index+1 < r.next[e.stream] || e.stream == "" { // "" is the stream that a GET opens
		return
	}
	if r.empty = append(r.empty, e.stream); len(r.empty) > replayEmpty {
		delete(r.next, r.empty[0])
		r.empty = slices.Delete(r.empty, 0, 1)
	}
}

// After implements mcp.EventStore. The error is mcp.ErrEventsPurged if an event after
// index was dropped, or if the stream has no event with that index.
func (s *replays) After(_ context.Context, session, stream string, index int) iter.Seq2[[]byte, error] {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out [][]byte
	r := s.sessions[session]
	known := r != nil && index < r.next[stream]
	for next := index + 1; known && next < r.next[stream]; next++ {
		i := slices.IndexFunc(r.events, func(e sent) bool { return e.stream == stream && e.index == next })
		if known = i >= 0; known {
			out = append(out, r.events[i].data)
		}
	}
	return func(yield func([]byte, error) bool) {
		if !known {
			yield(nil, mcp.ErrEventsPurged)
			return
		}
		for _, data := range out {
			if !yield(data, nil) {
				return
			}
		}
	}
}

// SessionClosed implements mcp.EventStore.
func (s *replays) SessionClosed(_ context.Context, session string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.sessions[session]; r != nil {
		s.size -= r.size
		delete(s.sessions, session)
	}
	return nil
}

// prime begins the first event of a stream of a client that can reconnect, as the SDK
// writes it.
var prime = []byte("event: prime\n")

// withRetry adds to the first event of a stream the time after which a client that lost
// its connection should reconnect. The SDK sends it only if it closes a stream itself.
type withRetry struct {
	http.ResponseWriter
	begun bool
}

// Write implements http.ResponseWriter.
func (w *withRetry) Write(b []byte) (int, error) {
	first := !w.begun
	w.begun = true
	if !first || !bytes.HasPrefix(b, prime) {
		return w.ResponseWriter.Write(b)
	}
	if _, err := w.ResponseWriter.Write(append([]byte("retry: 1000\n"), b...)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Unwrap returns the writer, so that an http.ResponseController finds its methods.
func (w *withRetry) Unwrap() http.ResponseWriter { return w.ResponseWriter }
