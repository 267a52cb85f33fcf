package budget

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// place is the position up to which the ledger is read.
type place struct {
	wanted chan struct{} // closed by Want
	want   sync.Once

	mu       sync.Mutex
	position uint64        // sequence of the last entry that was applied
	applied  bool          // whether Follow was called
	moved    chan struct{} // closed by the next call of Apply or Follow; nil if no caller waits
}

// Wanted returns a channel that is closed when Apply must be called, from then on, for
// the entries that Filters select, beginning with the sequence that From returns.
func (x *place) Wanted() <-chan struct{} { return x.wanted }

// Want closes the channel that Wanted returns.
func (x *place) Want() { x.want.Do(func() { close(x.wanted) }) }

// Discover calls Want if there are events of a budget ledger. It returns the error of the
// log.
func (x *Ledgers) Discover(ctx context.Context) error {
	last, err := x.newest(ctx)
	if last > 0 {
		x.Want()
	}
	return err
}

// From returns the sequence from which Apply must be called: the one after the last entry
// applied or, if none was, that of the first event of a budget ledger, because earlier
// entries change nothing, or 1 if there is none. It returns the error of the log.
func (x *Ledgers) From(ctx context.Context) (uint64, error) {
	x.mu.Lock()
	from := x.position + 1
	x.mu.Unlock()
	if from > 1 {
		return from, nil
	}
	first := uint64(0)
	for _, name := range names {
		f := bus.Filter{Service: services.Policy, Event: name}.String()
		en, err := eventlog.First(ctx, x.emit.Log, f, 1, func(eventlog.Entry) bool { return true })
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return 0, err
		}
		if err == nil && (first == 0 || en.Seq < first) {
			first = en.Seq
		}
	}
	return max(first, 1), nil
}

// Follow records that Apply is called from now on, for the entries from a sequence on. It
// must be called before the first call of Apply.
func (x *place) Follow(from uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.position, x.applied = max(x.position, from-1), true
	x.advance()
}

// advance wakes the callers that wait for a change. The caller holds x.mu.
func (x *place) advance() {
	if x.moved != nil {
		close(x.moved)
		x.moved = nil
	}
}

// Apply applies the next entry that Filters select. It skips entries that were applied
// before and entries that are not valid events. An error means that the data of an event
// of policy cannot be decoded.
func (x *Ledgers) Apply(en eventlog.Entry) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.advance()
	if en.Seq <= x.position {
		return nil
	}
	x.position = en.Seq
	x.decided(en)
	if !x.book.wants(en.Subject, en.Data) {
		return nil
	}
	e, err := eventlog.Open(en, Filters...)
	if err != nil {
		return nil
	}
	x.emit.See(e.Lamport)
	c, err := x.book.apply(e)
	if err != nil {
		return fmt.Errorf("budget change at %d: %w", en.Seq, err)
	}
	if c.ledger == e.Tenant && e.CallID == "" {
		x.in(c.ledger).fold(en.Seq, e.Source, &c)
	}
	return nil
}

// decided removes the instance's grant for a call if the entry is an event of policy
// about that call. If the event allows the call, Apply then adds to the book what the
// call has drawn. The caller holds x.mu.
func (x *Ledgers) decided(en eventlog.Entry) {
	tenant := tenantOf(en.Subject)
	_, rest, _ := strings.Cut(en.Subject, "."+tenant+".")
	call := contract.PeekCallID(en.Data)
	if call == "" || !strings.HasPrefix(rest, services.Policy+".") {
		return
	}
	b := x.home
	if tenant != b.tenant {
		if in := x.tenants.Budget(tenant); in != b.tenant {
			b = x.others[in]
		}
	}
	if b != nil && b.share.hold != nil {
		b.share.hold.Drop(b.call(tenant, call).Key())
	}
}

// await waits until the entry at a sequence is applied. It returns the error of ctx, or
// errLag.
func (x *place) await(ctx context.Context, seq uint64) error {
	return x.until(ctx, func() bool { return x.position >= seq })
}

// following calls Want and waits until Follow was called. It returns the error of ctx, or
// errLag.
func (x *place) following(ctx context.Context) error {
	x.Want()
	return x.until(ctx, func() bool { return x.applied })
}

// patience is the maximum time that until waits: a process that is being stopped may
// receive no more entries.
const patience = 5 * time.Second

// errLag is returned if this instance has not read the ledger far enough within patience.
var errLag = errors.New("the budget ledger is not read to its end")

// until waits until a condition holds, which it checks with x.mu held, at once and after
// each call of Apply or Follow. It returns the error of ctx, or errLag after patience.
func (x *place) until(ctx context.Context, cond func() bool) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		x.mu.Lock()
		if cond() {
			x.mu.Unlock()
			return nil
		}
		if x.moved == nil {
			x.moved = make(chan struct{})
		}
		moved := x.moved
		x.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return errLag
		}
	}
}
