//go:build bench

package bench

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
)

// ledger is the folder that sessions uses instead of a temporary one.
var ledger = flag.String("ledger", "", "folder in which TestBench/sessions keeps its ledger, so that it can be measured again with other programs: -run TestBench/sessions/start")

// sessions measures the memory of the NATS server whose ledger has a million sessions, or as
// many as -history if that is smaller. Each session has one call, whose events have four
// subjects. The mesh is started twice: at the first start, every view is built from the written
// events. The memory at the second one is that of the server in use: after the first calls into
// old sessions, after calls of 16 clients into new ones, and after calls into old sessions of
// all blocks. With fewer sessions, sessions measures the memory after the second start only.
func sessions(t *testing.T) {
	n := min(*longest, 1_000_000)
	for _, fewer := range []int{1, 1000, 100_000} {
		if fewer < n {
			t.Run(fmt.Sprint(fewer), func(t *testing.T) {
				o := harness.Options{Noop: true, Dir: t.TempDir(), Within: time.Hour}
				unread(t, o, fewer)
				firstStart(t, o, fewer)
				m := served(t, o, fmt.Sprintf("start with %d sessions", fewer))
				memoryOfServer(t, m, fewer)
				m.StopAll()
			})
		}
	}
	o := harness.Options{Noop: true, Dir: *ledger, Within: time.Hour}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	t.Run("write", func(t *testing.T) { unread(t, o, n) })
	t.Run("first", func(t *testing.T) { firstStart(t, o, n) })
	t.Run("start", func(t *testing.T) { inUse(t, o, n) })
}

// unread writes a ledger of n sessions with one call each.
func unread(t *testing.T, o harness.Options, n int) {
	m := harness.Processes(t, o)
	noopTime(t, m, "s-pattern")
	m.StopAll()
	if _, err := history.Write(t.Context(), o.Dir, history.Shape{Events: n * history.PerCall, Sessions: n}); err != nil {
		t.Fatal(err)
	}
}

// firstStart measures the start at which every view is built from the events of n sessions.
func firstStart(t *testing.T, o harness.Options, n int) {
	served(t, o, fmt.Sprintf("first start with %d sessions that no view has read", n)).StopAll()
}

// memoryOfServer reports and records the memory of the NATS server 15 s after a start, when it
// has returned the memory that it does not use.
func memoryOfServer(t *testing.T, m *harness.Mesh, n int) {
	time.Sleep(15 * time.Second)
	add(row{Name: fmt.Sprintf("memory with %d sessions of four subjects, after the start", n), Durability: "process", Value: memoryByProcess(t, m) + "; " + loadAverage(t)})
	_, rss := usedBy(t, m, "nats")
	p := past{events: n * history.PerCall, sessions: n}
	p.point("memory of the NATS server", "MiB", float64(rss>>20))
	save(t)
}

// far is the number of old sessions that inUse chooses as far apart as possible.
const far = 100

// inUse measures a mesh whose ledger has n sessions and whose views have read them.
func inUse(t *testing.T, o harness.Options, n int) {
	m := served(t, o, fmt.Sprintf("start with %d sessions", n))
	defer m.StopAll()
	memory := func(when, budget string) {
		time.Sleep(15 * time.Second) // the server then returns the memory that it does not use
		add(row{Name: fmt.Sprintf("memory with %d sessions of four subjects, %s", n, when), Durability: "process", Value: memoryByProcess(t, m) + "; " + loadAverage(t), Budget: budget})
	}
	const budget = "server <= 700 MiB for a million"
	memoryOfServer(t, m, n)
	time.Sleep(settled)
	memory("after some minutes", budget)
	noop := func(session string) time.Duration { return noopTime(t, m, session) }
	// With -ledger, an earlier run may have made the first calls into some old sessions. A
	// random start makes it likely that this run uses others.
	first := rand.IntN(max(n/far, 1))
	firstCalls(t, fmt.Sprintf("first call into an old session near the others, %d sessions", n), 500, func(i int) string { return history.SessionName(first + i) }, noop)
	firstCalls(t, fmt.Sprintf("first call into an old session far from the others, %d sessions", n), far, func(i int) string { return history.SessionName(first + i*(n/far)) }, noop)
	_, rate, err := load(16, 5*span, func(i int) error {
		_, err := post("http://"+m.Addr+"/api/v1/packs/noop", m.Token, fmt.Sprintf("s-use-%d-%d", i, time.Now().UnixNano()), []byte(`{"n":1}`))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	add(row{Name: fmt.Sprintf("governed no-op into new sessions, with %d sessions", n), Durability: "process", Clients: 16, PerSecond: rate, Value: memoryByProcess(t, m)})
	memory("after these calls", budget)
	firstCalls(t, fmt.Sprintf("first calls into old sessions chosen at random, %d sessions", n), 5000, func(int) string { return history.SessionName(rand.IntN(n)) }, noop)
	memory("after calls in all blocks", "")
	time.Sleep(settled)
	memory("some minutes later", budget)
}

// served starts one process per service and reports the time until the mesh is ready, the
// CPU time, and the memory of each process then.
func served(t *testing.T, o harness.Options, name string) *harness.Mesh {
	began := time.Now()
	m := harness.Processes(t, o)
	took := time.Since(began)
	server, _ := usedBy(t, m, "nats")
	audit, _ := usedBy(t, m, "audit")
	all, _ := used(t, m)
	add(row{Name: name, Durability: "process", Value: fmt.Sprintf("%.1f s; CPU %.1f s, of which server %.1f s and audit %.1f s; %s; %s",
		took.Seconds(), float64(all)/100, float64(server)/100, float64(audit)/100, memoryByProcess(t, m), loadAverage(t))})
	return m
}

// memoryByProcess returns the resident memory of each process of a mesh and the greatest
// that the NATS server has had, as text.
func memoryByProcess(t *testing.T, m *harness.Mesh) string {
	names := slices.Sorted(slices.Values(m.Names()))
	parts := make([]string, len(names))
	for i, name := range names {
		_, rss := usedBy(t, m, name)
		parts[i] = fmt.Sprintf("%s %d", name, rss>>20)
	}
	return fmt.Sprintf("MiB RSS: %s; server at most %d", strings.Join(parts, ", "), peak(t, m.PID("nats"))>>20)
}
