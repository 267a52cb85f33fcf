//go:build bench

package bench

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
)

// longest is the number of events of the longest history. Ten million take about 30 GB
// of disk.
var longest = flag.Int("history", 1_000_000, "events of the longest history that is measured; 10000000 for the longest that is of interest")

// curveSessions is the number of sessions of the histories of different lengths.
const curveSessions = 1000

// growth measures how starts, memory and the first calls into old sessions depend on the
// length of the history and on the number of sessions.
func growth(t *testing.T) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	add(row{Name: "load average before the growth rows", Durability: "none", Value: strings.Join(strings.Fields(string(load))[:3], " ")})
	o := harness.Options{Noop: true, Dir: t.TempDir()}
	harness.One(t, o).StopAll()
	started(t, o, "start after a clean stop, empty", "").StopAll()
	for events := 10_000; events <= *longest; events *= 10 {
		t.Run(fmt.Sprintf("%d events", events), func(t *testing.T) { behind(t, events, curveSessions) })
	}
	t.Run("ended sessions", ended)
	for _, sessions := range []int{1, 100_000} {
		events := min(*longest, 1_000_000)
		t.Run(fmt.Sprintf("%d sessions", sessions), func(t *testing.T) { behind(t, events, min(sessions, events/history.PerCall)) })
	}
}

// behind measures a mesh on a ledger with one written history.
func behind(t *testing.T, events, sessions int) {
	o := harness.Options{Noop: true, Dir: t.TempDir(), Within: time.Hour}
	name := func(what string) string { return fmt.Sprintf("%s, %d events, %d sessions", what, events, sessions) }
	start := func(what, budget string) *harness.Mesh { return started(t, o, name(what), budget) }
	m := harness.One(t, o)
	noop := func(session string) time.Duration { return noopTime(t, m, session) }
	noop("s-pattern")
	m.StopAll()
	began := time.Now()
	if _, err := history.Write(t.Context(), o.Dir, history.Shape{Events: events, Sessions: sessions}); err != nil {
		t.Fatal(err)
	}
	t.Logf("history of %d events written in %v", events, time.Since(began).Round(time.Millisecond))
	m = harness.One(t, o) // audit indexes the history and, within a second, signs a checkpoint over it
	time.Sleep(3 * time.Second)
	m.StopAll()

	m = start("start after a clean stop", "<= 1 s more than empty behind 1,000,000")
	time.Sleep(10 * time.Second) // free memory is returned to the operating system within five seconds
	_, rss := used(t, m)
	add(row{Name: name("memory after that start"), Durability: "process", Value: fmt.Sprintf("%d MiB RSS, %d MiB at most", rss>>20, peak(t, m)>>20), Budget: "<= 300 MiB behind 422,000"})
	firstCalls(name("first call into an active session"), min(sessions, 500), noop)
	m.Kill("binnacle")
	m = start("start after SIGKILL", "")
	nats, audit := size(t, filepath.Join(o.Dir, "nats")), size(t, filepath.Join(o.Dir, "audit"))
	add(row{Name: name("stored"), Durability: "process", Value: fmt.Sprintf("%d MiB in NATS, %d MiB in audit's folder", nats>>20, audit>>20)})
	time.Sleep(3 * time.Second)
	m.StopAll()
	m.LosePositions()
	m = start("start without positions of consumers", "<= 30 s behind 635,000")
	time.Sleep(3 * time.Second)
	m.StopAll()
	if err := os.RemoveAll(filepath.Join(o.Dir, "audit")); err != nil {
		t.Fatal(err)
	}
	start("start without audit's folder", "").StopAll()
}

// started starts a mesh and reports the time until it is ready, and the CPU time, which
// depends less on other load.
func started(t *testing.T, o harness.Options, name, budget string) *harness.Mesh {
	began := time.Now()
	m := harness.One(t, o)
	took := time.Since(began)
	ticks, _ := used(t, m)
	add(row{Name: name, Durability: "process", Value: fmt.Sprintf("%.2f s, %.2f s of CPU", took.Seconds(), float64(ticks)/100), Budget: budget})
	return m
}

// ended measures the first calls into sessions whose last events are far back, after a
// start.
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
	firstCalls(fmt.Sprintf("first call into an ended session, %d events, %d sessions", shape.Events, shape.Sessions), 500, noop)
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
// with the first calls into new ones.
func firstCalls(name string, n int, noop func(session string) time.Duration) {
	for range 200 { // warm up on a session of its own
		noop("s-warm")
	}
	var old, young []time.Duration
	for i := range n {
		old = append(old, noop(history.SessionName(i)))
		young = append(young, noop(fmt.Sprintf("s-new-%d", i)))
	}
	slices.Sort(old)
	slices.Sort(young)
	add(row{Name: name + ": a new one", Durability: "process", Clients: 1, P50us: us(young, .5), P99us: us(young, .99)})
	add(row{Name: name, Durability: "process", Clients: 1, P50us: us(old, .5), P99us: us(old, .99),
		Value: fmt.Sprintf("%d sessions, p50 %.1f times a new one", n, us(old, .5)/us(young, .5)), Budget: "<= 1.5 times"})
}

// peak returns the greatest resident memory that the mesh's process has had, in bytes.
func peak(t *testing.T, m *harness.Mesh) (n int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.PID("binnacle")))
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
