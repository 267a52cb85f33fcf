package run

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// answering is a ledger whose appends return err.
type answering struct {
	memlog.Log
	err error
}

func (l *answering) Append(context.Context, string, string, []byte) (uint64, error) {
	return 1, l.err
}

func (l *answering) AppendExpect(context.Context, string, string, []byte, string, uint64) (uint64, error) {
	return 1, l.err
}

func (l *answering) Start(string, string, []byte) func(context.Context) (uint64, error) {
	return func(context.Context) (uint64, error) { return 1, l.err }
}

// TestAppends shows that an instance is not ready after three appends in a row that the ledger
// did not store, whichever method made them, until one succeeds, conflicts, or five seconds have
// passed; an append that its caller cancelled does not count.
func TestAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := fmt.Errorf("%w: append of e-1: %w", eventlog.ErrUnavailable, context.DeadlineExceeded)
		left := fmt.Errorf("%w: append of e-1: %w", eventlog.ErrUnavailable, context.Canceled)
		l := &answering{}
		a := &appends{Log: l}
		n := 0
		try := func(err error) {
			l.err = err
			var got error
			switch n++; n % 3 {
			case 0:
				_, got = a.Append(t.Context(), "s", "e-1", nil)
			case 1:
				_, got = a.AppendExpect(t.Context(), "s", "e-1", nil, ">", 0)
			case 2:
				_, got = a.Start("s", "e-1", nil)(t.Context())
			}
			if !errors.Is(got, err) {
				t.Errorf("the append returns %v, not %v", got, err)
			}
		}
		ok := func(want bool, when string) {
			t.Helper()
			h := a.health(t.Context())
			if h.OK != want || h.Name != "ledger.appends" || !want && !strings.Contains(h.Detail, "e-1") {
				t.Errorf("%s: %+v", when, h)
			}
		}
		ok(true, "before the first append")
		try(full)
		try(full)
		ok(true, "after two failures")
		try(left)
		ok(true, "after a cancelled append")
		try(full)
		ok(false, "after three failures")
		try(left)
		ok(false, "after another cancelled append")
		try(eventlog.ErrConflict)
		ok(true, "after a conflict")
		for range 3 {
			try(full)
		}
		ok(false, "after three more")
		try(nil)
		ok(true, "after a success")
		for range 4 {
			try(full)
		}
		time.Sleep(failingFor - 1)
		ok(false, "before the time has passed")
		time.Sleep(time.Nanosecond)
		ok(true, "after it has passed")
	})
}
