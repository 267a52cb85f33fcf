// Package follow reads a stream in order, without gaps and for ever, through
// an instance's provisioned consumer, and keeps position and lag.
//
// The consumer does not remember anything for us: after each disturbance it
// is reset to the sequence behind the last one applied, and a jump in its own
// numbering counts as a disturbance. (An ordered consumer does the same by
// creating a new consumer each time, a right no service holds.)
//
// Requests for messages that were sent before a reset stay good at the server,
// and what it delivers for them must not go nowhere: a gap is mended under the
// same subscription, whose numbering then begins anew at 1.
package follow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Follower applies entries one after the other.
type Follower struct {
	Conn     *bus.Conn
	Stream   string
	Consumer string
	Batch    int // messages per pull; 0 = 500
	// Apply is called in order, exactly once per entry in one run. An error
	// stops the follower with it: a view that cannot apply an event must not
	// go on as if it had.
	Apply func(eventlog.Entry) error
	// Caught is called, from the same goroutine as Apply, when nothing more
	// is pending for now. Optional.
	Caught func()
	// Every, where set, lets the follower ask for what is new every so often
	// instead of hearing of it at once; see Poll.
	Every time.Duration
	// Restart, where set, gives the sequence to go on from after the
	// connection was made again, for streams that do not outlive a server.
	Restart func(context.Context) (uint64, error)

	filters  []string
	position atomic.Uint64
	pending  atomic.Uint64
	ready    chan struct{}
	polls    chan chan struct{} // answered by closing
	once     sync.Once
	epoch    uint64 // of the last round; touched only by Run
	failed   int    // rounds in a row that did not come up; touched only by Run
}

// New makes the follower of one of an instance's readers.
func New(c *bus.Conn, instance string, r bus.Reader, apply func(eventlog.Entry) error) *Follower {
	return &Follower{Conn: c, Stream: r.Stream, Consumer: r.Consumer(instance), filters: r.FiltersOf(instance), Apply: apply, ready: make(chan struct{}), polls: make(chan chan struct{})}
}

// Ready is closed when the follower has first caught up.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Position is the sequence last applied; Pending how many matched behind it
// when last heard.
func (f *Follower) Position() uint64 { return f.position.Load() }

// Pending is the lag in events.
func (f *Follower) Pending() uint64 { return f.pending.Load() }

var (
	errGap         = errors.New("gap in delivery")
	errReconnected = errors.New("reconnected")
)

