//go:debug randseednop=0
package sim

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

func TestMain(m *testing.M) {
	h := slog.NewTextHandler(io.Discard, nil)
	if os.Getenv("SIM_LOG") != "" {
		h = slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})
	}
	slog.SetDefault(slog.New(h))
	debug.SetGCPercent(-1) // schedule runs the garbage collector instead
	debug.SetMemoryLimit(2 << 30)
	os.Exit(m.Run())
}

// ballast makes the heap so large that the runtime does not return the memory of a schedule to
// the operating system, from which the next schedule would have to get it again page by
// page. The pages of ballast itself are never used.
var ballast = make([]byte, 1<<29)

// result describes one schedule that was run, or several together.
type result struct {
	Seed     uint64
	Digest   string // hash of the transcript; empty in a sum
	Bad      []string
	Lines    []string
	Steps    int
	Events   uint64
	Calls    int
	Crashes  int
	Restarts int
	Statuses map[string]int

	Sum       bool // whether this is the sum of several schedules
	Schedules int
}

// schedule runs the mesh once, from the base for the seed's scene. The seed determines the
// order of operations and the faults. If keep is true, the result contains the lines of
// the transcript.
func schedule(t *testing.T, all *bases, seed uint64, keep bool) (res result) {
	s := drawScene(seed)
	b := all.of(s)
	cryptotest.SetGlobalRandom(t, seed+1<<40) // a seed other than that of the base, so that no id of the base is generated again
	// The NATS client reuses timers from a sync.Pool, but a timer of one synctest bubble
	// must not be used in another. Two garbage collections empty the pool.
	runtime.GC()
	runtime.GC()
	runtime.KeepAlive(ballast)
	synctest.Test(t, func(*testing.T) {
		time.Sleep(time.Minute) // so that runs start at a time after the base was made
		w := newWorld(seed, s, b, keep)
		b.load(w)
		w.play()
		w.stop()
		res = result{Seed: seed, Digest: w.digest(), Bad: w.bad, Lines: w.lines, Steps: w.steps, Events: w.events.seen, Calls: w.proposals(), Crashes: w.crashes, Restarts: w.restarts,
			Statuses: map[string]int{}}
		for _, f := range w.events.calls {
			if slices.Contains(created, f.tenant) {
				res.Statuses["of created tenants"]++
			}
			res.Statuses[f.status]++
		}
	})
	if res.Calls < 10 || res.Crashes < 1 {
		res.Bad = append(res.Bad, fmt.Sprintf("%d calls and %d crashes; a schedule has at least ten calls and one crash", res.Calls, res.Crashes))
	}
	return res
}

// faulty is the maximum time for which faults are enabled. They end earlier if all clients have their
// answers. In the few runs in which clients wait longer, little else happens than polls.
const faulty = 30 * time.Second

// play executes one run: the mesh starts, executes calls under faults, and completes its
// pending work without faults; then settled checks it. If one of these phases does not
// end in time, play records a violation and returns.
func (w *world) play() {
	w.boot("audit", "policy", "policy", "vault-broker", "egress-broker", "egress-broker", "session-runner", "session-runner", "llm-router", "llm-router", "judge", "judge", "work", "work", "mcp-router", "mcp-router", "gateway", "gateway")
	if slices.ContainsFunc(w.plan, func(f fault) bool { return f.server }) {
		w.boot("provision") // recreates the memory streams, which the server loses when it dies
	}
	if !w.until(time.Minute, w.allReady) {
		w.violate("the mesh does not come up")
		return
	}
	w.booting = false
	w.drawCalls(w.rng)
	w.calm = false
	w.boxes.begin()
	w.note("FAULTS %+v %+v", w.odds, w.scene)
	answered := func() bool {
		for _, c := range w.calls {
			if !c.done.Load() {
				return false
			}
		}
		return true
	}
	w.until(faulty, answered)
	if w.crashes == 0 { // no planned death of an instance occurred
		w.bus.mu.Lock()
		w.kill(w.instances[w.rng.IntN(len(w.instances))], "at the end")
		w.bus.mu.Unlock()
	}
	w.calm, w.calmed = true, time.Now()
	w.boxes.calm.Store(true)
	w.note("CALM")
	if !w.until(10*time.Minute, answered) {
		w.violate("clients wait without end")
		return
	}
	if !w.until(3*time.Minute, w.quiet) {
		w.violate("not quiet within three minutes: calls open %v, work open %v, reservations %d, ready %v", w.events.open(), w.work(), len(w.events.held), w.allReady())
		return
	}
	w.settled()
}

// quiet reports whether all instances are ready and no call, reservation or work is
// pending. A proposal that a connection has not released yet is pending: its client may
// have received a response before.
func (w *world) quiet() bool {
	return w.allReady() && len(w.events.open()) == 0 && len(w.events.held) == 0 && len(w.work()) == 0 && !w.proposing()
}

// proposing reports whether an operation that proposes a call was not released yet.
func (w *world) proposing() bool {
	w.bus.mu.Lock()
	defer w.bus.mu.Unlock()
	for _, l := range w.bus.links {
		for _, o := range slices.Concat(l.arrived, l.in) {
			if strings.Contains(o.subject, "."+contract.EventCallProposed+".") {
				return true
			}
		}
	}
	return false
}

// work returns the names of the work consumers that have unacknowledged or undelivered
// events.
func (w *world) work() (names []string) {
	for _, c := range w.bus.list {
		if c.work && len(c.open)+c.pending() > 0 {
			names = append(names, c.name)
		}
	}
	return names
}

// TestSeed runs one schedule. It prints the transcript if the schedule fails or the test
// is verbose.
func TestSeed(t *testing.T) {
	b := &bases{t: t}
	b.of(drawScene(*seedFlag))
	began := time.Now()
	r := schedule(t, b, *seedFlag, true)
	if len(r.Bad) > 0 || testing.Verbose() {
		t.Log("\n" + strings.Join(r.Lines, "\n"))
	}
	t.Logf("%v, %d steps, %d events, %d calls, %d crashes, %d server restarts, %v", time.Since(began), r.Steps, r.Events, r.Calls, r.Crashes, r.Restarts, r.Statuses)
	for _, v := range r.Bad {
		t.Error(v)
	}
}
