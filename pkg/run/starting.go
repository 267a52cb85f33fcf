package run

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// StartPatience is the time without progress after which a start counts as failed.
// Starts that progress have no time limit, since the time to rebuild a view grows with
// the ledger.
const StartPatience = 30 * time.Second

// startReports is the interval at which an instance that is starting logs its progress.
const startReports = 5 * time.Second

// View is a view that is rebuilt from the ledger; *follow.Follower implements it.
type View interface {
	Position() uint64       // sequence of the last event applied
	Pending() uint64        // number of events left, as of the last delivery
	Ready() <-chan struct{} // closed when the view has caught up for the first time
}

// Starting tracks the views that the instances of a process rebuild when they start, and
// the instances that are not ready yet. Its methods are safe for concurrent use.
type Starting struct {
	mu    sync.Mutex
	tasks []startTask
	last  string    // state at the last change that Still found; "" before its first call
	since time.Time // time of that change; before the first call of Still, time of NewStarting
	once  sync.Once // limits release to one call of debug.FreeOSMemory
}

// startTask is one view of an instance or, without a view, the instance itself.
type startTask struct {
	instance, name string
	view           View
	done           <-chan struct{}
}

// NewStarting returns a Starting without tasks.
func NewStarting() *Starting { return &Starting{since: time.Now()} }

// Follow adds a view that an instance rebuilds.
func (s *Starting) Follow(instance, name string, v View) {
	s.add(startTask{instance, name, v, v.Ready()})
}

func (s *Starting) add(t startTask) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks = append(s.tasks, t)
}

// open returns the tasks of an instance that are not done, or those of every instance if
// instance is "".
func (s *Starting) open(instance string) (out []startTask) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		select {
		case <-t.done:
		default:
			if instance == "" || t.instance == instance {
				out = append(out, t)
			}
		}
	}
	return out
}

// Waiting returns a phrase for each view that has not caught up, with its position, and
// for each instance that is not ready although all its views have caught up.
func (s *Starting) Waiting() (out []string) {
	open := s.open("")
	rebuilds := map[string]bool{}
	for _, t := range open {
		if t.view != nil {
			rebuilds[t.instance] = true
			out = append(out, fmt.Sprintf("%s rebuilds %s, at event %d with %d left", t.instance, t.name, t.view.Position(), t.view.Pending()))
		}
	}
	for _, t := range open {
		if t.view == nil && !rebuilds[t.instance] {
			out = append(out, t.instance+" is not ready")
		}
	}
	return out
}

// Still returns the time since a call of Still last found a change: a view whose
// position or number of events left changed or that caught up, an instance that became
// ready, or an added task. The first call counts as a change. Still finds changes only
// when it is called, so callers call it about once a second.
func (s *Starting) Still() time.Duration {
	now := fmt.Sprint(s.Waiting())
	s.mu.Lock()
	defer s.mu.Unlock()
	now += fmt.Sprint(len(s.tasks))
	if now != s.last {
		s.last, s.since = now, time.Now()
	}
	return time.Since(s.since)
}

// release returns free memory to the operating system, once, if no task is left. Views
// that are rebuilt from a long ledger leave much garbage, which the runtime would hold
// for minutes.
func (s *Starting) release() {
	if len(s.open("")) == 0 {
		s.once.Do(debug.FreeOSMemory)
	}
}

// Report logs every startReports which views an instance still rebuilds or, if all have caught up,
// that the instance is not ready yet. It returns once nothing is left to log, or when ctx ends.
// Before it returns because nothing is left to log, it calls release.
func (s *Starting) Report(ctx context.Context, log *slog.Logger, instance string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(startReports):
		}
		open := s.open(instance)
		if len(open) == 0 {
			s.release()
			return
		}
		views := 0
		for _, t := range open {
			if t.view != nil {
				views++
				log.Info("rebuilding a view", "view", t.name, "position", t.view.Position(), "left", t.view.Pending())
			}
		}
		if views == 0 {
			log.Info("not ready yet; every view has caught up")
		}
	}
}
