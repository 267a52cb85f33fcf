//go:build bench

package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
)

// The lengths of the sessions that lengths compares, in calls.
const (
	shortSession = 10
	longSession  = 100_000
)

// lengths measures calls of tool.noop into a session of longSession calls, each followed
// by a call into one of several sessions of shortSession to twice as many calls. It
// fails if the median time in the long session is more than 1.5 times that in the short
// ones.
func lengths(t *testing.T) {
	const n, others = 500, 50
	o := harness.Options{Noop: true, Dir: t.TempDir(), Within: time.Hour}
	m := harness.One(t, o)
	noop := func(session string) time.Duration { return noopTime(t, m, session) }
	noop("s-pattern")
	m.StopAll()
	if _, err := history.Write(t.Context(), o.Dir, history.Shape{Events: longSession * history.PerCall, Sessions: 1}); err != nil {
		t.Fatal(err)
	}
	m = harness.One(t, o)
	defer m.StopAll()
	short := func(i int) string { return fmt.Sprintf("s-short-%d", i%others) }
	for i := range shortSession * others {
		noop(short(i))
	}
	first := noop(history.SessionName(0))
	var in [2][]time.Duration
	for i := range n {
		in[0] = append(in[0], noop(history.SessionName(0)))
		in[1] = append(in[1], noop(short(i)))
	}
	for i, calls := range []int{longSession, shortSession} {
		slices.Sort(in[i])
		add(row{Name: fmt.Sprintf("call in a session of %d calls", calls), Durability: "process", Clients: 1, P50us: us(in[i], .5), P99us: us(in[i], .99)})
	}
	ratio := us(in[0], .5) / us(in[1], .5)
	add(row{Name: fmt.Sprintf("sessions of %d and %d calls", longSession, shortSession), Durability: "process",
		Value: fmt.Sprintf("p50 %.2f times in the long one; its first call after the start %v", ratio, first.Round(10*time.Microsecond)), Budget: "<= 1.5 times"})
	if ratio > 1.5 {
		t.Errorf("p50 in a session of %d calls is %.2f times that in one of %d", longSession, ratio, shortSession)
	}
}
