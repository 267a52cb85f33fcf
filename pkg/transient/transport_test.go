package transient_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// boxes starts a NATS server with the services a and b and returns the running inboxes
// of a-1 and b-1.
func boxes(t *testing.T) (a, b *transient.Transport) {
	decls := []bus.Declaration{{Service: "a", Slots: 1}, {Service: "b", Slots: 1}}
	m := meshtest.Start(t, decls)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	make := func(s string) *transient.Transport {
		x := transient.NewTransport(m.Connect(t, s), "t", s, s+"-1")
		go x.Run(ctx)
		<-x.Ready()
		return x
	}
	return make("a"), make("b")
}

func TestAsk(t *testing.T) {
	a, b := boxes(t)
	b.Serve("count", func(_ context.Context, raw json.RawMessage, reply func(any) error) error {
		var n int
		if err := json.Unmarshal(raw, &n); err != nil {
			return err
		}
		if n < 0 {
			return errors.New("negative")
		}
		for i := range n {
			if err := reply(i); err != nil {
				return err
			}
		}
		return nil
	}, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := a.Query(ctx, "b", "b-1", "count", 100)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		f, err := s.Next(ctx)
		var n int
		if err != nil || json.Unmarshal(f.Data, &n) != nil || n != i {
			t.Fatalf("%d: %s %v", i, f.Data, err)
		}
	}
	if _, err := s.Next(ctx); !errors.Is(err, transient.ErrEnd) {
		t.Fatal(err)
	}
	var out int
	if err := meshtest.AskOne(ctx, a, "b", "b-1", "count", -1, &out); err == nil || err.Error() != "ask b-1 count: negative" {
		t.Fatal(err)
	}
	if err := meshtest.AskOne(ctx, a, "b", "b-1", "nothing", nil, &out); err == nil {
		t.Fatal("an unknown question was answered")
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := meshtest.AskOne(short, a, "absent", "absent-1", "count", 1, &out); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// TestGap shows that Next returns ErrGap if a frame is missing.
func TestGap(t *testing.T) {
	a, b := boxes(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s := a.Open("call-1", "b")
	for _, n := range []int64{1, 2, 4} {
		if err := b.Send(ctx, "a-1", "call-1", transient.Frame{Kind: transient.Data, N: n, Data: json.RawMessage("1")}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := s.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Next(ctx); !errors.Is(err, transient.ErrGap) {
		t.Fatal(err)
	}
}

// TestFrom shows that From returns the service in the subject, which the server's
// permissions check, even if the arguments of the query contain another name.
func TestFrom(t *testing.T) {
	a, b := boxes(t)
	b.Serve("who", func(ctx context.Context, _ json.RawMessage, reply func(any) error) error {
		return reply(transient.From(ctx))
	}, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var who string
	if err := meshtest.AskOne(ctx, a, "b", "b-1", "who", map[string]string{"from": "b", "From": "b-1"}, &who); err != nil || who != "a" {
		t.Fatal(who, err)
	}
}

// TestTenants shows that Tenant returns the tenant in the subject of a query, and "" for
// another context, and that one inbox receives the queries and responses of every tenant.
func TestTenants(t *testing.T) {
	a, b := boxes(t)
	b.Serve("whose", func(ctx context.Context, _ json.RawMessage, reply func(any) error) error {
		return reply(transient.Tenant(ctx))
	}, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for _, transport := range []*transient.Transport{a, a.In("one"), a.In("one").In("two"), a.In("t")} {
		var tenant string
		if err := meshtest.AskOne(ctx, transport, "b", "b-1", "whose", nil, &tenant); err != nil {
			t.Fatal(err)
		}
		if transport.In(tenant) != transport {
			t.Errorf("a query of another tenant arrived for %q", tenant)
		}
	}
	if tenant := transient.Tenant(ctx); tenant != "" {
		t.Errorf("a context of no query has tenant %q", tenant)
	}
}

// TestForeign shows that a stream accepts frames from its sender only, even if other
// services send frames before it is open and between the frames of its sender; that
// frames for streams that are not open are dropped; that a forged query does not make
// its handler respond into a stream of another service; that a query fails if its sender
// is not among the callers of the verb; and that a response from another service than
// the queried one is ignored.
func TestForeign(t *testing.T) {
	m := meshtest.Start(t, []bus.Declaration{{Service: "a", Slots: 1}, {Service: "b", Slots: 1}, {Service: "evil", Slots: 1}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	transport := func(s string) *transient.Transport {
		x := transient.NewTransport(m.Connect(t, s), "t", s, s+"-1")
		go x.Run(ctx)
		<-x.Ready()
		return x
	}
	a, b, evil := transport("a"), transport("b"), transport("evil")
	b.Serve("secret", func(_ context.Context, _ json.RawMessage, reply func(any) error) error { return reply("hush") }, "a")
	b.Serve("edge", func(_ context.Context, _ json.RawMessage, reply func(any) error) error { return reply("hush") })
	raw := m.Connect(t, "evil")
	send := func(from *transient.Transport, id string, f transient.Frame) {
		t.Helper()
		if err := from.Send(ctx, "a-1", id, f); err != nil {
			t.Fatal(err)
		}
	}
	forge := func(id string) {
		t.Helper()
		send(evil, id, transient.Frame{Kind: transient.Data, N: 1, Data: json.RawMessage(`"forged"`)})
		send(evil, id, transient.Frame{Kind: transient.Sealed, Data: json.RawMessage(`"forged"`)})
		send(evil, id, transient.Frame{Kind: transient.End, N: 1})
		send(evil, id, transient.Frame{Kind: transient.Failed, N: 1, Data: json.RawMessage(`"forged"`)})
		// An attacker sends forged queries, under each id that it can use, so that b
		// responds into the stream.
		for _, q := range []string{id, "q_a_x", "q_evil_x"} {
			doc, _ := json.Marshal(transient.Request{ID: id, From: "a-1", Verb: "secret", Deadline: time.Now().Add(time.Minute)})
			body, _ := json.Marshal(transient.Frame{Kind: "ask", Data: doc})
			if _, err := raw.JS.Publish(ctx, "tmp.t.evil.b-1."+q, body); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, id := range []string{"c-1", "secret-1", "q_a_1"} {
		forge(id)
		send(b, id, transient.Frame{Kind: transient.Data, N: 1, Data: json.RawMessage(`"early"`)}) // frame from the expected sender, sent before the stream is open
		time.Sleep(50 * time.Millisecond)
		s := a.Open(id, "b")
		forge(id)
		time.Sleep(50 * time.Millisecond)
		if f, ok, err := s.Try(); ok || err != nil {
			t.Fatalf("%s: took %s %v", id, f.Data, err)
		}
		send(b, id, transient.Frame{Kind: transient.Data, N: 1, Data: json.RawMessage(`"true"`)})
		forge(id)
		send(b, id, transient.Frame{Kind: transient.End, N: 2})
		if f, err := s.Next(ctx); err != nil || string(f.Data) != `"true"` {
			t.Fatalf("%d: %s %v", i, f.Data, err)
		}
		if _, err := s.Next(ctx); !errors.Is(err, transient.ErrEnd) {
			t.Fatal(err)
		}
		s.Close()
	}
	var out string
	if err := meshtest.AskOne(ctx, a, "b", "b-1", "secret", nil, &out); err != nil || out != "hush" {
		t.Fatal(out, err)
	}
	for who, verb := range map[*transient.Transport]string{evil: "secret", a: "edge"} {
		if err := meshtest.AskOne(ctx, who, "b", "b-1", verb, nil, &out); err == nil || !strings.Contains(err.Error(), "is not for") {
			t.Fatal(verb, err)
		}
	}
	// A response from a service other than the queried one is ignored.
	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	if err := meshtest.AskOne(short, a, "other", "b-1", "secret", nil, &out); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// TestDeadline checks that a handler's context has the deadline of the caller's context or,
// if that has none, one in 30 s.
func TestDeadline(t *testing.T) {
	a, b := boxes(t)
	b.Serve("until", func(ctx context.Context, _ json.RawMessage, reply func(any) error) error {
		end, _ := ctx.Deadline()
		return reply(end)
	}, "a")
	limited, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for ctx, want := range map[context.Context]time.Duration{t.Context(): 30 * time.Second, limited: time.Hour} {
		began := time.Now()
		var end time.Time
		if err := meshtest.AskOne(ctx, a, "b", "b-1", "until", nil, &end); err != nil {
			t.Fatal(err)
		}
		if d := end.Sub(began); d < want-20*time.Second || d > want+time.Since(began) {
			t.Errorf("in %v, want %v", d, want)
		}
	}
}
