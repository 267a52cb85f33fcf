// Package memlog is an implementation of the ledger in memory, for tests. It behaves as
// a single JetStream server does: it checks the expected sequence before the message id.
package memlog

import (
	"bytes"
	"context"
	"iter"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Log implements eventlog.Log. The zero value is an empty ledger in which message ids
// never expire.
type Log struct {
	// Window is the time for which a second append under a message id counts as a
	// duplicate; 0 means no limit. Now is the clock for Window, and must be set if
	// Window is.
	Window time.Duration
	Now    func() time.Time

	mu      sync.Mutex
	entries []eventlog.Entry
	ids     map[string]stored
}

// stored is the sequence and the time of the entry with a message id.
type stored struct {
	seq uint64
	at  time.Time
}

// Expect is an expected sequence: Last is the sequence of the last entry that matches
// Filter, or 0 if there is none.
type Expect struct {
	Filter string
	Last   uint64
}

// Publish performs the server's part of an append. It returns eventlog.ErrConflict if
// expect is not nil and does not hold. Otherwise, if an entry was stored under the same
// message id within Window, Publish stores nothing and returns the sequence of that
// entry and true. Otherwise it stores a copy of data and returns the sequence of the new
// entry. An empty id is never a duplicate.
func (l *Log) Publish(subject, id string, data []byte, expect *Expect) (seq uint64, duplicate bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if expect != nil && l.last(expect.Filter).Seq != expect.Last {
		return 0, false, eventlog.ErrConflict
	}
	var now time.Time
	if l.Now != nil {
		now = l.Now()
	}
	if have, ok := l.ids[id]; ok && id != "" && (l.Window == 0 || now.Sub(have.at) < l.Window) {
		return have.seq, true, nil
	}
	if l.ids == nil {
		l.ids = map[string]stored{}
	}
	seq = uint64(len(l.entries) + 1)
	l.ids[id] = stored{seq, now}
	l.entries = append(l.entries, eventlog.Entry{Seq: seq, Subject: subject, Data: bytes.Clone(data)})
	return seq, false, nil
}

// Append implements eventlog.Log.
func (l *Log) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	seq, duplicate, err := l.Publish(subject, id, data, nil)
	if err != nil || !duplicate {
		return seq, err
	}
	return l.own(ctx, seq, subject, data)
}

// own handles a duplicate: it returns seq if the stored event equals this writer's
// event, otherwise a *eventlog.TakenError.
func (l *Log) own(ctx context.Context, seq uint64, subject string, data []byte) (uint64, error) {
	if en, err := l.Get(ctx, seq); err != nil {
		return 0, err
	} else if en.Subject != subject || !bytes.Equal(en.Data, data) {
		return 0, &eventlog.TakenError{Seq: seq}
	}
	return seq, nil
}

// Start implements eventlog.Log.
func (l *Log) Start(subject, id string, data []byte) func(context.Context) (uint64, error) {
	seq, err := l.Append(context.Background(), subject, id, data)
	return func(context.Context) (uint64, error) { return seq, err }
}

// AppendExpect implements eventlog.Log.
func (l *Log) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	seq, duplicate, err := l.Publish(subject, id, data, &Expect{filter, expect})
	if err != nil {
		// If this repeats an append whose response was lost, its own event may be the
		// last one.
		if last, e := l.Last(ctx, filter); e == nil && last.Subject == subject && bytes.Equal(last.Data, data) {
			return last.Seq, nil
		}
		return 0, err
	}
	if !duplicate {
		return seq, nil
	}
	return l.own(ctx, seq, subject, data)
}

// last returns the newest entry that matches filter, or the zero Entry. The caller holds
// the lock.
func (l *Log) last(filter string) eventlog.Entry {
	for i := len(l.entries) - 1; i >= 0; i-- {
		if bus.Match(filter, l.entries[i].Subject) {
			return l.entries[i]
		}
	}
	return eventlog.Entry{}
}

// Size returns the sequence of the newest entry, or 0 if there is none.
func (l *Log) Size() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return uint64(len(l.entries))
}

// Last implements eventlog.Log.
func (l *Log) Last(_ context.Context, filter string) (eventlog.Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if en := l.last(filter); en.Seq > 0 {
		return en, nil
	}
	return eventlog.Entry{}, eventlog.ErrNotFound
}

// Get implements eventlog.Log.
func (l *Log) Get(_ context.Context, seq uint64) (eventlog.Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq < 1 || seq > uint64(len(l.entries)) {
		return eventlog.Entry{}, eventlog.ErrNotFound
	}
	return l.entries[seq-1], nil
}

// Scan implements eventlog.Log.
func (l *Log) Scan(_ context.Context, filter string, from uint64) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		l.mu.Lock()
		all := l.entries[:len(l.entries):len(l.entries)]
		l.mu.Unlock()
		for _, en := range all {
			if en.Seq >= from && bus.Match(filter, en.Subject) && !yield(en, nil) {
				return
			}
		}
	}
}
