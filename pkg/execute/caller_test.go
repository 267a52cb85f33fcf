package execute

import (
	"errors"
	"testing"
)

// TestWithholds: an instance that has not read the ledger hands nothing out, and
// neither does one that knows of a freeze.
func TestWithholds(t *testing.T) {
	var l Lender
	if err := l.Withholds(); !errors.Is(err, ErrStarting) {
		t.Errorf("before the ledger was read: %v", err)
	}
	l.frozen.known.Store(true)
	if err := l.Withholds(); err != nil {
		t.Errorf("not frozen: %v", err)
	}
	id := "f-1"
	l.frozen.id.Store(&id)
	if err := l.Withholds(); !errors.Is(err, ErrFrozen) {
		t.Errorf("frozen: %v", err)
	}
}
