package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
)

// Entries takes snapshots of a view that few entries of the ledger change. The state is
// the list of these entries, so a view that starts from a snapshot is built from the
// same bytes as one that starts from the ledger. The list is held in memory.
type Entries struct {
	// Apply applies an entry to the view.
	Apply func(eventlog.Entry) error
	// Check returns an error if a new view cannot be built from the entries.
	Check func([]eventlog.Entry) error
	// Reduce returns the entries without the ones that no longer have an effect, such as
	// the events of an escalated call that is settled. It may be nil, and may change the
	// slice. It is called before a snapshot is taken, and by Add if the list has more
	// than 1,000 entries plus twice the number that it last returned.
	Reduce func([]eventlog.Entry) []eventlog.Entry
	// Off makes Add apply entries without adding them to the list, for an instance that
	// takes no snapshots.
	Off bool

	mu      sync.Mutex
	entries []eventlog.Entry
	last    uint64 // sequence of the last entry that was added
	reduced int    // number of entries after the last Reduce
}

// Add applies an entry to the view and, unless Off is set, adds it to the list if it is
// a valid event. Add copies the data. It returns the error of Apply.
func (l *Entries) Add(en eventlog.Entry) error {
	if err := l.Apply(en); err != nil || l.Off {
		return err
	}
	if _, err := eventlog.OpenBytes(en.Data, eventlog.Every); err != nil {
		return nil
	}
	en.Data = bytes.Clone(en.Data)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries, l.last = append(l.entries, en), en.Seq
	if len(l.entries) > 2*l.reduced+1000 {
		l.reduce()
	}
	return nil
}

func (l *Entries) reduce() {
	if l.Reduce != nil {
		l.entries = l.Reduce(l.entries)
	}
	l.reduced = len(l.entries)
}

// Source returns the Source with which a Store takes and loads snapshots of the view. f
// is the follower that calls Add.
func (l *Entries) Source(view string, code int64, f *follow.Follower) Source {
	return Source{View: view, Code: code, Load: l.load, Save: func(ctx context.Context) ([]byte, uint64, error) {
		at, err := f.Reach(ctx)
		if err != nil {
			return nil, 0, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reduce()
		var b []byte
		for _, en := range l.entries {
			b = strconv.AppendUint(b, en.Seq, 10)
			b = append(append(append(b, ' '), en.Data...), '\n')
		}
		return b, max(at, l.last), nil
	}}
}

// load applies the entries of a state to the empty view.
func (l *Entries) load(state []byte) error {
	entries, err := ReadEntries(state)
	if err != nil {
		return err
	}
	if err := l.Check(entries); err != nil {
		return err
	}
	for _, en := range entries {
		if err := l.Add(en); err != nil {
			return err
		}
	}
	return nil
}

// ReadEntries returns the entries in a state of Entries. It returns an error unless each
// is a valid event and their sequences increase.
func ReadEntries(state []byte) ([]eventlog.Entry, error) {
	var out []eventlog.Entry
	last := uint64(0)
	for line := range bytes.Lines(state) {
		number, data, ok := bytes.Cut(line, []byte(" "))
		seq, err := strconv.ParseUint(string(number), 10, 64)
		if !ok || err != nil || seq <= last || !bytes.HasSuffix(data, []byte("\n")) {
			return nil, errors.New("a line is not a sequence and an event in the order of the ledger")
		}
		data = data[:len(data)-1]
		e, err := eventlog.OpenBytes(data, eventlog.Every)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", seq, err)
		}
		out, last = append(out, eventlog.Entry{Seq: seq, Subject: e.Subject(), Data: data}), seq
	}
	return out, nil
}
