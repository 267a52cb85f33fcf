package fair

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurnsAlone shows that a tenant is not limited while it is the only one, that it has
// half of the places after a request of another tenant, and that it is not limited any
// more once the other tenant has sent nothing for a while.
func TestTurnsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &Turns{Places: 4, Hold: time.Minute}
		enter := func(tenant string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := x.Enter(ctx, tenant, "a")
			return err
		}
		for range 100 {
			if err := enter("noisy"); err != nil {
				t.Fatal(err)
			}
		}
		if err := enter("quiet"); err != nil {
			t.Fatal(err)
		}
		var full int
		for range 10 {
			if err := enter("noisy"); errors.Is(err, context.DeadlineExceeded) {
				full++
			}
		}
		if full != 8 {
			t.Errorf("%d requests waited, want all but two", full)
		}
		time.Sleep(lately + 2*time.Second)
		for range 100 {
			if err := enter("noisy"); err != nil {
				t.Fatal("alone again:", err)
			}
		}
	})
}

// TestTurnsShared shows that a tenant with many requests has half of the places, that
// another tenant's requests start at once up to its half, and that a waiting request
// starts when another one of its tenant ends, or when requests have run for Hold.
func TestTurnsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &Turns{Places: 4, Hold: 50 * time.Millisecond}
		started := make(chan string, 100)
		leaves := make(chan func(), 100)
		enter := func(tenant string) {
			go func() {
				leave, err := x.Enter(t.Context(), tenant, "a")
				if err != nil {
					t.Error(err)
					return
				}
				started <- tenant
				leaves <- leave
			}()
			synctest.Wait()
		}
		leave, err := x.Enter(t.Context(), "other", "a") // from here on, two tenants send requests
		if err != nil {
			t.Fatal(err)
		}
		leave()
		for range 6 {
			enter("noisy")
		}
		if len(started) != 2 {
			t.Fatalf("%d of noisy's requests run, want half of the places", len(started))
		}
		enter("quiet")
		enter("quiet")
		if len(started) != 4 {
			t.Fatalf("%d requests run: quiet's do not start at once", len(started))
		}
		enter("quiet")
		for range 4 {
			<-started
		}
		(<-leaves)() // ends a request of noisy
		synctest.Wait()
		if len(started) != 1 || <-started != "noisy" {
			t.Error("a free place of noisy is not given to noisy, whose share is not taken")
		}
		time.Sleep(51 * time.Millisecond)
		synctest.Wait()
		if len(started) != 3 { // two requests of noisy and one of quiet
			t.Errorf("%d requests started after Hold, want 3", len(started))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for len(leaves) > 0 {
			(<-leaves)() // the place was released after Hold, so this has no effect
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.taken != 0 || len(x.held) != 0 || x.waiting.Len() != 0 {
			t.Errorf("%d places are taken, %v, %d wait", x.taken, x.held, x.waiting.Len())
		}
	})
}

// TestTurnsPause shows that a tenant with a queue pauses for three times as long as its
// request ran while another tenant without a queue is present, and not once that tenant has sent
// nothing for a second or has a queue itself. A tenant whose queue never becomes empty is
// not limited any more once it is alone.
func TestTurnsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 10 * time.Millisecond
		x := &Turns{Places: 2, Hold: 50 * time.Millisecond}
		ctx, cancel := context.WithCancel(t.Context())
		var noisy atomic.Int64
		client := func(ctx context.Context, tenant string) {
			for ctx.Err() == nil {
				if leave, err := x.Enter(ctx, tenant, "a"); err == nil {
					time.Sleep(took)
					if tenant == "noisy" {
						noisy.Add(1)
					}
					leave()
				}
			}
		}
		// rate returns the number of calls of noisy during a time in which n calls fit
		// one after the other.
		rate := func(n int) int64 {
			before := noisy.Load()
			time.Sleep(time.Duration(n) * took)
			return noisy.Load() - before
		}
		enter := func() {
			leave, err := x.Enter(ctx, "quiet", "a")
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
		enter()
		for range 8 {
			go client(ctx, "noisy")
		}
		time.Sleep(took)
		enter()
		if got := rate(40); got < 9 || got > 11 {
			t.Errorf("%d calls beside a quiet tenant, want a quarter of 40", got)
		}
		time.Sleep(pauses)
		if got := rate(40); got < 39 || got > 41 {
			t.Errorf("%d calls after a second without calls of another tenant, want 40", got)
		}
		busy, stop := context.WithCancel(ctx)
		for range 8 {
			go client(busy, "quiet")
		}
		if got := rate(40); got < 36 || got > 42 { // the pauses that have begun end first
			t.Errorf("%d calls beside a tenant with a queue, want 40", got)
		}
		stop()
		time.Sleep(lately + time.Second)
		if got := rate(40); got < 8*39 {
			t.Errorf("%d calls alone, want 320", got)
		}
		cancel()
		synctest.Wait()
		time.Sleep(time.Minute)
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.taken != 0 || len(x.held) != 0 || x.waiting.Len() != 0 {
			t.Errorf("%d places are taken, %v, %d wait", x.taken, x.held, x.waiting.Len())
		}
	})
}

// TestTurnsLeft shows that a request whose context ends while it waits, or while it is
// given a place, does not occupy a place afterwards.
func TestTurnsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &Turns{Places: 2, Hold: 10 * time.Millisecond}
		for i := range 400 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%40)*time.Millisecond)
				defer cancel()
				if leave, err := x.Enter(ctx, string(rune('a'+i%3)), "o"); err == nil {
					time.Sleep(time.Millisecond)
					leave()
				}
			}()
		}
		time.Sleep(time.Minute)
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.taken != 0 || len(x.held) != 0 || x.waiting.Len() != 0 {
			t.Errorf("%d places are taken, %v, %d wait", x.taken, x.held, x.waiting.Len())
		}
	})
}
