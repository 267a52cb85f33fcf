package transient_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

func boxes(t *testing.T) (a, b *transient.Box) {
	decls := []bus.Declaration{{Service: "a", Slots: 1}, {Service: "b", Slots: 1}}
	m := meshtest.Start(t, decls)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	make := func(s string) *transient.Box {
		x := transient.NewBox(m.Connect(t, s), "t", s, s+"-1")
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
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := a.Ask(ctx, "b-1", "count", 100)
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
	if err := a.AskOne(ctx, "b-1", "count", -1, &out); err == nil || err.Error() != "ask b-1 count: negative" {
		t.Fatal(err)
	}
	if err := a.AskOne(ctx, "b-1", "nothing", nil, &out); err == nil {
		t.Fatal("an unknown question was answered")
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := a.AskOne(short, "nobody-1", "count", 1, &out); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// TestGap: a missing frame ends a live stream with an explicit error.
func TestGap(t *testing.T) {
	a, b := boxes(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s := a.Open("call-1")
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
	// Frames may come before anyone listens.
	if err := b.Send(ctx, "a-1", "early", transient.Frame{Kind: transient.Data, N: 1, Data: json.RawMessage("7")}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if f, err := a.Open("early").Next(ctx); err != nil || string(f.Data) != "7" {
		t.Fatal(f, err)
	}
}

// TestFrom: who asks is what the server let it publish as, whatever it says.
func TestFrom(t *testing.T) {
	a, b := boxes(t)
	b.Serve("who", func(ctx context.Context, _ json.RawMessage, reply func(any) error) error {
		return reply(transient.From(ctx))
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var who string
	if err := a.AskOne(ctx, "b-1", "who", map[string]string{"from": "b", "From": "b-1"}, &who); err != nil || who != "a" {
		t.Fatal(who, err)
	}
}
