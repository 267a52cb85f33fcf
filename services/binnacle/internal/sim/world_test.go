package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// world is one run of the mesh on a simulated bus, determined by a seed. Its methods
// must be called in the scheduler's goroutine, unless they are documented otherwise.
type world struct {
	bus   *Bus
	rng   *rand.Rand
	base  *base
	scene scene
	began time.Time
	odds  odds

	instances []*instance
	events    *checker
	calls     []*call
	steps     int
	crashes   int
	restarts  int // number of restarts of the server
	moments   int // number of appends and deliveries selected for release while faults are enabled
	plan      []fault
	draws     int               // number of appends of decisions with draws in the original tenant, while faults are enabled
	opens     time.Time         // time at which the provisioner gets the ring that opens the cell; zero: never, or done already
	calm      bool              // whether faults are disabled
	calmed    time.Time         // when faults were last disabled; zero if they never were
	booting   bool              // whether everything is released at once, without faults
	slots     map[string]string // name of the last instance that acquired or renewed a slot, by the slot's subject
	acts      []action          // memory for the result of actions
	tampered  map[string]bool   // digests of the descriptions of snapshots that tamper stored
	hash      hash.Hash
	lines     []string // lines of the transcript, if it is kept
	line      []byte   // memory for one line
	keep      bool

	mu      sync.Mutex
	effects map[string][]effect  // started effects, by call id
	boxes   *boxes               // containers of the effects
	sockets map[string]*listener // listeners of proxies, by path
	bad     []string             // broken invariants
	said    []string             // lines queued for the transcript by other goroutines
}

// odds holds the probabilities of faults in one run. Each seed has a different mixture,
// so that some runs have many faults of one kind and none of another kind.
type odds struct {
	mute   float64 // the acknowledgement of an append is lost
	cut    float64 // a connection breaks during a delivery, and messages in transit are lost
	deaf   float64 // a consumer's acknowledgement is lost
	again  float64 // unacknowledged work is delivered again at once
	freeze float64 // a connection transfers nothing for at most three seconds
	pause  float64 // time advances although something could be released
	tamper float64 // the newest snapshots of a service are removed or falsified when an instance of it starts
	plain  bool    // instances start without snapshots and take none
}

func drawOdds(r *rand.Rand) odds {
	some := func(most float64) float64 {
		if r.IntN(2) == 0 {
			return 0
		}
		return most * r.Float64()
	}
	return odds{mute: some(0.15), cut: some(0.02), deaf: some(0.2), again: some(0.05), freeze: some(0.03), pause: some(0.2),
		tamper: some(1.5), plain: r.IntN(4) == 0}
}

// fault is a planned death at the release of an append or the delivery of an event.
type fault struct {
	at     int
	server bool // the server dies instead of the instance
	lost   bool // if the server dies, it also loses the work consumers
	after  bool // the death follows the release instead of preceding it
}

// drawPlan chooses the deaths of a run at random; the first death in the plan is that of
// an instance.
func drawPlan(r *rand.Rand) []fault {
	plan := []fault{{at: 1 + r.IntN(60), after: r.IntN(2) == 0}}
	for range r.IntN(4) {
		plan = append(plan, fault{at: 1 + r.IntN(160), after: r.IntN(2) == 0, server: r.IntN(6) == 0, lost: r.IntN(2) == 0})
	}
	return plan
}

func newWorld(seed uint64, s scene, b *base, keep bool) *world {
	r := rand.New(rand.NewPCG(seed, 0x6269_6e6e_6163_6c65))
	w := &world{bus: newBus(), rng: r, base: b, scene: s, began: time.Now(), odds: drawOdds(r), plan: drawPlan(r), hash: sha256.New(), keep: keep,
		effects: map[string][]effect{}, sockets: map[string]*listener{}, calm: true, booting: true, slots: map[string]string{}, tampered: map[string]bool{}}
	w.events, w.boxes = newChecker(w), newBoxes(seed)
	return w
}

// note adds a line to the transcript.
func (w *world) note(format string, args ...any) {
	line := fmt.Appendf(w.line[:0], "%9.3f %5d ", time.Since(w.began).Seconds(), w.steps)
	line = fmt.Appendf(line, format, args...)
	if w.keep {
		w.lines = append(w.lines, string(line))
	}
	w.line = append(line, '\n')
	w.hash.Write(w.line)
}

// show adds a line with random content to the output. The comparison of transcripts
// ignores it.
func (w *world) show(format string, args ...any) {
	w.lines = append(w.lines, "    "+fmt.Sprintf(format, args...))
}

