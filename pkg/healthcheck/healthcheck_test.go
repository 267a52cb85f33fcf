package healthcheck

import (
	"context"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// TestCheck shows that a health check waits while a program is starting,
// succeeds when the program is ready, and fails once a program that was ready is not, also
// during a check.
func TestCheck(t *testing.T) {
	name := "test-" + strconv.Itoa(os.Getpid())
	var ready atomic.Bool
	go answer(name, ready.Load, func() bool { return true }, 600*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for check(name) != waiting {
		if ctx.Err() != nil {
			t.Fatal("the program does not answer that it starts")
		}
	}
	code := make(chan int, 1)
	go func() { code <- Check(name) }()
	select {
	case c := <-code:
		t.Fatalf("the check of a program that starts ended with %d", c)
	case <-time.After(200 * time.Millisecond):
	}
	ready.Store(true)
	if c := <-code; c != 0 {
		t.Fatalf("exit code %d of a ready program", c)
	}
	for time.Sleep(1100 * time.Millisecond); check(name) != healthy; { // until Answer has recorded that the program was ready
		if ctx.Err() != nil {
			t.Fatal("not ready")
		}
	}
	began := time.Now()
	if c := Check(name); c != 0 || time.Since(began) < 600*time.Millisecond {
		t.Fatalf("exit code %d after %v", c, time.Since(began))
	}
	time.AfterFunc(100*time.Millisecond, func() { ready.Store(false) })
	if c := Check(name); c != 1 {
		t.Fatalf("exit code %d of a program that stops being ready during the check", c)
	}
	if c := Check(name); c != 1 {
		t.Fatalf("exit code %d of a program that is ready no more", c)
	}
}
