// Package follow reads a stream in order and without gaps through an instance's
// provisioned consumer, until its context ends or an entry cannot be applied, and tracks
// position and lag.
//
// The consumer's own position is not relied on: after each disturbance the consumer is
// reset to the sequence after the last entry applied. A jump in the consumer's sequence
// numbers counts as a disturbance. (An ordered consumer of nats.go does the same by
// creating a new consumer each time, which no service has permission to do.)
//
// Pull requests that were sent before a reset stay open at the server, and messages that
// the server delivers for them to an inbox without a subscription would be lost. A gap is
// therefore repaired with the same subscription; after the reset, the consumer's
// sequence numbers start again at 1.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Follower reads the entries of a stream and applies them one after the other. It is
// created by New; its exported fields may be changed until Run is called. Run must not
// be called concurrently; the other methods are safe for concurrent use.
type Follower struct {
	Conn     *bus.Conn
	Stream   string
	Consumer string
	Batch    int // messages per pull request; 0 means 500
	// Apply is called by one goroutine at a time, in order and, without Restart, exactly
	// once for each matching entry in one Run. If it returns an error, Run stops and
	// returns that error, because a view that skipped an event would be wrong.
	Apply func(eventlog.Entry) error
	// Caught is called each time the follower finds that no more entries are pending,
	// after Apply has returned for the last one. With Every, that includes polls that
	// find no new entry. It may be nil.
	Caught func()
	// Every, if not 0, makes the follower poll for new entries at about this interval,
	// and less often while there are none, instead of receiving each one as it is
	// stored; see Poll.
	Every time.Duration
	// Restart, if not nil, returns the sequence to continue from after a reconnection, or
	// when the stream is found to end before Position; after an error it is called again.
	// It is for streams that do not survive a restart of the server.
	Restart func(context.Context) (uint64, error)

	filters  []string    // subject filters that select the entries to apply
	delivers []string    // subject filters of the consumer
	covered  bool        // the consumer delivers other entries as well, which are dropped
	ended    atomic.Bool // Run has returned
	position atomic.Uint64
	pending  atomic.Uint64
	ready    chan struct{}
	polls    chan chan struct{} // poll requests; the poller closes each channel when the poll has completed
	once     sync.Once
	epoch    uint64 // value of Conn.Epoch in the last round; used only by Run
	failed   int    // consecutive rounds that failed to begin; used only by Run
	anew     bool   // the stream ends before the position, so the next round calls Restart; used only by Run
}

// New returns a follower that reads with the consumer of the instance's reader r. apply
// becomes Apply.
func New(c *bus.Conn, instance string, r bus.Reader, apply func(eventlog.Entry) error) *Follower {
	f := &Follower{Conn: c, Stream: r.Stream, Consumer: r.Consumer(instance), filters: r.FiltersOf(instance), covered: r.Cover != "", Apply: apply, ready: make(chan struct{}), polls: make(chan chan struct{})}
	if f.delivers = f.filters; f.covered {
		f.delivers = []string{r.Cover}
	}
	return f
}

// Ready returns a channel that is closed when the follower has caught up for the first
// time.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Position returns a stream sequence up to which every matching entry has been applied:
// that of the last entry that was applied or, if the reader has a Cover, dropped, or a
// later one if no entry between the two matches. It is 0 before Run, which first sets it
// to one less than the sequence that it starts from. When Restart has returned a sequence,
// Run sets it to one less than that.
func (f *Follower) Position() uint64 { return f.position.Load() }

// Pending returns the lag: the number of entries after Position that the consumer
// selects, as of the last delivery, or 0 before the first.
func (f *Follower) Pending() uint64 { return f.pending.Load() }

// Errors that end a round; Run begins the next one.
var (
	errGap         = errors.New("gap in delivery")
	errReconnected = errors.New("reconnected")
	errRenumbered  = errors.New("the stream ends before the position of its reader")
)

