// Package memlog is the ledger in memory, for tests of what sits above it. It
// answers as a single JetStream server does: the expectation is checked
// before the message id.
package memlog

import (
	"bytes"
	"context"
	"iter"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Log implements eventlog.Log.
type Log struct {
	mu      sync.Mutex
	entries []eventlog.Entry
	ids     map[string]uint64
}

// Append implements eventlog.Log.
func (l *Log) Append(_ context.Context, subject, id string, data []byte) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store(subject, id, data)
}

func (l *Log) store(subject, id string, data []byte) (uint64, error) {
	if seq, ok := l.ids[id]; ok {
		if en := l.entries[seq-1]; en.Subject == subject && bytes.Equal(en.Data, data) {
			return seq, nil
		}
		return 0, eventlog.ErrIDConflict
	}
	if l.ids == nil {
		l.ids = map[string]uint64{}
	}
	seq := uint64(len(l.entries) + 1)
	l.ids[id] = seq
	l.entries = append(l.entries, eventlog.Entry{Seq: seq, Subject: subject, Data: bytes.Clone(data)})
	return seq, nil
}

// Start implements eventlog.Log.
func (l *Log) Start(subject, id string, data []byte) func(context.Context) (uint64, error) {
	seq, err := l.Append(context.Background(), subject, id, data)
	return func(context.Context) (uint64, error) { return seq, err }
}

// AppendExpect implements eventlog.Log.
func (l *Log) AppendExpect(_ context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.last(filter)
	if last.Seq != expect {
		if last.Subject == subject && bytes.Equal(last.Data, data) {
			return last.Seq, nil
		}
		return 0, eventlog.ErrConflict
	}
	return l.store(subject, id, data)
}

func (l *Log) last(filter string) eventlog.Entry {
	for i := len(l.entries) - 1; i >= 0; i-- {
		if match(filter, l.entries[i].Subject) {
			return l.entries[i]
		}
	}
	return eventlog.Entry{}
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
			if en.Seq >= from && match(filter, en.Subject) && !yield(en, nil) {
				return
			}
		}
	}
}

func match(filter, subject string) bool {
	f, s := strings.Split(filter, "."), strings.Split(subject, ".")
	for i, t := range f {
		if t == ">" {
			return len(s) > i
		}
		if i >= len(s) || t != "*" && t != s[i] {
			return false
		}
	}
	return len(f) == len(s)
}
