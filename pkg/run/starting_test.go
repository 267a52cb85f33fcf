package run

import (
	"bytes"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/healthcheck"
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

// TestHealthStalled shows that the health check of a service fails if its start makes no
// progress for StartPatience.
func TestHealthStalled(t *testing.T) {
	name := "test-stalled-" + strconv.Itoa(os.Getpid())
	s := NewStarting()
	s.Still()
	s.since = time.Now().Add(-StartPatience)
	go AnswerHealth(name, func() bool { return false }, s)
	time.Sleep(100 * time.Millisecond)
	if c := healthcheck.Check(name); c != 1 {
		t.Fatalf("exit code %d of a service that stands still", c)
	}
}