// Run applies the matching entries at and after sequence from, until ctx ends or Apply
// fails. It returns nil if ctx has ended, and otherwise the error of Apply. It retries
// after all other errors.
func (f *Follower) Run(ctx context.Context, from uint64) error {
	f.ended.Store(false)
	defer f.ended.Store(true)
	if from > 1 {
		f.position.Store(from - 1)
	}
	f.epoch, _ = f.Conn.Epoch()
	warned := time.Now()
	for {
		began := time.Now()
		err := f.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > patience {
			warned = time.Now() // the round lasted for some time, so the next warning is again delayed by patience
		}
		var fatal *applyError
		if errors.As(err, &fatal) {
			return fatal.err
		}
		if err != nil {
			slog.Debug("follow: again", "consumer", f.Consumer, "err", err)
			if time.Since(warned) > patience {
				warned = time.Now()
				slog.Warn("a reader cannot start; retrying", "consumer", f.Consumer, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond << min(f.failed, 3)): // longer if rounds cannot begin, for example until lost consumers are restored
		}
	}
}

// patience is the time for which rounds may fail before a warning is logged.
const patience = 5 * time.Second

// applyError wraps an error of Apply, which ends Run, to distinguish it from the errors
// after which Run retries.
type applyError struct{ err error }

func (e *applyError) Error() string { return e.err.Error() }

// caught records that no entries are pending, calls Caught, and closes the channel of
// Ready the first time.
func (f *Follower) caught() {
	f.pending.Store(0)
	if f.Caught != nil {
		f.Caught()
	}
	f.once.Do(func() { close(f.ready) })
}

// settle calls caught; it is called when the consumer has nothing to deliver. Until the
// follower is ready, settle first verifies that every entry has been applied, and does
// not call caught if one has not: another instance may have reset the consumer; see
// missed. It returns the error of the NATS request.
func (f *Follower) settle(ctx context.Context) error {
	select {
	case <-f.ready:
	default:
		if missed, err := f.missed(ctx, math.MaxUint64); err != nil || missed {
			return err
		}
	}
	f.caught()
	return nil
}

// missed reports whether the stream has an entry that the consumer selects and that has a
// sequence greater than Position and less than before; math.MaxUint64 means no upper
// limit. The consumer's state is not sufficient for that: an instance that was
// suspended while another one acquired its slot may reset the consumer that both use.
func (f *Follower) missed(ctx context.Context, before uint64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, filter := range f.delivers {
		// The newest match is read first, because the server finds it in its index of
		// subjects. If no match follows the position, First would make the server search
		// every block of the stream.
		last, err := f.Conn.Last(ctx, f.Stream, filter)
		if err != nil {
			return false, err
		}
		if last <= f.Position() {
			continue
		}
		if before == math.MaxUint64 {
			return true, nil
		}
		first, err := f.Conn.First(ctx, f.Stream, filter, f.Position()+1)
		if err != nil {
			return false, err
		}
		if first != 0 && first < before {
			return true, nil
		}
	}
	return false, nil
}

// round resets the consumer to the entry after the last one applied, and reads until an
// error occurs, which it returns, or until ctx ends.
func (f *Follower) round(ctx context.Context) error {
	if err := f.sealed(ctx); err != nil {
		return err
	}
	if err := f.jump(ctx); err != nil {
		return err
	}
	cons, reconnected, err := f.begin(ctx)
	if err != nil {
		return err
	}
	if cons.CachedInfo().NumPending == 0 {
		if err := f.settle(ctx); err != nil {
			return err
		}
	}
	batch := f.Batch
	if batch == 0 {
		batch = 500
	}
	r := &reading{f: f, mu: newLock(), expect: 1, active: time.Now(), patience: silence, broken: make(chan error, 1), gap: make(chan struct{}, 1), quiet: make(chan struct{}, 1)}
	// The next round resets the consumer to the entry after the position. Deferred first,
	// stop runs last, when no new delivery arrives, and waits until Apply has returned, so
	// that an entry whose Apply is slow is not applied a second time.
	defer r.stop()
	if f.Every > 0 {
		return f.polled(ctx, r, batch, reconnected)
	}
	cc, err := cons.Consume(func(m jetstream.Msg) {
		d, err := deliveryOf(m.Reply())
		if err != nil {
			r.fail(err)
			return
		}
		r.take(m.Subject(), m.Data(), d)
	}, jetstream.PullMaxMessages(batch), jetstream.PullExpiry(bus.PullExpiry), jetstream.PullHeartbeat(5*time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { r.fail(err) }))
	if err != nil {
		return err
	}
	defer func() { cc.Stop(); <-cc.Closed() }()
	return r.watch(ctx, reconnected)
}

// sealed applies the matching entries after the Follower's position that earlier volumes of
// the ledger hold. It reads them without a consumer, because only the open volume has
// consumers. The error is that of the ledger, or an *applyError.
func (f *Follower) sealed(ctx context.Context) error {
	open := f.Conn.Ledger.Open()
	if f.Stream != open.Stream || f.Position()+1 >= open.First {
		return nil
	}
	for en, err := range (eventlog.JetStream{Conn: f.Conn}).Scan(ctx, bus.EveryEvent, f.Position()+1) {
		if err != nil {
			return err
		}
		if en.Seq >= open.First {
			break
		}
		if bus.MatchAny(f.filters, en.Subject) {
			if err := f.Apply(en); err != nil {
				return &applyError{err}
			}
		}
		f.position.Store(en.Seq)
	}
	return nil
}

// begin resets the consumer to the entry after the last one applied or, if Restart is not nil,
// to the sequence that Restart returns after a reconnection, or if the stream ends before the
// position. The returned channel is closed at the next reconnection.
func (f *Follower) begin(ctx context.Context) (jetstream.Consumer, <-chan struct{}, error) {
	// Requests that are sent while the bus is being provisioned or elects a leader may
	// get no response at all. The timeout therefore starts short, and doubles with each
	// failure in case the bus is slow.
	setup, cancel := context.WithTimeout(ctx, min(500*time.Millisecond<<min(f.failed, 3), 4*time.Second))
	defer cancel()
	f.failed++
	epoch, reconnected := f.Conn.Epoch()
	if f.Restart != nil && (f.anew || epoch != f.epoch) {
		from, err := f.Restart(setup)
		if err != nil {
			return nil, nil, err
		}
		f.position.Store(from - 1)
	}
	f.epoch, f.anew = epoch, false
	if err := f.Conn.Reset(setup, f.Stream, f.Consumer, f.position.Load()+1); err != nil {
		return nil, nil, err
	}
	cons, err := f.Conn.JS.Consumer(setup, f.Stream, f.Consumer)
	if err == nil {
		f.failed = 0
	}
	return cons, reconnected, err
}

// over returns an error if the round has to end: the error of ctx, errReconnected, or the
// error that was passed to fail, in this order of precedence. It does not block. It is
// called before the follower waits or repairs a gap, because the preceding request may
// have taken seconds. If the connection was made again in that time, the repair would
// wait for a consumer that the new server may not have.
func (r *reading) over(ctx context.Context, reconnected <-chan struct{}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-reconnected:
		return errReconnected
	default:
	}
	select {
	case err := <-r.broken:
		return err
	default:
		return nil
	}
}

