package executetest

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// ErrRefused is the error of an append that a Ledger refuses. It wraps eventlog.ErrUnavailable.
var ErrRefused = fmt.Errorf("%w: the append is refused", eventlog.ErrUnavailable)

// Ledger is the ledger as one instance reaches it. It is safe for concurrent use.
type Ledger struct {
	eventlog.Log
	// Stored, if not nil, is called with each event after the instance has stored it. It must
	// not be changed after the first append.
	Stored func(seq uint64, data []byte, e *contract.Event)

	mu      sync.Mutex
	before  string // name of the event before whose append the instance ends; "" if it does not
	after   string // name of the event after whose append the instance ends; "" if it does not
	ended   bool
	refused map[string]int // by event name, number of further appends that are refused
}

// EndBefore makes the instance end when it appends an event with the given name, which is not
// stored. An instance that has ended appends nothing: any of its goroutines that appends an
// event ends.
func (l *Ledger) EndBefore(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = event
}

// EndAfter makes the instance end when it has stored an event with the given name.
func (l *Ledger) EndAfter(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = event
}

// Refuse makes the next n appends of events with the given name fail with ErrRefused. It replaces
// the refusals of an earlier call.
func (l *Ledger) Refuse(event string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = map[string]int{event: n}
}

// append stores the event data by store, unless the instance ends or the append is refused.
func (l *Ledger) append(data []byte, store func() (uint64, error)) (uint64, error) {
	e, err := contract.DecodeEvent(data)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	l.ended = l.ended || l.before == e.Name
	ended, refused := l.ended, l.refused[e.Name] > 0
	if refused && !ended {
		l.refused[e.Name]--
	}
	l.mu.Unlock()
	if ended {
		runtime.Goexit()
	}
	if refused {
		return 0, ErrRefused
	}
	seq, err := store()
	if err != nil {
		return 0, err
	}
	if l.Stored != nil {
		l.Stored(seq, data, e)
	}
	l.mu.Lock()
	l.ended = l.ended || l.after == e.Name
	ended = l.ended
	l.mu.Unlock()
	if ended {
		runtime.Goexit()
	}
	return seq, nil
}

// Append implements eventlog.Log.
func (l *Ledger) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	return l.append(data, func() (uint64, error) { return l.Log.Append(ctx, subject, id, data) })
}

// AppendExpect implements eventlog.Log.
func (l *Ledger) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	return l.append(data, func() (uint64, error) { return l.Log.AppendExpect(ctx, subject, id, data, filter, expect) })
}

// Start implements eventlog.Log. The first attempt to append precedes its return.
func (l *Ledger) Start(subject, id string, data []byte) func(context.Context) (uint64, error) {
	seq, err := l.Append(context.Background(), subject, id, data)
	return func(ctx context.Context) (uint64, error) {
		if err != nil {
			seq, err = l.Append(ctx, subject, id, data)
		}
		return seq, err
	}
}
