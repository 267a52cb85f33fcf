// Package reproduce checks in the background that the stored snapshots of views agree
// with the ledger: it rebuilds the views from the ledger's first entry, at a limited
// rate, and compares each snapshot with the views at the snapshot's position. It skips a
// snapshot whose position the rebuilt views have already passed, one that is incomplete
// or was replaced, and one of another version of the view's code. A valid signature does
// not show that a snapshot agrees with the ledger, since the signer may be compromised or
// have a defect.
package reproduce

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// Checker rebuilds views and compares snapshots with them. All exported fields except
// Rate, Pause and Checked must be set before Run.
type Checker struct {
	Log     eventlog.Log
	List    func(context.Context) ([]snapshot.Stored, error)         // returns the stored snapshots
	State   func(context.Context, *snapshot.Stored) ([]byte, error)  // returns the state in a snapshot; after snapshot.ErrIncomplete or bus.ErrNotFound, the snapshot is skipped
	Reject  func(context.Context, *snapshot.Stored, error) error     // records that a snapshot is false, for the given reason
	Open    func(tenant string, c *contract.Content) ([]byte, error) // see view.Origin
	RootKID string                                                   // key id of the trust anchor
	Views   []view.Declaration                                       // views whose field Snapshot is set
	Rate    int                                                      // maximum number of entries of the ledger that are read per second; 0 = 2,000
	Pause   time.Duration                                            // interval between checks; 0 = 1 minute
	Checked func(*snapshot.Stored, error)                            // called for each checked snapshot, with an error if the snapshot is false; may be nil

	trust    trust.Registry
	reads    *view.Selection
	states   []view.State
	position uint64          // sequence of the last entry applied to the states
	failed   int             // consecutive checks that failed
	done     map[string]bool // ids of the snapshots that were compared or cannot be compared
}

// maxPause is the maximum pause after a check that fails.
const maxPause = time.Hour

// Run checks snapshots until ctx is done. The first check begins after one pause. After
// a check that fails, for example because a policy document cannot be read, the views
// are rebuilt from the first entry, and the pause doubles, up to maxPause.
func (c *Checker) Run(ctx context.Context) {
	for pause := cmp.Or(c.Pause, time.Minute); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = cmp.Or(c.Pause, time.Minute)
		if err := c.pass(ctx); err != nil && ctx.Err() == nil {
			c.failed++
			pause = min(pause<<min(c.failed, 10), maxPause)
			slog.Warn("snapshots not compared with the ledger, retrying", "err", err, "after", pause)
			c.reset() // the states may be wrong
			continue
		}
		c.failed = 0
	}
}

// reset discards the rebuilt views.
func (c *Checker) reset() {
	for _, s := range c.states {
		if x, ok := s.(io.Closer); ok {
			x.Close()
		}
	}
	c.states, c.position, c.trust = nil, 0, trust.Registry{Root: c.RootKID}
}

// pass compares the stored snapshots that were not compared yet and whose position the
// rebuilt views have not passed. It skips snapshots without a valid description.
func (c *Checker) pass(ctx context.Context) error {
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	if c.done == nil {
		c.done = map[string]bool{}
	}
	slices.SortFunc(all, func(a, b snapshot.Stored) int { return cmp.Compare(a.Position, b.Position) })
	known := map[string]bool{}
	for i := range all {
		h := &all[i]
		if !c.done[h.ID] && h.Err == nil && uint64(max(h.Position, 0)) >= max(c.position, 1) {
			if err := c.rebuild(ctx, uint64(h.Position)); err != nil {
				return err
			}
			if err := c.check(ctx, h); err != nil {
				return err
			}
		}
		known[h.ID] = true // a snapshot before c.position is not compared; audit checks its signature and position
	}
	c.done = known
	return nil
}

// begin discards the rebuilt views and creates empty ones.
func (c *Checker) begin() (err error) {
	c.reset()
	if c.reads, err = view.Select(c.Views); err != nil {
		return err
	}
	for i := range c.Views {
		s, err := c.empty(&c.Views[i])
		if err != nil {
			return err
		}
		c.states = append(c.states, s)
	}
	return nil
}

func (c *Checker) empty(d *view.Declaration) (view.State, error) {
	return d.Empty(&view.Origin{RootKID: c.RootKID, Keys: c.trust.At, Open: c.Open})
}

// rebuild applies the entries of the ledger up to sequence to. If the ledger is shorter,
// it applies them all, and returns nil.
func (c *Checker) rebuild(ctx context.Context, to uint64) error {
	if c.states == nil {
		if err := c.begin(); err != nil {
			return err
		}
	}
	if c.position >= to {
		return nil
	}
	began, n, waited := time.Now(), 0, time.Duration(0)
	for en, err := range c.Log.Scan(ctx, eventlog.Every, c.position+1) {
		if err != nil {
			return err
		}
		if err := c.apply(en); err != nil {
			return err
		}
		if c.position == to {
			return nil
		}
		if n++; n%100 == 0 {
			took := time.Since(began)
			if pause := c.pause(n, took, took-waited); pause > 0 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(pause):
				}
				waited += time.Since(began) - took
			}
		}
	}
	return nil // the ledger is shorter; check reports that
}