// torn reports whether a gap was signaled, and clears the signal. It does not block.
func (r *reading) torn() bool {
	select {
	case <-r.gap:
		return true
	default:
		return false
	}
}

// watch repairs gaps until the reading fails, the connection is made again, or ctx ends.
// It returns the error that ends the round.
func (r *reading) watch(ctx context.Context, reconnected <-chan struct{}) error {
	for {
		if err := r.over(ctx, reconnected); err != nil {
			return err
		}
		broken := r.torn()
		if !broken {
			var err error
			if broken, err = r.wait(ctx, reconnected); err != nil {
				return err
			}
		}
		if !broken {
			continue
		}
		if err := r.mend(ctx); err != nil {
			return err
		}
	}
}

// wait waits for a signal, for at most a second. It reports whether the consumer must be
// reset, or returns an error if the round has to end.
func (r *reading) wait(ctx context.Context, reconnected <-chan struct{}) (broken bool, err error) {
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case err := <-r.broken:
		return false, err
	case <-reconnected:
		return false, errReconnected
	case <-r.gap:
		return true, nil
	case <-r.quiet:
		return false, r.f.settle(ctx)
	case <-time.After(time.Second):
		if r.stuck() {
			return true, nil
		}
		return r.silent(ctx)
	}
}

// reading is the state of one subscription.
type reading struct {
	f      *Follower
	broken chan error
	gap    chan struct{}
	quiet  chan struct{} // receives a value when a follower that is not ready may have caught up

	mu      lock
	expect  uint64 // consumer sequence of the next delivery
	skipped bool   // a delivery that was sent before the last reset has arrived after it
	halted  bool   // deliveries are dropped until the gap is repaired
	resets  int    // number of repairs
	mended  int    // consecutive repairs without an applied delivery in between

	active   time.Time     // time of the last reset or delivery
	patience time.Duration // time without deliveries after which the stream is searched for entries
	searched uint64        // end of the stream at the last search that found no entry; used only by silent
}

