//go:build bench

package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
)

// sessions measures the memory of a NATS server whose ledger has a million sessions, or as
// many as -history if that is smaller. Each session has one call, whose events have four
// subjects. The mesh is started twice. During the first start, audit indexes the history,
// and the server holds the subjects of all blocks in memory while it searches the first
// message for each reader. The memory is measured again after the second start.
func sessions(t *testing.T) {
	n := min(*longest, 1_000_000)
	o := harness.Options{Noop: true, Dir: t.TempDir(), Within: time.Hour}
	m := harness.Processes(t, o)
	noopTime(t, m, "s-pattern")
	m.StopAll()
	if _, err := history.Write(t.Context(), o.Dir, history.Shape{Events: n * history.PerCall, Sessions: n}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	m = harness.Processes(t, o)
	_, rss := usedBy(t, m, "nats")
	add(row{Name: fmt.Sprintf("first start with %d sessions that audit has not read", n), Durability: "process",
		Value: fmt.Sprintf("%.0f s; NATS server %d MiB RSS", time.Since(began).Seconds(), rss>>20)})
	m.StopAll()
	began = time.Now()
	m = harness.Processes(t, o)
	defer m.StopAll()
	add(row{Name: fmt.Sprintf("start with %d sessions", n), Durability: "process", Value: fmt.Sprintf("%.1f s", time.Since(began).Seconds())})
	firstCalls(fmt.Sprintf("first call into an old session, %d sessions", n), 500, func(session string) time.Duration { return noopTime(t, m, session) })
	time.Sleep(10 * time.Second)
	_, rss = usedBy(t, m, "nats")
	_, all := used(t, m)
	add(row{Name: fmt.Sprintf("memory of the NATS server, %d sessions of four subjects", n), Durability: "process",
		Value: fmt.Sprintf("%d MiB RSS; %d MiB of all processes", rss>>20, all>>20), Budget: "<= 700 MiB for a million"})
}
