package fair

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurnsAlone shows that a tenant alone is not limited, and is again not limited once
// the other tenant has sent nothing for a while.
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
// another tenant's request starts at once, that waiting requests get places when others
// end or have run for Hold, and that the tenants are served in turn.
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
		leave, err := x.Enter(t.Context(), "other", "a") // from here on, several tenants are present
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
		(<-leaves)() // noisy's
		synctest.Wait()
		if len(started) != 1 || <-started != "noisy" {
			t.Error("a free place of noisy is not given to noisy, whose share is not taken")
		}
		time.Sleep(51 * time.Millisecond)
		synctest.Wait()
		if len(started) != 3 { // two of noisy, one of quiet
			t.Errorf("%d requests started after Hold, want 3", len(started))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for len(leaves) > 0 {
			(<-leaves)() // has no effect any more
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.taken != 0 || len(x.held) != 0 || x.waiting.Len() != 0 {
			t.Errorf("%d places are taken, %v, %d wait", x.taken, x.held, x.waiting.Len())
		}
	})
}

// TestTurnsLeft shows that a request whose context ends while it waits, or while it gets
// a place, keeps none.
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