// share limits the reading of the ledger to 1/share of the time.
const share = 10

// pause returns the time to wait after n entries, so that at most Rate of them are read
// per second, and the reading takes at most 1/share of the time. took is the time since
// the first entry, and work is took without the pauses. A server that is busy, as while
// other views are rebuilt, is therefore read more slowly.
func (c *Checker) pause(n int, took, work time.Duration) time.Duration {
	rate := time.Duration(cmp.Or(c.Rate, 2000))
	return max(time.Duration(n)*time.Second/rate, share*work) - took
}

// apply applies an entry to the key registry and to the views that read it.
func (c *Checker) apply(en eventlog.Entry) error {
	e, err := eventlog.Open(en, eventlog.Every)
	subject := en.Subject
	if err != nil {
		e, subject = nil, ""
	}
	if e != nil {
		if k, ok := view.Key(e); ok {
			_ = c.trust.Apply(k, e.Lamport) // services ignore a key event that the registry rejects, too
		}
	}
	for _, i := range c.reads.Of(subject) {
		if err := c.states[i].Apply(en, e); err != nil {
			return fmt.Errorf("view %s: %w", c.Views[i].Name, err)
		}
	}
	c.position = en.Seq
	return nil
}

// check compares a snapshot with the rebuilt views, and rejects it if it differs or if
// its position is after the end of the ledger. It skips a snapshot that is incomplete
// or was replaced.
func (c *Checker) check(ctx context.Context, h *snapshot.Stored) error {
	why := fmt.Errorf("the ledger ends at %d, before the position of the snapshot", c.position)
	if c.position == uint64(h.Position) {
		state, err := c.State(ctx, h)
		if errors.Is(err, snapshot.ErrIncomplete) || errors.Is(err, bus.ErrNotFound) {
			return nil // it was replaced by a newer one, or no instance can load it
		}
		if err != nil {
			return err
		}
		if why, err = c.compare(ctx, h, state); err != nil {
			return err
		}
	}
	if c.Checked != nil {
		c.Checked(h, why)
	}
	if why == nil {
		return nil
	}
	return c.Reject(ctx, h, why)
}

// compare returns the reason why state, which is stored in the snapshot h, is not that
// of the rebuilt views, or nil. A snapshot of another version of the code is not
// compared. err is not nil if the comparison failed.
func (c *Checker) compare(ctx context.Context, h *snapshot.Stored, state []byte) (why, err error) {
	found := false
	for i := range c.Views {
		d := &c.Views[i]
		if d.Snapshot != h.View {
			continue
		}
		found = true
		if d.Code != h.Code { // no instance of this release uses it
			return nil, nil
		}
		loaded, err := c.empty(d)
		if err != nil {
			return nil, err
		}
		if l, ok := loaded.(view.Loader); ok {
			why = l.Load(state)
		} else {
			why, err = c.fold(ctx, d, loaded, state)
		}
		if err != nil || why != nil {
			return why, err
		}
		want, err := c.states[i].Dump()
		if err != nil {
			return nil, err
		}
		got, err := loaded.Dump()
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("view %s, rebuilt from the ledger, differs", d.Name), nil
		}
	}
	if !found {
		return fmt.Errorf("no view %q is known", h.View), nil
	}
	return nil, nil
}

// fold applies the entries that a state consists of to an empty view. why is the reason
// why the state is false, or nil. err is not nil if the ledger cannot be read.
func (c *Checker) fold(ctx context.Context, d *view.Declaration, to view.State, state []byte) (why, err error) {
	entries, why := snapshot.ReadEntries(state)
	if why != nil {
		return why, nil
	}
	for _, en := range entries {
		if en.Seq > c.position {
			return fmt.Errorf("entry %d is after its position", en.Seq), nil
		}
		have, err := c.Log.Get(ctx, en.Seq)
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return nil, err
		}
		if err != nil || !bytes.Equal(have.Data, en.Data) {
			return fmt.Errorf("entry %d is not that of the ledger", en.Seq), nil
		}
		if !bus.MatchAny(d.Reader.Filters, en.Subject) {
			continue // the entry belongs to another view in the same snapshot
		}
		e, err := eventlog.Open(en, d.Reader.Filters...)
		if err != nil {
			return err, nil
		}
		if err := to.Apply(en, e); err != nil {
			return err, nil
		}
	}
	return nil, nil
}
