package runs

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
)

// merging is a merge of large runs in the background. The first change that writes a run
// after the merge has finished replaces the merged runs by the result. The methods
// finished and number accept a nil receiver.
type merging struct {
	runs    []*run // runs that are merged; consecutive in Set.runs
	at      int    // index of the first of them in Set.runs
	file    uint64 // number of the run that the merge writes
	path    string
	stopped atomic.Bool
	done    chan struct{} // closed when result or err is set
	result  *run
	err     error
}

var errStopped = errors.New("the merge was stopped")

// mergeLarge starts to merge fanIn consecutive runs of one tier, at least slowTier, into
// a run with the given number. It returns nil if there are no such runs. The caller must
// hold mu.
func (s *Set) mergeLarge(number uint64) *merging {
	for last := len(s.runs); last >= fanIn; last-- {
		first := last - fanIn
		tier := s.tierOf(s.runs[last-1].n)
		if tier < slowTier || slices.ContainsFunc(s.runs[first:last], func(r *run) bool { return s.tierOf(r.n) != tier }) {
			continue
		}
		m := &merging{runs: slices.Clone(s.runs[first:last]), at: first, file: number, path: s.path(number), done: make(chan struct{})}
		go m.run(s)
		return m
	}
	return nil
}

// run merges the runs, and sets result or err.
func (m *merging) run(s *Set) {
	defer close(m.done)
	n := 0
	for _, r := range m.runs {
		n += r.n
	}
	from := s.sources(m.runs, nil)
	for i := range from {
		from[i] = stoppable{from[i], &m.stopped}
	}
	m.result, m.err = writeRun(m.path, m.file, n, from)
}

// stoppable implements source. It returns errStopped once stopped is set.
type stoppable struct {
	source
	stopped *atomic.Bool
}

func (s stoppable) next() (Record, error) {
	if s.stopped.Load() {
		return Record{}, errStopped
	}
	return s.source.next()
}

// finished reports whether the merge is finished. Without a merge it returns false.
func (m *merging) finished() bool {
	if m == nil {
		return false
	}
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// number returns the number of the run that the merge writes, or 0 without a merge.
func (m *merging) number() uint64 {
	if m == nil {
		return 0
	}
	return m.file
}

// cancel stops the merge, waits for its end, and deletes its result.
func (m *merging) cancel() error {
	m.stopped.Store(true)
	<-m.done
	if m.result == nil {
		return nil
	}
	return errors.Join(m.result.f.Close(), os.Remove(m.path))
}
