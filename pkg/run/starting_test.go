package run

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeView is a view of 1,000 events whose position the test sets.
type fakeView struct {
	at    atomic.Uint64
	ready chan struct{}
}

func (v *fakeView) Position() uint64       { return v.at.Load() }
func (v *fakeView) Pending() uint64        { return 1000 - v.at.Load() }
func (v *fakeView) Ready() <-chan struct{} { return v.ready }

// TestStill shows that a view that advances within each StartPatience counts as
// progress, and that Waiting names a view that does not advance.
func TestStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStarting()
		slow, stuck := &fakeView{ready: make(chan struct{})}, &fakeView{ready: make(chan struct{})}
		s.Follow("audit-1", "audit.view", slow)
		s.Follow("policy-1", "policy.state", stuck)
		for range 600 {
			if time.Sleep(time.Second); s.Still() >= StartPatience {
				t.Fatalf("stands still after event %d of 1000: %v", slow.at.Load(), s.Waiting())
			}
			if time.Now().Second()%20 == 0 {
				slow.at.Add(1)
			}
		}
		close(slow.ready)
		for s.Still() < StartPatience {
			time.Sleep(time.Second)
		}
		if w := s.Waiting(); len(w) != 1 || w[0] != "policy-1 rebuilds policy.state, at event 0 with 1000 left" {
			t.Fatal(w)
		}
	})
}

// TestReport shows that an instance logs every 5 s which of its own views it rebuilds,
// the view's position and the number of events left. Once all its views have caught up,
// it logs that it is not ready, until it is ready.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s, v, ready := NewStarting(), &fakeView{ready: make(chan struct{})}, make(chan struct{})
		s.add(startTask{instance: "policy-1", done: ready})
		s.Follow("policy-1", "policy.state", v)
		s.Follow("audit-1", "audit.view", &fakeView{ready: make(chan struct{})}) // another instance of the process
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Report(t.Context(), slog.New(slog.NewTextHandler(&out, nil)), "policy-1")
		}()
		time.Sleep(time.Second)
		v.at.Store(10)
		time.Sleep(5 * time.Second)
		v.at.Store(400)
		time.Sleep(5 * time.Second)
		close(v.ready)
		time.Sleep(5 * time.Second)
		close(ready)
		<-ended
		got := out.String()
		for _, want := range []string{"view=policy.state position=10 left=990", "view=policy.state position=400 left=600", "every view has caught up"} {
			if strings.Count(got, want) != 1 {
				t.Errorf("no line, or several, with %q", want)
			}
		}
		if strings.Count(got, "\n") != 3 || strings.Contains(got, "audit.view") {
			t.Errorf("log:\n%s", got)
		}
	})
}

// TestHealthWhileStarting shows that a health check waits while a service is starting,
// succeeds when the service is ready, and fails once a service that was ready is not, also
// during a check.
func TestHealthWhileStarting(t *testing.T) {
	name := "test-" + strconv.Itoa(os.Getpid())
	var ready atomic.Bool
	go answerHealth(name, ready.Load, NewStarting(), 600*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for askHealth(name) != healthStarting {
		if ctx.Err() != nil {
			t.Fatal("the service does not answer that it starts")
		}
	}
	code := make(chan int, 1)
	go func() { code <- AskHealth(name) }()
	select {
	case c := <-code:
		t.Fatalf("the check of a service that starts ended with %d", c)
	case <-time.After(200 * time.Millisecond):
	}
	ready.Store(true)
	if c := <-code; c != 0 {
		t.Fatalf("exit code %d of a ready service", c)
	}
	for time.Sleep(1100 * time.Millisecond); askHealth(name) != healthOK; { // until AnswerHealth has recorded that the service was ready
		if ctx.Err() != nil {
			t.Fatal("not ready")
		}
	}
	began := time.Now()
	if c := AskHealth(name); c != 0 || time.Since(began) < 600*time.Millisecond {
		t.Fatalf("exit code %d after %v", c, time.Since(began))
	}
	time.AfterFunc(100*time.Millisecond, func() { ready.Store(false) })
	if c := AskHealth(name); c != 1 {
		t.Fatalf("exit code %d of a service that stops being ready during the check", c)
	}
	if c := AskHealth(name); c != 1 {
		t.Fatalf("exit code %d of a service that is ready no more", c)
	}
}

// TestHealthStalled shows that the health check of a service fails if its start makes no
// progress for StartPatience.
func TestHealthStalled(t *testing.T) {
	name := "test-stalled-" + strconv.Itoa(os.Getpid())
	s := NewStarting()
	s.Still()
	s.since = time.Now().Add(-StartPatience)
	go AnswerHealth(name, func() bool { return false }, s)
	time.Sleep(100 * time.Millisecond)
	if c := AskHealth(name); c != 1 {
		t.Fatalf("exit code %d of a service that stands still", c)
	}
}
