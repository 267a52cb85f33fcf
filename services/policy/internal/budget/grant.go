package budget

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

const (
	// lease is the time within which an instance must return what another one recalls. After
	// that, the instance that recalled closes the allotment of the other one.
	lease = 2 * time.Second
	// maxRecalls is the maximum number of recalls of unused amounts for one request. More
	// than one is needed if other instances take the returned amounts first.
	maxRecalls = 4
)

// share is the part of a budget ledger that an instance holds, with its methods to grant
// amounts, to recall those of other instances, and to return its own.
type share struct {
	*Ledger
	hold     *limit.Holding    // holding of the instance's allotment; nil if the instance has no allotment
	recalled []events.Block    // accounts whose unused amounts other instances have recalled and this instance has not returned yet; see answer
	returned map[string]uint64 // sequence of the last allotment_returned, by allotment
}

// draw grants a request from the instance's allotment. ok is false if the instance has no
// allotment or it does not suffice, if a limit refuses the request, if the request is
// forced, or if a grant of the call is not ready yet.
func (b *share) draw(r limit.Request) (fact guard.BudgetFact, ok bool) {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	if b.hold == nil || r.Force || b.hold.Waits(r.Call.Key()) {
		return fact, false
	}
	g := limit.Plan(b.state(), b.hold, b.limits, b.emit.Now(), []limit.Request{r})
	if len(g.Taken.Blocks) > 0 || g.Facts[0].Refused != "" {
		return fact, false
	}
	b.add(&g, []limit.Request{r})
	b.hold.Ready(r.Call.Key())
	return g.Facts[0], true
}

// add adds the grants to the instance's holding. The caller holds x.mu.
func (b *share) add(g *limit.Grants, rs []limit.Request) {
	for i := range rs {
		if g.Blocks[i] != nil {
			b.hold.Add(rs[i].Call.Key(), g.Facts[i], g.Blocks[i])
		}
	}
}

// drop removes the grants that add added. The caller holds x.mu.
func (b *share) drop(g *limit.Grants, rs []limit.Request) {
	for i := range rs {
		if g.Blocks[i] != nil && b.hold != nil {
			b.hold.Drop(rs[i].Call.Key())
		}
	}
}

// ready records that the allotment has the amounts that add added.
func (b *share) ready(g *limit.Grants, rs []limit.Request) {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	for i := range rs {
		if g.Blocks[i] != nil && b.hold != nil {
			b.hold.Ready(rs[i].Call.Key())
		}
	}
}

// valid reports whether the instance still holds the allotment that a fact names. It
// returns true for a fact that names none.
func (b *share) valid(f *guard.BudgetFact) bool {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	return f.Allotment == "" || b.hold != nil && b.hold.ID == f.Allotment
}

// grant answers requests. It takes what the instance's allotment lacks, and recalls what
// other instances do not use before it refuses a request because of a limit. It returns
// the error that the requests without another answer receive.
func (b *share) grant(ctx context.Context, rs []request) error {
	err := b.x.following(ctx)
	for recalls := 0; err == nil && len(rs) > 0; recalls++ {
		var g limit.Grants
		if g, err = b.take(ctx, rs); err != nil {
			break
		}
		rest := rs[:0:0]
		for i, r := range rs {
			if f := g.Facts[i]; f.Refused == "" {
				if b.valid(&f) {
					r.answer <- answered{fact: f}
					continue
				}
				recalls = 0 // the allotment was closed meanwhile
			} else if recalls > maxRecalls {
				r.answer <- answered{fact: f}
				continue
			}
			rest = append(rest, r)
		}
		if rs = rest; len(rs) == 0 || len(g.Short) == 0 {
			continue
		}
		var more bool
		if err = b.reach(ctx); err == nil && recalls > 0 {
			more, err = b.recall(ctx, g.Short)
		}
		if recalls > 0 && !more {
			recalls = maxRecalls // the next refusal is final
		}
	}
	for _, r := range rs {
		r.answer <- answered{err: err}
	}
	return err
}

// take decides which requests are granted. If the instance's allotment has too little of
// an account for them, take appends an event that adds the missing amounts to the
// allotment, and waits until the event is applied; if another event was appended first,
// it decides again. If the error is not nil, nothing is granted. The facts of granted
// requests are valid until the allotment is closed.
func (b *share) take(ctx context.Context, rs []request) (limit.Grants, error) {
	reqs := make([]limit.Request, len(rs))
	for i := range rs {
		reqs[i] = rs[i].Request
	}
	for {
		b.x.mu.Lock()
		if b.hold == nil {
			b.hold = limit.NewHolding(emit.NewID(contract.IDAllotment))
		}
		g := limit.Plan(b.state(), b.hold, b.limits, b.emit.Now(), reqs)
		b.add(&g, reqs)
		last := b.last
		b.x.mu.Unlock()
		if len(g.Taken.Blocks) == 0 {
			b.ready(&g, reqs)
			return g, nil
		}
		g.Taken.Holder = b.x.instance()
		seq, err := b.append(ctx, emit.NewID(contract.IDEvent), events.AllotmentTakenName, &g.Taken, last)
		if err == nil {
			err = b.x.await(ctx, seq)
		}
		if err == nil {
			b.ready(&g, reqs)
			return g, nil
		}
		b.x.mu.Lock()
		b.drop(&g, reqs)
		b.x.mu.Unlock()
		if !errors.Is(err, eventlog.ErrConflict) {
			return g, err
		}
		if err := b.reach(ctx); err != nil {
			return g, err
		}
	}
}