// lock is a mutex. Goroutines that wait for it are durably blocked in the sense of
// testing/synctest, unlike goroutines that wait for a sync.Mutex, so that the time of a
// simulated mesh advances while Apply waits.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

func (l lock) Lock()   { l <- struct{}{} }
func (l lock) Unlock() { <-l }

func (l lock) TryLock() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

// fail makes the current round of reading end with err, unless another error is waiting
// to be read. It does not block.
func (r *reading) fail(err error) {
	select {
	case r.broken <- err:
	default:
	}
}

// delivery holds the sequence of a message in the consumer and on the stream, and the
// number of matching messages after it.
type delivery struct{ consumer, stream, pending uint64 }

// deliveryOf parses the reply subject of a message that a consumer delivered. It is for
// the hot path, where the Metadata of nats.go allocates memory for fields that are not
// needed. Both forms of the subject end with the same fields, and the longer one may end
// with a random token:
//
//	$JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<time>.<pending>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<time>.<pending>[.<token>]
//
// It returns an error for any other subject.
func deliveryOf(reply string) (d delivery, err error) {
	rest, ok := strings.CutPrefix(reply, "$JS.ACK.")
	skip := 3 // tokens before the sequences: stream, consumer, delivered
	dots := strings.Count(rest, ".")
	if dots >= 8 {
		skip = 5 // domain and account as well
	}
	if !ok || dots < 8 && dots != 6 {
		return d, fmt.Errorf("message with reply subject %q is not of a consumer", reply)
	}
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	for _, field := range [...]*uint64{&d.stream, &d.consumer, nil, &d.pending} {
		var token string
		token, rest, _ = strings.Cut(rest, ".")
		if field == nil {
			continue // the time
		}
		if *field, err = strconv.ParseUint(token, 10, 64); err != nil {
			return d, fmt.Errorf("reply subject %q: %w", reply, err)
		}
	}
	return d, nil
}

// take applies one delivery, or only advances the position if the reader's filters do
// not select it; see selects. It drops deliveries that were sent before the last reset.
// Entries may have been missed if the consumer sequence jumps, or if the first delivery
// after a reset is not the next matching entry of the stream because another instance
// has moved the consumer. In these cases, and if the stream cannot be searched, take
// signals a gap and drops everything until the gap is repaired. If Apply fails, the
// round ends with its error.
func (r *reading) take(subject string, data []byte, d delivery) {
	// The first delivery after a reset has consumer sequence 1 even if another instance
	// has reset the consumer to a later entry, so the stream is searched for entries
	// that were skipped. No lock is held during the search.
	var moved bool
	resets, first := r.begins(d)
	if first {
		missed, err := r.f.missed(context.Background(), d.stream)
		moved = err != nil || missed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.halted || first && r.resets != resets {
		return
	}
	if r.expect == 1 && (d.consumer != 1 || d.stream <= r.f.position.Load()) {
		r.skipped = true // sent before the reset
		return
	}
	if moved || d.consumer != r.expect {
		r.halted = true
		select {
		case r.gap <- struct{}{}:
		default: // the last gap was repaired for another reason, and its signal is not read yet
		}
		return
	}
	r.expect++
	r.mended = 0
	r.active, r.patience = time.Now(), silence
	if r.f.selects(subject) {
		if err := r.f.Apply(eventlog.Entry{Seq: d.stream, Subject: subject, Data: data}); err != nil {
			r.halted = true
			r.fail(&applyError{err})
			return
		}
	}
	r.f.position.Store(d.stream)
	r.f.pending.Store(d.pending)
	if d.pending == 0 && r.f.Every == 0 {
		r.drained()
	}
}

// drained handles a delivery after which the server reports no pending messages. It
// calls caught if the follower is ready. Otherwise it notifies watch, which calls
// settle, because shortly after a reset the server may report no pending messages
// although there are some.
func (r *reading) drained() {
	select {
	case <-r.f.ready:
		r.f.caught()
		return
	default:
	}
	select {
	case r.quiet <- struct{}{}:
	default: // watch has not received the last signal yet
	}
}

// selects reports whether an entry with this subject is to be applied.
func (f *Follower) selects(subject string) bool {
	return !f.covered || bus.MatchAny(f.filters, subject)
}

// begins reports whether d may be the first delivery after a reset, and returns the
// number of resets.
func (r *reading) begins(d delivery) (resets int, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resets, !r.halted && r.expect == 1 && d.consumer == 1 && d.stream > r.f.position.Load()
}

// stop waits until Apply has returned, and drops all later deliveries.
func (r *reading) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.halted = true
}

