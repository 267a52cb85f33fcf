package sessionrunner

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// TestQueue shows that calls above the given number wait and receive their position, that a
// call above the tenant's maximum is refused at once, and that a waiting call whose context
// ends no longer counts as waiting.
func TestQueue(t *testing.T) {
	q := newQueue(2, 6)
	never := func(int) { t.Error("a call with a free place waits") }
	var running []func()
	for range 2 {
		leave, err := q.enter(t.Context(), "t", "a", never)
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, leave)
	}
	ctx, cancel := context.WithCancel(t.Context())
	positions := make(chan int, 3)
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			of := t.Context()
			if i == 2 {
				of = ctx
			}
			leave, err := q.enter(of, "t", "a", func(p int) { positions <- p })
			if (i == 2) != errors.Is(err, context.Canceled) {
				t.Errorf("call %d: %v", i, err)
			}
			if err == nil {
				leave()
			}
		})
		if p := <-positions; p != i+1 {
			t.Errorf("position %d, want %d", p, i+1)
		}
	}
	if _, err := q.enter(t.Context(), "t", "b", never); !errors.Is(err, errQueueFull) {
		t.Errorf("above the maximum of the tenant: %v", err)
	}
	if running, waiting := q.state(); running != 2 || waiting != 3 {
		t.Errorf("%d running, %d waiting", running, waiting)
	}
	cancel()
	for end := time.Now().Add(10 * time.Second); ; {
		if _, waiting := q.state(); waiting == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the cancelled call keeps its place")
		}
		time.Sleep(time.Millisecond)
	}
	for _, leave := range running {
		leave()
	}
	wg.Wait()
	if running, waiting := q.state(); running+waiting != 0 {
		t.Errorf("at the end %d running, %d waiting", running, waiting)
	}
}

// TestQueueTenants shows that a tenant which fills its part of the queue leaves places to
// others, that all together do not exceed the maximum, and that a queue of one place serves
// each tenant.
func TestQueueTenants(t *testing.T) {
	for _, x := range []struct{ most, first, second int }{{16, 8, 4}, {1, 1, 0}, {0, 0, 0}} {
		q := newQueue(1, x.most)
		leave, err := q.enter(t.Context(), "a", "x", nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		fill := func(tenant string) (n int) {
			for {
				came := make(chan error, 2)
				wg.Go(func() {
					_, err := q.enter(ctx, tenant, "x", func(int) { came <- nil })
					came <- err
				})
				if err := <-came; err != nil {
					return n
				}
				n++
			}
		}
		if first, second := fill("a"), fill("b"); first != x.first || second != x.second {
			t.Errorf("queue of %d: %d and %d calls wait, want %d and %d", x.most, first, second, x.first, x.second)
		}
		cancel()
		wg.Wait()
		if x.most > 0 {
			ctx, cancel = context.WithCancel(t.Context())
			if n := fill("b"); n == 0 {
				t.Errorf("queue of %d: tenant b finds no place after the others left", x.most)
			}
			cancel()
			wg.Wait()
		}
		leave()
	}
}