// Run follows from sequence from until ctx ends or Apply fails.
func (f *Follower) Run(ctx context.Context, from uint64) error {
	if from > 1 {
		f.position.Store(from - 1)
	}
	f.epoch, _ = f.Conn.Epoch()
	told := time.Now()
	for {
		began := time.Now()
		err := f.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > patience {
			told = time.Now() // it did follow for a while
		}
		var fatal *applyError
		if errors.As(err, &fatal) {
			return fatal.err
		}
		if err != nil {
			slog.Debug("follow: again", "consumer", f.Consumer, "err", err)
			if time.Since(told) > patience {
				told = time.Now()
				slog.Warn("a reader does not come up, and tries on", "consumer", f.Consumer, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// patience is how long a reader may fail before it says so.
const patience = 5 * time.Second

type applyError struct{ err error }

func (e *applyError) Error() string { return e.err.Error() }

func (f *Follower) caught() {
	f.pending.Store(0)
	if f.Caught != nil {
		f.Caught()
	}
	f.once.Do(func() { close(f.ready) })
}

// round resets the consumer and reads until something breaks or ctx ends.
func (f *Follower) round(ctx context.Context) error {
	cons, reconnected, err := f.begin(ctx)
	if err != nil {
		return err
	}
	if cons.CachedInfo().NumPending == 0 {
		f.caught()
	}
	batch := f.Batch
	if batch == 0 {
		batch = 500
	}
	r := &reading{f: f, expect: 1, reset: time.Now(), patience: 3 * time.Second, broken: make(chan error, 1), gap: make(chan struct{}, 1)}
	if f.Every > 0 {
		return f.polled(ctx, r, batch, reconnected)
	}
	cc, err := cons.Consume(func(m jetstream.Msg) {
		md, err := m.Metadata()
		if err != nil {
			r.fail(err)
			return
		}
		r.take(m.Subject(), m.Data(), delivery{md.Sequence.Consumer, md.Sequence.Stream, md.NumPending})
	}, jetstream.PullMaxMessages(batch), jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(5*time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { r.fail(err) }))
	if err != nil {
		return err
	}
	defer func() { cc.Stop(); <-cc.Closed() }()
	return r.watch(ctx, reconnected)
}

// begin moves the consumer to the entry after the last one applied. The channel is
// closed when the connection was made again since.
func (f *Follower) begin(ctx context.Context) (jetstream.Consumer, <-chan struct{}, error) {
	// What is requested while the bus is being provisioned, or elects, may get no
	// answer at all: try again soon, but leave a slow bus its time.
	setup, cancel := context.WithTimeout(ctx, min(500*time.Millisecond<<min(f.failed, 3), 4*time.Second))
	defer cancel()
	f.failed++
	epoch, reconnected := f.Conn.Epoch()
	if f.Restart != nil && epoch != f.epoch {
		from, err := f.Restart(setup)
		if err != nil {
			return nil, nil, err
		}
		f.position.Store(from - 1)
	}
	f.epoch = epoch
	if err := f.Conn.Reset(setup, f.Stream, f.Consumer, f.position.Load()+1); err != nil {
		return nil, nil, err
	}
	cons, err := f.Conn.JS.Consumer(setup, f.Stream, f.Consumer)
	if err == nil {
		f.failed = 0
	}
	return cons, reconnected, err
}

// watch mends gaps until the reading breaks or ctx ends.
func (r *reading) watch(ctx context.Context, reconnected <-chan struct{}) error {
	for {
		broken := false
		select {
		case <-ctx.Done():
			return nil
		case err := <-r.broken:
			return err
		case <-reconnected:
			return errReconnected
		case <-r.gap:
			broken = true
		case <-time.After(time.Second):
			broken = r.stuck() || r.silent()
		}
		if !broken {
			continue
		}
		if err := r.mend(ctx); err != nil {
			return err
		}
	}
}

// reading is one subscription and where it stands.
type reading struct {
	f      *Follower
	broken chan error
	gap    chan struct{}

	mu      sync.Mutex
	expect  uint64 // number of the next delivery
	skipped bool   // since the reset, deliveries came that are not of its numbering
	halted  bool   // nothing is taken until the gap is mended
	mended  int    // in a row, without a delivery between

	reset    time.Time     // when the consumer was last reset
	patience time.Duration // with its silence since
}

func (r *reading) fail(err error) {
	select {
	case r.broken <- err:
	default:
	}
}

// delivery says where a message stands: in the consumer's numbering, on the
// stream, and how many match behind it.
type delivery struct{ consumer, stream, pending uint64 }

func (r *reading) take(subject string, data []byte, d delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.halted {
		return
	}
	if r.expect == 1 && (d.consumer != 1 || d.stream <= r.f.position.Load()) {
		r.skipped = true // still of the numbering before
		return
	}
	if d.consumer != r.expect {
		r.halted = true
		r.gap <- struct{}{}
		return
	}
	r.expect++
	r.mended = 0
	if err := r.f.Apply(eventlog.Entry{Seq: d.stream, Subject: subject, Data: data}); err != nil {
		r.halted = true
		r.fail(&applyError{err})
		return
	}
	r.f.position.Store(d.stream)
	r.f.pending.Store(d.pending)
	if d.pending == 0 && r.f.Every == 0 {
		r.f.caught()
	}
}

// stuck reports that deliveries come, but not the first of the numbering.
func (r *reading) stuck() bool {
	if !r.mu.TryLock() {
		return false // Apply is under way
	}
	defer r.mu.Unlock()
	return r.expect == 1 && r.skipped && !r.halted
}

// silent reports that nothing at all came since the reset, for longer than the
// time before: a consumer that is reset while its server comes up may deliver
// nothing until it is reset again. Most have nothing to deliver; the waits
// double.
func (r *reading) silent() bool {
	if !r.mu.TryLock() {
		return false // Apply is under way
	}
	defer r.mu.Unlock()
	if r.expect > 1 || r.halted || time.Since(r.reset) < r.patience {
		return false
	}
	r.patience = min(2*r.patience, time.Minute)
	r.mended = 0
	return true
}

// mends is how often a gap is mended in place before the subscription is given
// up.
const mends = 20

// mend resets the consumer behind what was applied. Deliveries of the new
// numbering may come before the server's answer does.
func (r *reading) mend(ctx context.Context) error {
	r.mu.Lock()
	r.expect, r.skipped, r.halted, r.reset = 1, false, false, time.Now()
	r.mended++
	n := r.mended
	r.mu.Unlock()
	if n > mends {
		return errGap
	}
	slog.Debug("follow: gap", "consumer", r.f.Consumer)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return r.f.Conn.Reset(ctx, r.f.Stream, r.f.Consumer, r.f.position.Load()+1)
}
