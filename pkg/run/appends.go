package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// An instance is not ready while its appends fail: appendFailures of them in a row, the last one
// less than failingFor ago. An instance that is not ready gets no calls and may then append
// nothing, so it becomes ready again after failingFor.
const (
	appendFailures = 3
	failingFor     = 5 * time.Second
)

// appends is a ledger that records whether appends to it succeed.
type appends struct {
	eventlog.Log

	mu     sync.Mutex
	failed int       // failures since the last success
	last   error     // the last failure
	at     time.Time // time of last
}

// Append implements eventlog.Log.
func (a *appends) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	seq, err := a.Log.Append(ctx, subject, id, data)
	a.note(err)
	return seq, err
}

// AppendExpect implements eventlog.Log.
func (a *appends) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	seq, err := a.Log.AppendExpect(ctx, subject, id, data, filter, expect)
	a.note(err)
	return seq, err
}

// Start implements eventlog.Log.
func (a *appends) Start(subject, id string, data []byte) func(context.Context) (uint64, error) {
	wait := a.Log.Start(subject, id, data)
	return func(ctx context.Context) (uint64, error) {
		seq, err := wait(ctx)
		a.note(err)
		return seq, err
	}
}

// note records the result of an append. An append whose caller did not wait for the response is
// neither a failure nor a success; a conflict is a success, since the ledger has responded.
func (a *appends) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !errors.Is(err, eventlog.ErrUnavailable):
		a.failed = 0
	case !errors.Is(err, context.Canceled):
		a.failed, a.last, a.at = a.failed+1, err, time.Now()
	}
}

// health reports whether appends succeed.
func (a *appends) health(context.Context) Health {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed < appendFailures || time.Since(a.at) >= failingFor {
		return Health{Name: "ledger.appends", OK: true}
	}
	return Health{Name: "ledger.appends", Detail: fmt.Sprintf("the NATS server did not store the last %d events (%v); if its disk was full, make space and start it again", a.failed, a.last)}
}
