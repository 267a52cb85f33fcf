package fair

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// TestTurns shows that two requests of a caller are among the first four to
// get the place although 20 requests of another caller were queued before
// them.
func TestTurns(t *testing.T) {
	g := New(1)
	if err := g.Enter(t.Context(), "t", "a"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []string
	var wg sync.WaitGroup
	queue := func(owner string, n int) {
		for range n {
			before := g.Waiting()
			wg.Go(func() {
				if err := g.Enter(context.Background(), "t", owner); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, owner)
				mu.Unlock()
				g.Leave()
			})
			for g.Waiting() == before {
				time.Sleep(time.Millisecond)
			}
		}
	}
	queue("a", 20)
	queue("b", 2)
	g.Leave()
	wg.Wait()
	for i, o := range order {
		if o == "b" && i > 3 {
			t.Fatalf("b waited behind %d others: %v", i, order)
		}
	}
}

// TestLeavers shows that a queued request whose context ends does not occupy a place.
func TestLeavers(t *testing.T) {
	g := New(3)
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%7)*time.Millisecond)
			defer cancel()
			if err := g.Enter(ctx, string(rune('a'+i%3)), string(rune('a'+i%5))); err == nil {
				time.Sleep(time.Millisecond)
				g.Leave()
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if err := g.Enter(ctx, "t", "z"); err != nil {
			t.Fatal("a place was lost")
		}
		cancel()
	}
	if g.Waiting() != 0 {
		t.Fatal("somebody waits")
	}
}
