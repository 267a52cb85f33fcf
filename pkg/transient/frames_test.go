package transient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// TestBinaryFrame checks that a binary frame is decoded to its number and to a copy of its
// bytes, and that JSON, and bytes whose number is incomplete or too large, are not binary
// frames.
func TestBinaryFrame(t *testing.T) {
	for _, n := range []int64{0, 1, 127, 128, 1 << 40, math.MaxInt64} {
		for _, body := range []string{"", "\x00", "0123456789abcdef"} {
			raw := binaryFrame(n, []byte(body))
			got, b, ok := cutBinary(raw)
			clear(raw)
			if !ok || got != n || string(b) != body {
				t.Errorf("%d %q: %d %q %v", n, body, got, b, ok)
			}
		}
	}
	for _, raw := range []string{"", "{}", "\x00", "\x00\x80", "\x00" + string(bytes.Repeat([]byte{0xff}, 11))} {
		if n, b, ok := cutBinary([]byte(raw)); ok {
			t.Errorf("%q is binary frame %d, %q", raw, n, b)
		}
	}
}

// TestAddress checks which subjects are those of a message, and that tenant, service and id
// are taken from their places.
func TestAddress(t *testing.T) {
	from, id, ok := address("tmp.t.gateway.work-1.c-1")
	if !ok || from.tenant != "t" || from.service != "gateway" || id != "c-1" {
		t.Errorf("%+v %q %v", from, id, ok)
	}
	for _, subject := range []string{"", "tmp.t.gateway.work-1", "tmp.t.gateway.work-1.c.1", "evt.t.gateway.work-1.c-1"} {
		if _, _, ok := address(subject); ok {
			t.Errorf("%q is the subject of a message", subject)
		}
	}
}

// TestFailed checks the code of a Failed frame: the one that it contains or, without one,
// the code that follows from its message. The words that begin a
// message with code not_found are removed.
func TestFailed(t *testing.T) {
	for _, x := range []struct{ code, message, want, says string }{
		{contract.CodeDenied, "not found: x", contract.CodeDenied, "not found: x"},
		{contract.CodeNotFound, Errorf(contract.CodeNotFound, "x").text("x"), contract.CodeNotFound, "x"},
		{contract.CodeNotFound, "no x", contract.CodeNotFound, "no x"},
		{"", Errorf(contract.CodeNotFound, "x").text("x"), contract.CodeNotFound, "not found: x"}, // as a caller of release 0.5 reads it
		{"", "not found: x", contract.CodeNotFound, "not found: x"},
		{"", unknownVerb + "x", contract.CodeQueryUnknown, unknownVerb + "x"},
		{"", "no leader", contract.CodeUnavailable, "no leader"},
	} {
		body, err := Encode(x.message)
		if err != nil {
			t.Fatal(err)
		}
		if e := failed(Frame{Code: x.code, Param: "p", Data: body}); e.Code != x.want || e.Message != x.says || e.Param != "p" {
			t.Errorf("%+v: %+v", x, e)
		}
	}
}

// TestStanding checks that Standing returns what the function of the receiving inbox
// returns for the tenant of the query, and true without such a function.
func TestStanding(t *testing.T) {
	of := func(tenant string) (cell, member bool) { return tenant == "cell", tenant == "one" }
	for tenant, want := range map[string][2]bool{"cell": {true, false}, "one": {false, true}, "none": {false, false}} {
		ctx := context.WithValue(t.Context(), senderKey{}, sender{tenant: tenant, standing: of})
		if cell, member := Standing(ctx); cell != want[0] || member != want[1] {
			t.Errorf("%s: %v %v", tenant, cell, member)
		}
	}
	for what, ctx := range map[string]context.Context{"no query": t.Context(), "no inbox": InTenant(t.Context(), "one")} {
		if cell, member := Standing(ctx); !cell || !member {
			t.Errorf("%s: %v %v", what, cell, member)
		}
	}
}

