package sessionrunner

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// TestClassesRun shows that calls of a pack whose concurrency class has one place run one after the
// other, although there is room for more sandboxes, and record that they wait; that calls of a class
// without a bound, and of packs without a class, run at the same time; and that a call gives the
// place in its class back when the queue for all sandboxes is full.
func TestClassesRun(t *testing.T) {
	for class, want := range map[string]time.Duration{"slow": 2 * runTime, "other": runTime, "": runTime} {
		bubble(t, false, func(t *testing.T, rs *runners) {
			env, _ := rs.Env("session-runner", "session-runner-1")
			classes, err := classQueues([]string{"slow=1"}, 4)
			if err != nil {
				t.Fatal(err)
			}
			s := &Service{env: env, runners: []sandbox.Runner{rs}, queue: newQueue(4, 4), classes: classes}
			s.packs.set(map[string]pack.Pack{rs.tool.Tool: {Tool: rs.tool, Digest: contract.Digest(&rs.tool), Shares: class}})
			x, began := rs.Executor(executorOf(s)), time.Now()
			var all sync.WaitGroup
			for _, id := range []string{"c-1", "c-2"} {
				w := rs.call(id)
				all.Go(func() { w.Finish(x.Process) })
				synctest.Wait()
			}
			all.Wait()
			if took := time.Since(began); took != want {
				t.Errorf("class %q: both calls have ended after %v, want %v", class, took, want)
			}
			if waited := strings.Contains(rs.History("c-2"), contract.EventSandboxQueued); waited != (class == "slow") {
				t.Errorf("class %q: %s", class, rs.History("c-2"))
			}
		})
	}
	bubble(t, false, func(t *testing.T, rs *runners) {
		env, _ := rs.Env("session-runner", "session-runner-1")
		s := &Service{env: env, runners: []sandbox.Runner{rs}, queue: newQueue(1, 0), classes: map[string]*queue{"slow": newQueue(2, 4)}}
		s.packs.set(map[string]pack.Pack{rs.tool.Tool: {Tool: rs.tool, Digest: contract.Digest(&rs.tool), Shares: "slow"}})
		x := rs.Executor(executorOf(s))
		var all sync.WaitGroup
		for _, id := range []string{"c-1", "c-2"} {
			w := rs.call(id)
			all.Go(func() { w.Finish(x.Process) })
			synctest.Wait()
		}
		all.Wait()
		if got := rs.History("c-2"); !strings.Contains(got, contract.CodeSandboxQueueFull) {
			t.Error(got)
		}
		if running, waiting := s.classes["slow"].state(); running+waiting != 0 {
			t.Errorf("%d calls of the class run and %d wait", running, waiting)
		}
	})
}

// TestClassQueues checks the errors of concurrency classes in the configuration.
func TestClassQueues(t *testing.T) {
	for _, bad := range [][]string{{"a"}, {"a=0"}, {"a=-1"}, {"a=x"}, {"=1"}, {"A=1"}, {"a b=1"}, {"a=1", "a=2"}} {
		if _, err := classQueues(bad, 1); err == nil || !strings.Contains(err.Error(), "session-runner.concurrency") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
