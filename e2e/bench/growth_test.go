//go:build bench

package bench

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/bench/curve"
	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
)

// longest is the number of events of the longest history. Ten million take about 30 GB
// of disk.
var longest = flag.Int("history", 1_000_000, "events of the longest history that is measured; 10000000 for the longest that is of interest")

// curveSessions is the number of sessions in each of the histories that differ in
// length.
const curveSessions = 1000

// sessionEvents is the number of events of the histories with different numbers of
// sessions, unless -history is smaller. It suffices for one call in each of 100,000
// sessions.
const sessionEvents = 400_000

// record is the file of the points from which package curve draws the pictures of
// docs/performance.md. growth and sessions replace those that they measure.
var record = flag.String("record", "", "file in which the measured points of the growth curves replace those of earlier runs")

// points are the measured points of the growth curves.
var points []curve.Point

// growth measures how starts, memory, stored bytes and the first calls into old sessions
// depend on the length of the history and on the number of sessions.
func growth(t *testing.T) {
	add(row{Name: "load average before the growth rows", Durability: "none", Value: loadAverage(t)})
	o := harness.Options{Noop: true, Dir: t.TempDir()}
	harness.One(t, o).StopAll()
	m, _, _ := launched(t, o, "start after a clean stop, empty", "")
	m.StopAll()
	for events := 10_000; events <= *longest; events *= 10 {
		t.Run(fmt.Sprintf("%d events", events), func(t *testing.T) { behind(t, events, curveSessions) })
	}
	t.Run("ended sessions", ended)
	for _, sessions := range []int{1, curveSessions, 100_000} {
		events := min(*longest, sessionEvents)
		t.Run(fmt.Sprintf("%d sessions", sessions), func(t *testing.T) { behind(t, events, min(sessions, events/history.PerCall)) })
	}
}