// send delivers a JSON frame from a service to b.
func send(t *testing.T, b *Transport, service, id string, f Frame) {
	t.Helper()
	body, err := Encode(f)
	if err == nil {
		err = b.deliver(eventlog.Entry{Subject: fmt.Sprintf("tmp.t.%s.%s.%s", service, b.instance, id), Data: body})
	}
	if err != nil {
		t.Error(err)
	}
}

// newTransport returns an inbox of work without a connection, to which a test delivers messages.
func newTransport() *Transport {
	return &Transport{tenant: "t", inbox: &inbox{service: "work", instance: "work-1", open: map[string]*Stream{}, handlers: map[string]served{}, warned: map[string]time.Time{}}}
}

// TestTry checks that Try returns the frames that have arrived, and does not wait for
// others, and that a sealed frame has no number.
func TestTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a Try that waits fails
		b := newTransport()
		s := b.Open("c-1", "gateway")
		if f, ok, err := s.Try(); ok || err != nil {
			t.Errorf("before the first frame: %+v %v", f, err)
		}
		send(t, b, "gateway", "c-1", Frame{Kind: Data, N: 1, Data: json.RawMessage(`1`)})
		send(t, b, "gateway", "c-1", Frame{Kind: Sealed, Data: json.RawMessage(`2`)})
		send(t, b, "gateway", "c-1", Frame{Kind: End, N: 2})
		for _, want := range []string{`1`, `2`} {
			if f, ok, err := s.Try(); !ok || err != nil || string(f.Data) != want {
				t.Errorf("want %s: %+v %v %v", want, f, ok, err)
			}
		}
		if f, ok, err := s.Try(); ok || !errors.Is(err, ErrEnd) || s.Received() != 2 {
			t.Errorf("at the end: %+v %v %v, %d received", f, ok, err, s.Received())
		}
	})
}

// TestReopened checks that a stream that is opened under the id of an open stream receives the
// frames from then on, even after the earlier stream is closed, and none after it is closed
// itself.
func TestReopened(t *testing.T) {
	b := newTransport()
	first := b.Open("c-1", "gateway")
	second := b.Open("c-1", "gateway")
	first.Close()
	frame := Frame{Kind: Data, N: 1, Data: json.RawMessage(`1`)}
	send(t, b, "gateway", "c-1", frame)
	if _, ok, _ := first.Try(); ok {
		t.Error("the earlier stream receives a frame")
	}
	if _, ok, err := second.Try(); !ok {
		t.Error("the newer stream receives no frame:", err)
	}
	second.Close()
	send(t, b, "gateway", "c-1", frame)
	if _, ok, _ := second.Try(); ok || len(b.open) != 0 {
		t.Errorf("after Close: a frame %v, %d streams", ok, len(b.open))
	}
}

// logged counts the records of a logger.
type logged struct {
	slog.Handler
	n atomic.Int32
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(context.Context, slog.Record) error { l.n.Add(1); return nil }

// TestForeignLogged checks that frames of other services than the sender of a stream are
// logged at most once a minute for each service.
func TestForeignLogged(t *testing.T) {
	defer log.SetOutput(log.Writer()) // which slog.SetDefault changes
	defer slog.SetDefault(slog.Default())
	synctest.Test(t, func(t *testing.T) {
		var l logged
		slog.SetDefault(slog.New(&l))
		b := newTransport()
		b.Open("c-1", "gateway")
		for i, x := range []struct {
			service string
			after   time.Duration
			total   int32
		}{{"judge", 0, 1}, {"judge", 0, 1}, {"policy", 0, 2}, {"judge", time.Minute, 2}, {"judge", time.Nanosecond, 3}, {"gateway", 0, 3}} {
			time.Sleep(x.after)
			send(t, b, x.service, "c-1", Frame{Kind: Data, N: 1})
			if n := l.n.Load(); n != x.total {
				t.Errorf("%d: %d records, want %d", i, n, x.total)
			}
		}
	})
}
