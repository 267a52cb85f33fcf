package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TakenError is an ErrIDConflict that names the entry which holds the message id.
type TakenError struct{ Seq uint64 }

// Error implements error.
func (e *TakenError) Error() string { return fmt.Sprintf("%v (sequence %d)", ErrIDConflict, e.Seq) }

// Is reports whether target is ErrIDConflict.
func (e *TakenError) Is(target error) bool { return target == ErrIDConflict }

// maxSquatted bounds how many ids of one event other services may take.
const maxSquatted = 16

// Contend makes an append that one of several writers wins by its message id. Any
// service can publish under any id, so an entry that holds it counts only where
// genuine returns true; else the next id is tried, which is the same for every
// writer. ErrIDConflict: a genuine event was first.
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
		if e, openErr := Open(en); openErr == nil && genuine(e) {
			return 0, err
		}
		id += "~"
	}
	return 0, fmt.Errorf("ledger: %d other events hold the id %s", maxSquatted, id)
}
