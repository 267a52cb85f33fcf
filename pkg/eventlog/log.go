// Package eventlog appends to and reads from the ledger.
package eventlog

import (
	"bytes"
	"context"
	"errors"
	"iter"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Entry is one stored event.
type Entry struct {
	Seq     uint64 // stream sequence, from 1
	Subject string
	Data    []byte // the stored bytes
}

// Sentinels. Any other error of an append means its outcome is unknown:
// repeat it with the same bytes and id.
var (
	// ErrConflict: the expectation does not hold; reload and decide again.
	ErrConflict = errors.New("ledger: the expected last event is not the last one")
	// ErrIDConflict: another event was stored under this message id first.
	ErrIDConflict = errors.New("ledger: id_conflict: another event holds this message id")
	// ErrNotFound: nothing matches.
	ErrNotFound = errors.New("ledger: no such event")
)

// Log is the ledger. Implementations are durable on return in the ledger's
// durability mode and safe for concurrent use.
type Log interface {
	// Append stores data once under subject. A resend of the same bytes under the same
	// id returns the first sequence; other bytes under that id return ErrIDConflict.
	Append(ctx context.Context, subject, id string, data []byte) (seq uint64, err error)
	// Start begins an Append and returns at once; wait returns its result. Appends that
	// one goroutine starts are stored in that order, unless an attempt had to be
	// repeated.
	Start(subject, id string, data []byte) (wait func(context.Context) (seq uint64, err error))
	// AppendExpect stores data if the last event matching filter has sequence expect (0:
	// there is none), and returns ErrConflict otherwise. A resend after a lost response
	// finds its own event and returns its sequence.
	AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (seq uint64, err error)
	// Last returns the newest entry matching filter, or ErrNotFound.
	Last(ctx context.Context, filter string) (Entry, error)
	// Get returns the entry at seq, or ErrNotFound.
	Get(ctx context.Context, seq uint64) (Entry, error)
	// Scan yields entries matching filter from sequence from to the current end, in
	// order. It is for rare and short reads; views use package follow.
	Scan(ctx context.Context, filter string, from uint64) iter.Seq2[Entry, error]
}

// AppendEvent encodes e and appends it under its own subject and id, without an expected
// sequence.
func AppendEvent(ctx context.Context, l Log, e *contract.Event) (uint64, []byte, error) {
	b, err := e.Encode()
	if err != nil {
		return 0, nil, err
	}
	seq, err := l.Append(ctx, e.Subject(), e.ID, b)
	return seq, b, err
}

// Open decodes a stored entry and checks that its subject is the one that its body
// determines. An entry that fails is not an event: report it and skip it.
func Open(en Entry) (*contract.Event, error) {
	e, err := contract.DecodeEvent(en.Data)
	if err != nil {
		return nil, err
	}
	if !e.Under(en.Subject) {
		return nil, errors.New("subject " + en.Subject + " is not the one of its body, " + e.Subject())
	}
	return e, nil
}

// same reports whether a stored entry is the event that this writer tried to append.
func same(en Entry, subject string, data []byte) bool {
	return en.Subject == subject && bytes.Equal(en.Data, data)
}
