//go:build bench

package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
)

// sessions measures the memory of the NATS server whose ledger has a million sessions, or
// as many as -history if that is smaller. Each session has one call, whose events have
// four subjects.
func sessions(t *testing.T) {
	n := min(*longest, 1_000_000)
	o := harness.Options{Noop: true, Dir: t.TempDir(), Within: time.Hour}
	m := harness.Processes(t, o)
	noopTime(t, m, "s-pattern")
	m.StopAll()
	if _, err := history.Write(t.Context(), o.Dir, history.Shape{Events: n * history.PerCall, Sessions: n}); err != nil {
		t.Fatal(err)
	}
	m = harness.Processes(t, o)
	defer m.StopAll()
	firstCalls(fmt.Sprintf("first call into an old session, %d sessions", n), 500, func(session string) time.Duration { return noopTime(t, m, session) })
	time.Sleep(10 * time.Second)
	_, rss := usedBy(t, m, "nats")
	_, all := used(t, m)
	add(row{Name: fmt.Sprintf("memory of the NATS server, %d sessions of four subjects", n), Durability: "process",
		Value: fmt.Sprintf("%d MiB RSS; %d MiB of all processes", rss>>20, all>>20), Budget: "<= 700 MiB for a million"})
}
