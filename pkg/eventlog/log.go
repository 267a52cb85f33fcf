// Package eventlog appends events to the ledger and reads them.
//
// There are two ways to write. Append, or Start without waiting for the response, stores
// an event once under its message id, without a condition on other events. AppendExpect
// stores it only if no event that matches a filter was stored after a given sequence,
// which serializes the writers of an aggregate or of a receipt chain (optimistic
// concurrency). After an error other than ErrConflict and ErrIDConflict the event may or
// may not be stored: repeat the append with the same bytes and id.
//
// JetStream is the implementation on a server, package memlog the one for tests; both
// pass the suite of package logtest. Views do not use Scan: they read with package
// follow.
package eventlog

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Entry is one stored message of the ledger. Its Data must not be changed.
type Entry struct {
	Seq     uint64 // position in the ledger, from 1: the index of its leaf in the log plus one, and its sequence in the stream
	Subject string
	Data    []byte // the stored bytes
}

// Errors of Log. After any error of an append except ErrConflict and ErrIDConflict, the
// event may or may not be stored: repeat the append with the same bytes and id.
var (
	// ErrConflict means that the expected sequence is not the last one; reload and
	// decide again. If a response was lost and another event followed, the loaded events
	// may include the one that was appended.
	ErrConflict = errors.New("ledger: the expected last event is not the last one")
	// ErrIDConflict means that another event was stored under this message id first.
	ErrIDConflict = errors.New("ledger: id_conflict: another event holds this message id")
	// ErrNotFound means that no entry matches.
	ErrNotFound = errors.New("ledger: event not found")
	// ErrUnavailable means that every attempt failed, or that ctx ended before one
	// succeeded, for example because the server did not respond. Another attempt may
	// succeed later; see Retry.
	ErrUnavailable = errors.New("ledger unavailable")
)

// Retry calls f until it returns nil or an error other than ErrUnavailable, and returns
// that result. It logs a warning each time before it waits for the next attempt. If ctx
// has ended when f fails, or ends during the wait, Retry returns the error of ctx. It is
// for reads and appends that must not fail because the server is restarting, such as
// those of a service that starts.
func Retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if ctx.Err() != nil && err != nil {
			return ctx.Err()
		}
		if !errors.Is(err, ErrUnavailable) {
			return err
		}
		slog.Warn("the ledger is unavailable; trying again", "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Log is the ledger. Implementations are safe for concurrent use. An append is stored by
// the server on return. If the server commits in groups, the append survives a loss of
// power only after bus.Conn.Durable has returned nil.
type Log interface {
	// Append stores data once under subject. If the same bytes are sent again under the
	// same subject and id, it returns the first sequence; another subject or other bytes
	// under that id return ErrIDConflict. A server recognizes an id for the stream's
	// duplicate window only.
	Append(ctx context.Context, subject, id string, data []byte) (seq uint64, err error)
	// Start begins an Append without waiting for the response; wait waits for the
	// response and returns the result of the Append. A failed attempt is repeated only
	// by wait. Appends that one goroutine starts are stored in that order, unless an
	// attempt is repeated.
	Start(subject, id string, data []byte) (wait func(context.Context) (seq uint64, err error))
	// AppendExpect stores data if the last event that matches filter has the sequence
	// expect (0: no event matches), and returns ErrConflict otherwise. If it is repeated
	// after a lost response and its own event is still the last match, it returns that
	// event's sequence; on a replicated ledger, it may do so even if another match has
	// followed. Like Append it may return ErrIDConflict.
	AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (seq uint64, err error)
	// Last returns the newest entry that matches filter. It returns ErrNotFound if there
	// is none.
	Last(ctx context.Context, filter string) (Entry, error)
	// Get returns the entry with the sequence seq. It returns ErrNotFound if there is
	// none.
	Get(ctx context.Context, seq uint64) (Entry, error)
	// Scan yields the entries that match filter in order, from sequence from to the end
	// of the ledger: it omits no entry whose append returned before the scan began, and
	// may include entries that are appended during the scan. An error is yielded once,
	// as the last pair. Views use package follow instead.
	Scan(ctx context.Context, filter string, from uint64) iter.Seq2[Entry, error]
}

// AppendEvent encodes e and appends it under its own subject and id, without an expected
// sequence. It returns the event's sequence and the encoded event. Its errors are those
// of Event.Encode and Log.Append.
func AppendEvent(ctx context.Context, l Log, e *contract.Event) (uint64, []byte, error) {
	b, err := e.Encode()
	if err != nil {
		return 0, nil, err
	}
	seq, err := l.Append(ctx, e.Subject(), e.ID, b)
	return seq, b, err
}

// same reports whether a stored entry is the event that this writer appended.
func same(en Entry, subject string, data []byte) bool {
	return en.Subject == subject && bytes.Equal(en.Data, data)
}