// recall requests that other instances return their unused amounts of the accounts that
// blocks name. It closes the allotments of instances that return nothing within lease, and
// those of earlier runs of this instance. more is false if no other allotment has unused
// amounts of these accounts.
func (b *share) recall(ctx context.Context, blocks []events.Block) (more bool, err error) {
	own, others := b.unused(blocks, 0)
	for _, id := range own {
		if err := b.close(ctx, id); err != nil {
			return false, err
		}
	}
	if len(others) == 0 {
		return len(own) > 0, nil
	}
	accounts := make([]events.Block, len(blocks))
	for i := range blocks {
		accounts[i] = events.Block{Account: blocks[i].Account, Window: blocks[i].Window}
	}
	if err := b.change(ctx, func() (string, canon.Document) {
		return events.AllotmentRecalledName, &events.AllotmentRecalled{Blocks: accounts, Now: b.emit.Time()}
	}); err != nil {
		return false, err
	}
	b.x.mu.Lock()
	after := b.last
	b.x.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, lease)
	defer cancel()
	err = b.x.until(limited, func() bool {
		_, others := b.unusedLocked(blocks, after)
		return len(others) == 0
	})
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil { // the lease has ended
		if err := b.reach(ctx); err != nil {
			return false, err
		}
		_, silent := b.unused(blocks, after)
		for _, id := range silent {
			b.log.Warn("an instance does not return what it does not use of a budget; its allotment is closed", "allotment", id)
			if err := b.close(ctx, id); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// unused returns the ids of the allotments that have unused amounts of the accounts that
// blocks name, other than the current one of this instance. own are those of earlier runs of
// this instance. others are those of other instances that have returned nothing after the
// sequence after, or of all other instances if after is 0.
func (b *share) unused(blocks []events.Block, after uint64) (own, others []string) {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	return b.unusedLocked(blocks, after)
}

// unusedLocked is unused for callers that hold x.mu.
func (b *share) unusedLocked(blocks []events.Block, after uint64) (own, others []string) {
	id := ""
	if b.hold != nil {
		id = b.hold.ID
	}
	for _, x := range b.state().Unused(id, blocks) {
		switch {
		case b.state().Holder(x) == b.x.instance():
			own = append(own, x)
		case after == 0 || b.returned[x] <= after:
			others = append(others, x)
		}
	}
	return own, others
}

// close appends the event that closes an allotment. It does nothing if the allotment is
// closed.
func (b *share) close(ctx context.Context, id string) error {
	return b.change(ctx, func() (string, canon.Document) {
		if b.state().Holder(id) == "" {
			return "", nil
		}
		return events.AllotmentClosedName, &events.AllotmentClosed{Allotment: id, Now: b.emit.Time()}
	})
}

// answer returns to their accounts the amounts that other instances have recalled and
// this one does not use. Until the return is applied, these amounts count as granted.
func (b *share) answer(ctx context.Context) error {
	for {
		b.x.mu.Lock()
		if b.hold == nil || len(b.recalled) == 0 {
			b.recalled = nil
			b.x.mu.Unlock()
			return nil
		}
		blocks := slices.CompactFunc(slices.SortedFunc(slices.Values(b.recalled), compare), func(x, y events.Block) bool { return compare(x, y) == 0 })
		ev := events.AllotmentReturned{Allotment: b.hold.ID, Blocks: b.hold.Rest(b.state(), blocks), Now: b.emit.Time()}
		id, hold, last := emit.NewID(contract.IDEvent), b.hold, b.last
		hold.Add(id, guard.BudgetFact{}, ev.Blocks)
		n := len(b.recalled)
		b.x.mu.Unlock()
		seq, err := b.append(ctx, id, events.AllotmentReturnedName, &ev, last)
		for err != nil && !errors.Is(err, eventlog.ErrConflict) { // the event may be stored, so the append is repeated with the same id until that is known
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
			seq, err = b.append(ctx, id, events.AllotmentReturnedName, &ev, last)
		}
		if err == nil {
			err = b.x.await(ctx, seq)
		} else {
			err = b.reach(ctx)
		}
		if err != nil {
			return err
		}
		b.x.mu.Lock()
		stored := !hold.Has(id)
		hold.Drop(id)
		if stored {
			b.recalled = b.recalled[min(n, len(b.recalled)):]
		}
		b.x.mu.Unlock()
	}
}

// fold updates the share after an event of the ledger was applied to the book. The
// arguments are those of Ledger.fold. The caller holds x.mu.
func (b *share) fold(seq uint64, by string, c *change) {
	mine := b.hold != nil && c.own == b.hold.ID
	switch {
	case c.recall != nil && b.hold != nil && by != b.emit.Source:
		b.recalled = append(b.recalled, c.recall.Blocks...)
		b.x.signal()
	case c.name == events.AllotmentReturnedName:
		if b.returned[c.own] = seq; mine {
			b.hold.Drop(c.id)
		}
	case c.name == events.AllotmentClosedName:
		if delete(b.returned, c.own); mine {
			b.hold = nil
		}
	}
}

// compare orders blocks by account and window.
func compare(x, y events.Block) int {
	return cmp.Or(cmp.Compare(x.Account, y.Account), cmp.Compare(x.Window, y.Window))
}