// applying reports whether Apply may be under way: whether the lock is held.
func (r *reading) applying() bool {
	if !r.mu.TryLock() {
		return true
	}
	r.mu.Unlock()
	return false
}

// stuck reports whether a delivery from before the last reset has arrived after it, but
// none that was sent after it. It returns false while Apply is running.
func (r *reading) stuck() bool {
	if !r.mu.TryLock() {
		return false // Apply is running
	}
	defer r.mu.Unlock()
	return r.expect == 1 && r.skipped && !r.halted
}

// silence is the time without deliveries after which silent searches the stream.
const silence = 3 * time.Second

// silent reports whether the stream has entries for the reader although no delivery has
// arrived for r.patience. It returns false while Apply is running, and if the stream
// cannot be read. A consumer that is reset while its server starts may deliver nothing
// until it is reset again, and so may one that another instance has reset. If a search
// finds no such entries and the follower is not ready, silent calls caught. Since most
// silent consumers merely have nothing to deliver, r.patience doubles, up to a minute.
// The error is errRenumbered if the stream ends before the position and the follower has a
// Restart. That happens if the stream was emptied before Run read the epoch of the connection,
// or without a reconnection, so that begin has not called Restart.
func (r *reading) silent(ctx context.Context) (bool, error) {
	if !r.mu.TryLock() {
		return false, nil // Apply is under way
	}
	quiet := !r.halted && time.Since(r.active) >= r.patience
	if quiet {
		r.patience = min(2*r.patience, time.Minute)
		r.mended = 0
	}
	r.mu.Unlock()
	if !quiet {
		return false, nil
	}
	// The server visits each subject that matches the filters, so the search is not
	// repeated while the stream has not grown.
	end, err := r.f.Conn.LastSeq(ctx, r.f.Stream)
	if err == nil && end < r.f.Position() && r.f.Restart != nil {
		r.f.anew = true
		return false, errRenumbered
	}
	if err != nil || end <= max(r.searched, r.f.Position()) {
		return false, nil
	}
	missed, err := r.f.missed(ctx, math.MaxUint64)
	if err == nil && !missed {
		r.searched = end
		select {
		case <-r.f.ready:
		default: // another instance may have received the entries that were pending after the reset
			r.f.caught()
		}
	}
	if err != nil || !missed || !r.mu.TryLock() {
		return false, nil
	}
	defer r.mu.Unlock()
	return !r.halted && time.Since(r.active) >= silence, nil // no delivery arrived in the meantime
}

// mends is the maximum number of consecutive repairs of a gap before a new subscription
// is made.
const mends = 20

// mend resets the consumer to the entry after the last one applied. It updates the state
// before it sends the request, because deliveries after the reset may arrive before the
// server's response. It returns errGap after more than mends consecutive repairs, and
// otherwise the error of the request.
func (r *reading) mend(ctx context.Context) error {
	r.mu.Lock()
	r.expect, r.skipped, r.halted, r.active = 1, false, false, time.Now()
	r.resets++
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