// save adds the points that were measured so far to the file of the flag -record. It
// replaces the file's points of the same measure and history.
func save(t *testing.T) {
	if *record == "" {
		return
	}
	var recorded []curve.Point
	b, err := os.ReadFile(*record)
	if err == nil {
		err = json.Unmarshal(b, &recorded)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	b, err = json.MarshalIndent(curve.Merge(recorded, points), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*record, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// past describes a mesh on a ledger with a history of the given numbers of events and
// sessions.
type past struct {
	o                harness.Options
	events, sessions int
}

func (p *past) name(what string) string {
	return fmt.Sprintf("%s, %d events, %d sessions", what, p.events, p.sessions)
}

// point adds a point to a growth curve.
func (p *past) point(what, unit string, value float64) {
	points = append(points, curve.Point{Measure: what, Events: p.events, Sessions: p.sessions, Unit: unit, Value: math.Round(value*100) / 100})
}

// start starts the mesh, and reports the time until it is ready and the CPU time that it
// used until then.
func (p *past) start(t *testing.T, what, budget string, flags ...string) *harness.Mesh {
	o := p.o
	o.Flags = flags
	m, took, cpu := launched(t, o, p.name(what), budget)
	p.point(what, "s", took)
	p.point(what, "s of CPU", cpu)
	return m
}

// memory reports the memory of a mesh ten seconds after its start, when memory that only
// the start used has been returned to the operating system.
func (p *past) memory(t *testing.T, m *harness.Mesh, what, budget string) {
	time.Sleep(10 * time.Second)
	_, rss := used(t, m)
	add(row{Name: p.name(what), Durability: "process", Value: fmt.Sprintf("%d MiB RSS, %d MiB at most", rss>>20, peak(t, m.PID("binnacle"))>>20), Budget: budget})
	p.point(what, "MiB", float64(rss>>20))
}

// refolded is the number of events that refold appends after the last snapshot. It is
// just below the number after which the services take a new snapshot.
const refolded = 46_000

// window is a little more than the deduplication window of the ledger's stream.
const window = 5*time.Minute + 10*time.Second

// behind measures a mesh on a ledger with one written history.
func behind(t *testing.T, events, sessions int) {
	p := &past{harness.Options{Noop: true, Dir: t.TempDir(), Within: time.Hour}, events, sessions}
	m := harness.One(t, p.o)
	noop := func(session string) time.Duration { return noopTime(t, m, session) }
	noop("s-pattern")
	m.StopAll()
	began := time.Now()
	if _, err := history.Write(t.Context(), p.o.Dir, history.Shape{Events: events, Sessions: sessions}); err != nil {
		t.Fatal(err)
	}
	written := time.Now()
	t.Logf("history of %d events written in %v", events, time.Since(began).Round(time.Millisecond))
	m = harness.One(t, p.o) // audit indexes the history and, within a second, signs a checkpoint over it
	time.Sleep(3 * time.Second)
	m.StopAll() // takes snapshots

	m = p.start(t, "start after a clean stop", "<= 1 s more than empty with 1,000,000")
	p.memory(t, m, "memory after a clean start", "<= 300 MiB with 422,000")
	old, young := firstCalls(t, p.name("first call into an active session"), min(sessions, 500), history.SessionName, noop)
	p.point("first call into an old session", "ms", old/1e3)
	p.point("first call into a new session", "ms", young/1e3)
	m.Kill("binnacle")
	m = p.start(t, "start after SIGKILL", "")
	p.stored(t)
	m.StopAll()
	if events >= 1_000_000 {
		// At each start, the server reads every message that was stored within its
		// deduplication window. This start is therefore measured after that window.
		time.Sleep(time.Until(written.Add(window)))
		p.start(t, "start after a clean stop, history older than the deduplication window", "<= 1 s more than empty with 1,000,000").StopAll()
	}
	t.Run("no snapshots", func(t *testing.T) {
		m := p.start(t, "start after a clean stop, --no-snapshots", "", "--no-snapshots")
		p.memory(t, m, "memory after a clean start, --no-snapshots", "")
		m.Kill("binnacle")
		p.start(t, "start after SIGKILL, --no-snapshots", "", "--no-snapshots").StopAll()
	})
	t.Run("no positions", func(t *testing.T) {
		m.LosePositions()
		m := p.start(t, "start without positions of consumers", "<= 30 s with 635,000")
		time.Sleep(3 * time.Second)
		m.StopAll()
	})
	t.Run("no audit folder", func(t *testing.T) {
		if err := os.RemoveAll(filepath.Join(p.o.Dir, "audit")); err != nil {
			t.Fatal(err)
		}
		p.start(t, "start without audit's folder", "").StopAll()
	})
	t.Run("refolded", p.refold)
	if sessions > manyFirst+500 {
		t.Run("many first calls", func(t *testing.T) {
			m = harness.One(t, p.o)
			firstCalls(t, p.name("first calls into active sessions"), manyFirst, func(i int) string { return history.SessionName(500 + i) }, noop)
			m.StopAll()
		})
	}
	save(t)
}

// manyFirst is the number of old sessions into which behind makes first calls after the
// last start, if there are as many besides the 500 after the first start.
const manyFirst = 20_000

// refold measures the start after a SIGKILL many events after the last snapshot.
func (p *past) refold(t *testing.T) {
	m := harness.One(t, p.o)
	var calls atomic.Int64
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			for calls.Add(1) <= refolded/history.PerCall {
				if _, err := post("http://"+m.Addr+"/api/v1/packs/noop", m.Token, fmt.Sprintf("s-refold-%d", c), []byte(`{"n":1}`)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(2 * time.Second) // wait until audit has indexed the events
	m.Kill("binnacle")
	p.start(t, "start after SIGKILL, 46,000 events after the last snapshot", "").StopAll()
}

// stored reports the disk space of the NATS server's folder and of audit's folder.
func (p *past) stored(t *testing.T) {
	nats, audit := size(t, filepath.Join(p.o.Dir, "nats")), size(t, filepath.Join(p.o.Dir, "audit"))
	add(row{Name: p.name("stored"), Durability: "process", Value: fmt.Sprintf("%d MiB in NATS, %d MiB in audit's folder", nats>>20, audit>>20)})
	p.point("stored in NATS", "MiB", float64(nats)/(1<<20))
	p.point("stored in audit's folder", "MiB", float64(audit)/(1<<20))
	calls := float64(p.events / history.PerCall)
	p.point("stored in NATS per call", "kB", float64(nats)/calls/1e3)
	p.point("stored in audit's folder per call", "kB", float64(audit)/calls/1e3)
}

// launched starts a mesh and reports the time until it is ready, and the CPU time, which
// depends less on other load. It returns both, in seconds.
func launched(t *testing.T, o harness.Options, name, budget string) (m *harness.Mesh, took, cpu float64) {
	began := time.Now()
	m = harness.One(t, o)
	took = time.Since(began).Seconds()
	ticks, _ := used(t, m)
	cpu = float64(ticks) / 100
	add(row{Name: name, Durability: "process", Value: fmt.Sprintf("%.2f s, %.2f s of CPU", took, cpu), Budget: budget})
	return m, took, cpu
}

// ended measures, after a start, the first calls into sessions that ended in the first half of the
// history.
func ended(t *testing.T) {
	shape := history.Shape{Events: min(*longest, 100_000), Sessions: curveSessions, Successive: true}
	o := harness.Options{Noop: true, Dir: t.TempDir(), Within: time.Hour}
	m := harness.One(t, o)
	noop := func(session string) time.Duration { return noopTime(t, m, session) }
	noop("s-pattern")
	m.StopAll()
	if _, err := history.Write(t.Context(), o.Dir, shape); err != nil {
		t.Fatal(err)
	}
	m = harness.One(t, o)
	time.Sleep(3 * time.Second)
	m.StopAll()
	m = harness.One(t, o)
	firstCalls(t, fmt.Sprintf("first call into an ended session, %d events, %d sessions", shape.Events, shape.Sessions), 500, history.SessionName, noop)
	m.StopAll()
}

// noopTime returns the time that a call of tool.noop in a session takes.
func noopTime(t *testing.T, m *harness.Mesh, session string) time.Duration {
	began := time.Now()
	if _, err := post("http://"+m.Addr+"/api/v1/packs/noop", m.Token, session, []byte(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// firstCalls measures the first calls into n old sessions after a start, alternating
// with the first calls into new ones. session returns the name of an old session. The
// results are the medians of both, in microseconds.
func firstCalls(t *testing.T, name string, n int, session func(int) string, noop func(session string) time.Duration) (oldP50, newP50 float64) {
	for range 200 { // warm up on a session of its own
		noop("s-warm")
	}
	var old, young []time.Duration
	began := time.Now().UnixNano() // sessions with this in their names are new at each call of firstCalls
	for i := range n {
		old = append(old, noop(session(i)))
		young = append(young, noop(fmt.Sprintf("s-new-%d-%d", began, i)))
	}
	mean := float64(sum(old)) / float64(sum(young))
	slices.Sort(old)
	slices.Sort(young)
	oldP50, newP50 = us(old, .5), us(young, .5)
	add(row{Name: name + ": a new one", Durability: "process", Clients: 1, P50us: newP50, P99us: us(young, .99)})
	add(row{Name: name, Durability: "process", Clients: 1, P50us: oldP50, P99us: us(old, .99),
		Value: fmt.Sprintf("%d sessions, p50 %.1f times a new one, all of them %.1f s: %.1f times; %s", n, oldP50/newP50, sum(old).Seconds(), mean, loadAverage(t)), Budget: "<= 1.5 times"})
	return oldP50, newP50
}

// sum returns the sum of all times.
func sum(times []time.Duration) (all time.Duration) {
	for _, d := range times {
		all += d
	}
	return all
}

// peak returns the greatest resident memory that a process has had, in bytes.
func peak(t *testing.T, pid int) (n int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &n); err == nil {
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// size returns the disk space that the files of a folder occupy, in bytes.
func size(t *testing.T, dir string) (n int64) {
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err == nil {
			n += i.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// stored measures the bytes that calls add to the disk. A first round of calls is not
// counted, since files grow in steps.
func stored(t *testing.T) {
	up := mock(t)
	models, key := fresh(t, up.URL)
	plain := harness.One(t, harness.Options{Noop: true})
	body := []byte(`{"model":"mock/m","messages":[{"role":"user","content":"say hi"}]}`)
	for _, k := range []struct {
		m                         *harness.Mesh
		name, path, token, budget string
		body                      []byte
	}{
		{plain, "no-op call", "/api/v1/packs/noop", plain.Token, "<= 3 kB + 1 kB", []byte(`{"n":1}`)},
		{models, "call to a model, budgeted", "/v1/chat/completions", key, "<= 4 kB + 1 kB", body},
	} {
		const clients, each = 16, 400
		do := func(round int) (nats, audit int64) {
			errs := make(chan error, clients)
			for c := range clients {
				go func() {
					for range each {
						if _, err := post("http://"+k.m.Addr+k.path, k.token, fmt.Sprintf("s-stored-%d-%d", round, c), k.body); err != nil {
							errs <- err
							return
						}
					}
					errs <- nil
				}()
			}
			for range clients {
				if err := <-errs; err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(3 * time.Second) // wait until audit has indexed the events and the server has written its buffers
			return size(t, filepath.Join(k.m.Dir, "nats")), size(t, filepath.Join(k.m.Dir, "audit"))
		}
		n0, a0 := do(1)
		n1, a1 := do(2)
		add(row{Name: "stored per " + k.name, Durability: "process", Value: fmt.Sprintf("%.1f kB in NATS, %.1f kB in audit's folder", float64(n1-n0)/clients/each/1e3, float64(a1-a0)/clients/each/1e3), Budget: k.budget})
	}
}
