package mcpapi

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestReplaysUsedAgain checks that the next index of a stream remains stored if all its events
// were dropped, it then has one again, and afterwards more than replayEmpty other streams have
// none.
func TestReplaysUsedAgain(t *testing.T) {
	var s replays
	store := func(stream string, size int) {
		t.Helper()
		if err := s.Append(t.Context(), "s1", stream, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	store("kept", replayPerSession)
	for i := range 2 * replayEmpty {
		store(fmt.Sprint("c", i), 1)
	}
	store("kept", 1)
	store("d", replayPerSession-2*replayOverhead-1) // no event but the newest one of kept has a place beside it
	store("kept", 2)
	if got, err := after(t, &s, "s1", "kept", 1); err != nil || len(got) != 2 {
		t.Errorf("%q, %v", got, err)
	}
}

// after returns the data of the events after an index.
func after(t *testing.T, s *replays, session, stream string, index int) (string, error) {
	t.Helper()
	var out []string
	for data, err := range s.After(t.Context(), session, stream, index) {
		if err != nil {
			return "", err
		}
		out = append(out, string(data))
	}
	return strings.Join(out, " "), nil
}

// TestReplays checks that the events after an index are those of the stream and session,
// that dropped events are an error instead of a gap, that the events of a closed session are
// dropped, and that the number of streams of a session and the size of all events are limited.
func TestReplays(t *testing.T) {
	var s replays
	store := func(session, stream string, data []byte) {
		t.Helper()
		if err := s.Append(t.Context(), session, stream, data); err != nil {
			t.Fatal(err)
		}
	}
	add := func(session, stream, data string) { store(session, stream, []byte(data)) }
	for i := range 3 {
		add("s1", "a", fmt.Sprint("a", i))
		add("s1", "b", fmt.Sprint("b", i))
		add("s2", "a", "other")
	}
	for _, c := range []struct {
		stream, want string
		index        int
	}{{"a", "a0 a1 a2", -1}, {"a", "a2", 1}, {"a", "", 2}, {"b", "b1 b2", 0}} {
		if got, err := after(t, &s, "s1", c.stream, c.index); err != nil || got != c.want {
			t.Errorf("after %d of %s: %q, %v, want %q", c.index, c.stream, got, err, c.want)
		}
	}
	for _, c := range []struct {
		session, stream string
		index           int
	}{{"s1", "a", 3}, {"s1", "c", 0}, {"s3", "a", 0}} {
		if _, err := after(t, &s, c.session, c.stream, c.index); !errors.Is(err, mcp.ErrEventsPurged) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	large := []byte(strings.Repeat("x", replayPerSession))
	store("s1", "a", large)
	if _, err := after(t, &s, "s1", "a", 0); !errors.Is(err, mcp.ErrEventsPurged) {
		t.Error("dropped events are not an error:", err)
	}
	if got, err := after(t, &s, "s1", "a", 2); err != nil || got != string(large) {
		t.Errorf("the newest event was dropped: %d bytes, %v", len(got), err)
	}
	for i := range 2 * replayEmpty {
		store("s1", fmt.Sprint("c", i), large)
	}
	if n := len(s.sessions["s1"].next); n > replayEmpty+10 {
		t.Errorf("%d streams are stored", n)
	}
	if err := s.SessionClosed(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if _, err := after(t, &s, "s1", "b", 2); !errors.Is(err, mcp.ErrEventsPurged) {
		t.Error("the events of a closed session are returned:", err)
	}
	for i := range 2 * replayInAll / replayPerSession {
		store(fmt.Sprint("t", i), "a", large)
	}
	n := 0
	for _, r := range s.sessions {
		n += r.size
	}
	if s.size > replayInAll || n != s.size {
		t.Errorf("%d bytes are stored, and %d are counted", n, s.size)
	}
	if got, err := after(t, &s, "s2", "a", 0); err != nil || got != "other other" {
		t.Errorf("events of a session with few were dropped: %q, %v", got, err)
	}
}

// TestWithRetry checks that only the first event of a stream has the time to reconnect.
func TestWithRetry(t *testing.T) {
	rec := httptest.NewRecorder()
	w := &withRetry{ResponseWriter: rec}
	for _, s := range []string{"event: prime\nid: 1\ndata: \n\n", "event: prime\nid: 2\ndata: \n\n"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Error(n, err)
		}
	}
	if got := rec.Body.String(); got != "retry: 1000\nevent: prime\nid: 1\ndata: \n\nevent: prime\nid: 2\ndata: \n\n" {
		t.Errorf("%q", got)
	}
	rec = httptest.NewRecorder()
	if _, err := (&withRetry{ResponseWriter: rec}).Write([]byte("{}")); err != nil || rec.Body.String() != "{}" {
		t.Errorf("%q, %v", rec.Body, err)
	}
}