func (w *world) digest() string { return hex.EncodeToString(w.hash.Sum(nil))[:16] }

// say queues a line for the transcript. It is safe for concurrent use.
func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

// transcribe adds the queued lines to the transcript, sorted, so that their order does not
// depend on goroutines.
func (w *world) transcribe() {
	w.mu.Lock()
	said := w.said
	w.said = nil
	w.mu.Unlock()
	slices.Sort(said)
	for _, s := range said {
		w.note("%s", s)
	}
}

// violate records that an invariant does not hold, at most ten times per run. It is safe
// for concurrent use.
func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.bad) < 10 {
		w.bad = append(w.bad, fmt.Sprintf(format, args...))
	}
}

func (w *world) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.bad) > 0
}

// action is an operation or a delivery that the scheduler can release.
type action struct {
	link *link     // connection whose first queued operation or message is released; nil for a delivery
	out  bool      // whether a message to the client is released instead of an operation
	cons *consumer // for a delivery, the consumer that sends it; nil otherwise
}

// tick is the simulated time that passes at the beginning of each step.
const tick = time.Microsecond

// step waits until every goroutine is blocked, checks new events, and releases one
// action, which the seed selects, or every action during the first start. If there is
// nothing to release, step advances the simulated time instead, until an operation
// arrives or something is due, at most to until. If the seed selects a pause, it
// advances the time by at most 20 ms instead.
func (w *world) step(until time.Time) {
	// Each release has a different time, so that timers which goroutines start do not
	// expire at the same time, in an order that the runtime chooses.
	time.Sleep(tick)
	synctest.Wait()
	b := w.bus
	b.mu.Lock()
	b.collect()
	w.transcribe()
	w.events.look()
	w.observe()
	now := time.Now()
	var next time.Time
	if !now.Before(b.due) {
		b.expire(now)
	}
	acts := w.actions(now, &next)
	if len(acts) == 0 {
		next = b.expire(now)
		w.actions(now, &next)
	}
	if w.booting && len(acts) > 0 {
		w.steps++
		w.burst()
		b.mu.Unlock()
		return
	}
	if len(acts) > 0 && (w.calm || w.rng.Float64() >= w.odds.pause) {
		w.steps++
		w.act(acts[w.rng.IntN(len(acts))], now)
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	if len(acts) > 0 {
		w.sleep(time.Duration(1+w.rng.IntN(20)) * time.Millisecond)
		return
	}
	if next.IsZero() || until.Before(next) {
		next = until
	}
	w.rest(next.Sub(now))
}

// burst releases everything that can be released. It is used where the order does not
// matter: for the first start and in TestContract.
func (w *world) burst() {
	for _, l := range w.bus.links {
		for ; len(l.in) > 0; l.in = l.in[1:] {
			w.bus.release(l.in[0], false)
		}
	}
	for _, c := range w.bus.list {
		for len(c.waiting) > 0 && c.ready() {
			c.deliver(0, 1<<20)
			w.bus.timed(c)
		}
	}
	for _, l := range w.bus.links {
		for i := range l.out {
			l.write(&l.out[i])
		}
		l.out = l.out[:0]
	}
}

// rest lets simulated time pass until an operation arrives, for at most d, or for at
// most 1 ms if d is not positive.
func (w *world) rest(d time.Duration) {
	if d <= 0 {
		d = time.Millisecond
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.bus.kick:
	case <-t.C:
	}
}

func (w *world) sleep(d time.Duration) { time.Sleep(d) }

// actions returns what can be released. The result is valid until the next call. If a
// connection is frozen that thaws before next, actions sets next to that time.
func (w *world) actions(now time.Time, next *time.Time) []action {
	acts := w.acts[:0]
	for _, l := range w.bus.links {
		if now.Before(l.frozen) {
			if next.IsZero() || l.frozen.Before(*next) {
				*next = l.frozen
			}
			continue
		}
		if len(l.out) > 0 {
			acts = append(acts, action{link: l, out: true})
		}
		if len(l.in) > 0 {
			acts = append(acts, action{link: l})
		}
	}
	for _, c := range w.bus.list {
		if len(c.waiting) > 0 && !c.idle() && c.ready() {
			acts = append(acts, action{cons: c})
		}
	}
	w.acts = acts
	return acts
}

// act releases one action, together with the operations or messages that belong to it.
// Faults may occur unless they are disabled.
func (w *world) act(a action, now time.Time) {
	switch {
	case a.cons != nil:
		n := 1 << 20
		if !w.calm && w.rng.IntN(3) == 0 {
			n = 1
		}
		w.note("deliver %s", a.cons.deliver(w.rng.IntN(8), n))
		w.bus.timed(a.cons)
		w.repeat(a.cons, now)
	case a.out:
		for more := true; more; { // messages that an ordered reader receives together are usually one release
			m := a.link.out[0]
			a.link.out = a.link.out[1:]
			w.write(a.link, &m)
			more = len(a.link.out) > 0 && a.link.out[0].twin || m.reader != "" && len(a.link.out) > 0 && a.link.out[0].reader == m.reader && (w.calm || w.rng.IntN(4) > 0)
		}
	default:
		if w.stopped(a.link, now) {
			return
		}
		for more := true; more; more = len(a.link.in) > 0 && a.link.in[0].twin {
			o := a.link.in[0]
			a.link.in = a.link.in[1:]
			w.run(o)
		}
	}
	if a.link != nil && !w.calm && w.rng.Float64() < w.odds.freeze {
		a.link.frozen = now.Add(time.Duration(1+w.rng.IntN(3000)) * time.Millisecond)
		w.note("freeze %s for %v", a.link.name, a.link.frozen.Sub(now))
	}
}

// write sends a message to a client. As faults, a delivery may be lost, or the client's
// instance or the server may die before or after it.
func (w *world) write(l *link, m *message) {
	delivery := m.reply != ""
	if delivery {
		if w.strike(l, "before it receives "+m.what, false) {
			return
		}
		if !w.calm && w.rng.Float64() < w.odds.cut {
			w.note("%s < %s CUT", l.name, m.what)
			l.cut("")
			l.out = nil
			return
		}
	}
	w.note("%s < %s", l.name, m.what)
	l.write(m)
	if delivery {
		w.strike(l, "as it receives "+m.what, true)
	}
}

// run executes an operation. As faults, the operation or its response may be lost, or
// the client's instance or the server may die before or after it.
func (w *world) run(o *op) {
	mute := false
	what := ""
	switch {
	case o.isAppend():
		if w.strike(o.link, "before its append of "+o.subject, false) {
			o.link.in = nil // what the client wrote later does not arrive either: a connection keeps the order
			return
		}
		mute = !w.calm && w.rng.Float64() < w.odds.mute
	case o.isAck() && !w.calm && w.rng.Float64() < w.odds.deaf:
		w.note("%s > %s LOST", o.link.name, o.what())
		return
	}
	if mute {
		what = " UNANSWERED"
	}
	if w.lost(o) {
		return
	}
	before := w.bus.size()
	w.bus.release(o, mute)
	if n := w.bus.size(); n > before {
		what = fmt.Sprintf(" = #%d", n) + what
	}
	w.note("%s > %s%s", o.link.name, o.what(), what)
	if o.isAppend() {
		w.strike(o.link, "behind its append of "+o.subject, true)
	}
}

// lost records which instance acquires or renews a slot. It kills an instance that renews
// its slot, or reads the lease of its slot, after another instance has taken the slot,
// and reports whether it did. If it were not killed, the instance would end when it
// receives the response, and the order of its last operations would depend on its
// goroutines. An instance whose connection has stalled may lose its slot even while
// faults are disabled.
func (w *world) lost(o *op) bool {
	subject, read := o.subject, false
	if call, ok := o.api(); ok && call == "DIRECT.GET."+bus.Slots {
		subject, read = w.bus.parse(o.data).Last, true // empty if it is not a request for the last message
	}
	if !strings.HasPrefix(subject, "slot.") {
		return false
	}
	in, s := w.byLink(o.link), w.bus.streams[bus.Slots]
	if in == nil || s == nil {
		return false
	}
	seq := s.last(subject)
	if !read && o.header["Nats-Expected-Last-Subject-Sequence"] == fmt.Sprint(seq) {
		w.slots[subject], in.slot = in.name, subject
		return false
	}
	if seq == 0 || in.slot != subject || w.slots[subject] == in.name {
		return false
	}
	w.kill(in, "as its slot is another's")
	return true
}

// size returns the sequence of the ledger's last event, or 0 if there is none.
func (b *Bus) size() uint64 {
	if s := b.streams[bus.Events]; s != nil {
		return s.log.Size()
	}
	return 0
}

// repeat makes the oldest unacknowledged message of a work consumer due for delivery
// again, with the probability odds.again. A real server may do so, too.
func (w *world) repeat(c *consumer, now time.Time) {
	if w.calm || !c.work || len(c.open) == 0 || w.rng.Float64() >= w.odds.again {
		return
	}
	low := uint64(0)
	for seq := range c.open {
		if low == 0 || seq < low {
			low = seq
		}
	}
	c.open[low].due = now
	w.note("again %s #%d", c.name, low)
}

// strike kills the instance at the other end of l, or the server, if the plan has a
// death at this release, and reports whether it did. after is whether it is called after
// the release instead of before it.
func (w *world) strike(l *link, where string, after bool) bool {
	if w.calm {
		return false
	}
	if !after {
		w.moments++
	}
	for i, f := range w.plan {
		if f.at != w.moments || f.after != after {
			continue
		}
		w.plan[i].at = -1
		if f.server {
			w.fail(f.lost)
			return true
		}
		if in := w.byLink(l); in != nil && !in.dead.Load() {
			w.kill(in, where)
			return true
		}
		w.plan[i].at = w.moments + 1 // not the connection of a running instance: the fault waits for the next moment
	}
	return false
}

// fail simulates the death and the restart of the server. If positions is true, it loses
// the work consumers.
func (w *world) fail(positions bool) {
	w.restarts++
	w.note("SERVER DIES, work consumers lost: %v", positions)
	w.bus.fail(positions, func(n int) int { return w.rng.IntN(n + 1) })
}

func (w *world) byLink(l *link) *instance {
	for _, in := range w.instances {
		if in.name == l.name {
			return in
		}
	}
	return nil
}

// kill kills an instance as SIGKILL does. Some of the operations that it wrote may still
// arrive. The caller holds the lock of the bus; kill releases it for a while.
func (w *world) kill(in *instance, where string) {
	w.crashes++
	w.note("KILL %s %s", in.name, where)
	for _, l := range w.bus.links {
		if l.name != in.name {
			continue
		}
		l.cut(lastWords + lastWords)
		l.out = nil
		l.in = l.in[:w.rng.IntN(len(l.in)+1)]
	}
	// The instance finishes processing the messages that it has read before its files
	// are copied.
	w.bus.mu.Unlock()
	synctest.Wait()
	w.bus.mu.Lock()
	in.kill()
	in.back = time.Now().Add(time.Duration(w.rng.IntN(4000)) * time.Millisecond)
}

// lastWords is a protocol error. A NATS client that reads it twice closes its connection
// permanently.
const lastWords = "-ERR 'Authorization Violation'\r\n"

// revive restarts the instances that were killed or ended by themselves, once they are due.
// While faults are disabled, an instance that ends by itself is a violation, except shortly
// after they were disabled: a fault may have delayed the renewal of its slot, which another
// instance has taken since, and the instance detects that at its next renewal.
func (w *world) revive() {
	now := time.Now()
	for i, in := range w.instances {
		if in.ended.Load() && !in.dead.Load() { // the instance ended by itself; a supervisor would restart it
			if w.calm && now.Sub(w.calmed) > 2*bus.SlotTTL {
				w.violate("%s ended without a fault: %v", in.name, in.err)
			}
			in.kill()
			in.back = now.Add(time.Second)
		}
		if in.dead.Load() && !now.Before(in.back) {
			w.tamper(in.kind)
			w.instances[i] = w.start(in.kind, in.n, in.gen+1, in)
			w.note("START %s", w.instances[i].name)
		}
	}
}

// until runs the scheduler until the condition holds or an invariant is broken, for at
// most limit of simulated time, and reports whether the condition holds.
func (w *world) until(limit time.Duration, cond func() bool) bool {
	end := time.Now().Add(limit)
	for time.Now().Before(end) && !w.broken() {
		if cond() {
			return true
		}
		w.revive()
		w.launch()
		w.openCell()
		soon := time.Now().Add(time.Second)
		if !w.opens.IsZero() && w.opens.Before(soon) {
			soon = w.opens
		}
		for _, in := range w.instances {
			if in.dead.Load() && in.back.Before(soon) {
				soon = in.back
			}
		}
		for _, c := range w.calls {
			if !c.sent && c.at.Before(soon) {
				soon = c.at
			}
		}
		w.step(soon)
	}
	return cond()
}

// stop kills all instances and waits until every goroutine has ended.
func (w *world) stop() {
	w.bus.mu.Lock()
	for _, l := range w.bus.links {
		l.cut(lastWords + lastWords)
	}
	w.bus.mu.Unlock()
	for _, in := range w.instances {
		in.kill()
	}
	for _, in := range w.instances {
		<-in.done
	}
	time.Sleep(15 * time.Minute) // goroutines for which no service waits end when their timeouts expire
}

// report returns the broken invariants of a run, one per line.
func (w *world) report() string {
	return strings.Join(w.bad, "\n")
}
