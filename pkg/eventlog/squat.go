package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TakenError is an ErrIDConflict with the sequence of the entry that has the message id.
type TakenError struct{ Seq uint64 }

// Error implements error.
func (e *TakenError) Error() string { return fmt.Sprintf("%v (sequence %d)", ErrIDConflict, e.Seq) }

// Is reports whether target is ErrIDConflict.
func (e *TakenError) Is(target error) bool { return target == ErrIDConflict }

// maxSquatted is the maximum number of message ids that Contend tries for one event.
const maxSquatted = 16

// Contend performs an append for which several writers compete: the first to store an
// event under the message id wins. Any service can publish under any id, so the stored
// entry counts only if it is an event for which genuine returns true; otherwise Contend
// tries the next id, which is the same for every writer. Contend returns the result of
// try unless that is a *TakenError. It returns the *TakenError, which is an
// ErrIDConflict, if a genuine event was stored first, and another error if the stored
// entry cannot be read or maxSquatted ids are taken.
func Contend(ctx context.Context, l Log, id string, genuine func(*contract.Event) bool, try func(id string) (uint64, error)) (uint64, error) {
	for range maxSquatted {
		seq, err := try(id)
		var taken *TakenError
		if !errors.As(err, &taken) {
			return seq, err
		}
		en, getErr := l.Get(ctx, taken.Seq)
		if getErr != nil {
			return 0, getErr
		}
		if e, openErr := Open(en, Every); openErr == nil && genuine(e) {
			return 0, err
		}
		id += "~"
	}
	return 0, fmt.Errorf("ledger: %d other events hold the id %s", maxSquatted, id)
}
