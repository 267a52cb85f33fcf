//go:build bench

package bench

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// The benchmark compares contenders, such as the mesh, its floors and other gateways, in
// rounds, because the speed of a shared machine varies over minutes: each round measures
// every contender once, and every second round in the reverse order.
const (
	rounds = 5
	warm   = 300 // calls before each measurement, so that start-up cost is not measured
)

// contender is one way to make a call, such as the mesh or a floor, which compare measures.
type contender struct {
	name, durability, budget string
	// call makes one call and returns the time that is measured.
	call func(client int) (time.Duration, error)
	// used returns the CPU time that the contender has used and its resident memory in
	// bytes; nil if they are not known.
	used func(t *testing.T) (cpu time.Duration, rss int64)
}

// compared holds the figures of one contender, one value per round.
type compared struct{ p50, p99, rate, added, cpu, rss []float64 }

// compare measures the contenders with a number of concurrent clients, for the time span
// in each round, and adds a row for each of them. The first contender is the floor: the
// rows of the others name the time that they add to its p50.
func compare(t *testing.T, what string, clients int, span time.Duration, list []contender) []compared {
	t.Helper()
	took := make([]compared, len(list))
	for round := range rounds {
		for k := range list {
			i := k
			if round%2 == 1 {
				i = len(list) - 1 - k
			}
			took[i].measure(t, &list[i], clients, span)
		}
		for i := range took {
			took[i].added = append(took[i].added, took[i].p50[round]-took[0].p50[round])
		}
	}
	for i := range list {
		add(took[i].row(what, clients, &list[i], i == 0))
	}
	return took
}

// measure adds the figures of one round.
func (m *compared) measure(t *testing.T, c *contender, clients int, span time.Duration) {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
	}
	for range warm / clients {
		_, err := c.call(0)
		fail(err)
	}
	var cpu time.Duration
	if c.used != nil {
		cpu, _ = c.used(t)
	}
	var mu sync.Mutex
	var lat []time.Duration
	began := time.Now()
	_, _, err := load(clients, span, func(client int) error {
		d, err := c.call(client)
		mu.Lock()
		defer mu.Unlock()
		lat = append(lat, d)
		return err
	})
	fail(err)
	took := time.Since(began)
	slices.Sort(lat)
	m.p50, m.p99, m.rate = append(m.p50, us(lat, .5)), append(m.p99, us(lat, .99)), append(m.rate, float64(len(lat))/took.Seconds())
	if c.used != nil {
		after, rss := c.used(t)
		m.cpu, m.rss = append(m.cpu, float64((after-cpu).Microseconds())/float64(len(lat))), append(m.rss, float64(rss>>20))
	}
}

// row returns the medians of all rounds, with their spreads.
func (m *compared) row(what string, clients int, c *contender, floor bool) row {
	r := row{Name: what + ": " + c.name, Durability: c.durability, Clients: clients, Budget: c.budget, P50us: median(m.p50), P99us: median(m.p99), PerSecond: median(m.rate)}
	values := []string{"p50 " + spread(m.p50, "us"), "rate " + spread(m.rate, "/s")}
	if !floor {
		values = append(values, "added p50 "+figure(m.added, "us"))
	}
	if c.used != nil {
		values = append(values, figure(m.cpu, "us CPU per call"), figure(m.rss, "MiB RSS"))
	}
	r.Value = strings.Join(values, ", ")
	return r
}

// figure returns the median of the values with their spread and unit.
func figure(v []float64, unit string) string {
	return fmt.Sprintf("%.0f %s", median(v), spread(v, unit))
}

// spread returns the least and the greatest of the values with their unit.
func spread(v []float64, unit string) string {
	return fmt.Sprintf("[%.0f–%.0f] %s", slices.Min(v), slices.Max(v), unit)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// usedByMesh returns contender.used for all processes of a mesh.
func usedByMesh(m *harness.Mesh) func(*testing.T) (time.Duration, int64) {
	return func(t *testing.T) (time.Duration, int64) {
		ticks, rss := used(t, m)
		return time.Duration(ticks) * tick, rss
	}
}

// tick is the unit of CPU time in /proc.
const tick = 10 * time.Millisecond

// usedByProcess returns the CPU time and the resident memory of a process and, if children
// is set, of its child processes.
func usedByProcess(t *testing.T, pid int, children bool) (cpu time.Duration, rss int64) {
	t.Helper()
	pids := []int{pid}
	if children {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		for f := range strings.FieldsSeq(string(b)) {
			n, _ := strconv.Atoi(f)
			pids = append(pids, n)
		}
	}
	for _, pid := range pids {
		ticks, bytes := ofProcess(t, pid)
		cpu, rss = cpu+time.Duration(ticks)*tick, rss+bytes
	}
	return cpu, rss
}
