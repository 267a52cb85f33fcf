package egressbroker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Before a process records the last event of a proxy or of a flow to an endpoint, it writes a mark
// to the file. If it is killed then, another process finds the event near the mark, however long
// ago that was; without a mark there is none.

// window is a time for which the ledger certainly rejects a second event with an id: a minute less
// than the duplicate window of EVENTS.
const window = 4 * time.Minute

// recorded reports whether the last event of a file, e, is on the ledger. Without a mark in the
// file, no process has tried to record it. Within window after the first mark, recorded reads
// nothing and returns false, because the ledger rejects the event if it has one with its id. Later
// it reads the events with the name and key of e that were recorded from the first mark on, until
// appends that began at the last mark have ended. Files of earlier releases have no marks, so
// marks is false; for these, recorded reads from a sequence, from, to the end of the ledger.
func (l ledger) recorded(ctx context.Context, e *contract.Event, j *journal, from uint64, marks bool) (bool, error) {
	until := time.Time{}
	if marks {
		first, last, err := j.marks()
		if err != nil || first.Mark == 0 || l.env.Emit.Now().Sub(first.At).Abs() < window {
			return false, err
		}
		from, until = max(from, first.Mark), last.At.Add(max(l.patience, appendTime)+eventlog.Disorder)
	}
	filter := bus.Filter{Tenant: e.Tenant, Service: services.EgressBroker, Event: e.Name, Key: e.Key}.String()
	known := false
	_, err := eventlog.First(ctx, l.env.Emit.Log, filter, from, func(en eventlog.Entry) bool {
		x, err := eventlog.Open(en, filter)
		if err != nil {
			return false
		}
		known = x.ID == e.ID
		at, err := contract.ParseTime(x.Time)
		return known || err == nil && !until.IsZero() && at.After(until)
	})
	if errors.Is(err, eventlog.ErrNotFound) {
		err = nil
	}
	return known && err == nil, err
}

// markTime is the maximum time to read the end of the ledger for a mark.
const markTime = 2 * time.Second

// marked writes a mark to a file. It logs a failure: if the process is killed then, the last event
// may be recorded twice.
func (l ledger) marked(j *journal) {
	ctx, cancel := context.WithTimeout(context.Background(), markTime)
	defer cancel()
	m := entry{Mark: 1, At: l.env.Emit.Now()}
	if last, err := l.env.Emit.Log.Last(ctx, bus.EveryEvent); err == nil {
		m.Mark = last.Seq
	}
	if err := j.write(m); err != nil {
		l.env.Log.Warn("the end was not written to a file", "file", j.path, "err", err)
	}
}

// marks returns the first and the last mark of a file, or zeros if it has none.
func (j *journal) marks() (first, last entry, err error) {
	all, err := j.lines()
	all = slices.DeleteFunc(all, func(e entry) bool { return e.Mark == 0 })
	if err != nil || len(all) == 0 {
		return first, last, err
	}
	return all[0], all[len(all)-1], nil
}
