//go:build bench

package bench

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// The numbers of tenants and clients that tenants measures.
const (
	manyTenants  = 1000
	noisyClients = 64
	// quotaInFlight is the quota of the noisy tenant in the second measurement.
	quotaInFlight = 2
)

// tenants measures the memory, CPU time and start of an otherwise idle mesh with
// manyTenants tenants. It also measures by how much the calls of one client in a tenant
// slow down while noisyClients clients of another tenant make calls, without and with a
// quota of that other tenant.
func tenants(t *testing.T) {
	o := harness.Options{Noop: true, Dir: t.TempDir()}
	m := harness.One(t, o)
	time.Sleep(5 * time.Second)
	_, before := used(t, m)
	began := time.Now()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < manyTenants; i += 8 {
				doc := fmt.Sprintf(`{"kind":"tenant.create","args":{"organization":"org-%d","project":"shop","environment":"prod","admin":"ann"}}`, i)
				if _, err := post("http://"+m.Addr+"/api/v1/calls", m.OperatorToken, "s-tenants", []byte(doc)); err != nil {
					t.Error(i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	took := time.Since(began)
	_, after := used(t, m)
	add(row{Name: fmt.Sprintf("%d tenants created, 8 clients", manyTenants), Durability: "process", Clients: 8, PerSecond: manyTenants / took.Seconds(),
		Value: fmt.Sprintf("%.1f s; %d MiB RSS before, %d after; %s", took.Seconds(), before>>20, after>>20, loadAverage(t))})

	quiet, other := tenantToken(t, m, "org-1_shop_prod"), tenantToken(t, m, "org-2_shop_prod")
	fair(t, m, quiet, other, "")
	doc := fmt.Sprintf(`{"kind":"tenant.set_quota","args":{"tenant":"org-2_shop_prod","quota":{"in_flight":%d}}}`, quotaInFlight)
	if _, err := post("http://"+m.Addr+"/api/v1/calls", m.OperatorToken, "s-tenants", []byte(doc)); err != nil {
		t.Fatal(err)
	}
	fair(t, m, quiet, other, fmt.Sprintf(", with a quota of %d calls in flight", quotaInFlight))

	m.StopAll()
	began = time.Now()
	m = harness.One(t, o)
	defer m.StopAll()
	took = time.Since(began)
	time.Sleep(5 * time.Second)
	ticks, rss := used(t, m)
	time.Sleep(30 * time.Second)
	later, _ := used(t, m)
	add(row{Name: fmt.Sprintf("start and idle, %d tenants", manyTenants), Durability: "process",
		Value: fmt.Sprintf("%d ms until ready, %d MiB RSS, %.1f %% of one core over 30 s; %s", took.Milliseconds(), rss>>20, float64(later-ticks)/30, loadAverage(t)), Budget: "<= 200 MiB, <= 1 %"})
}

// fair measures the calls of one client of a tenant alone and while another tenant calls,
// alternately. what describes the quota in the names of the rows.
func fair(t *testing.T, m *harness.Mesh, quiet, other, what string) {
	const turns = 3
	url := "http://" + m.Addr + "/api/v1/packs/noop"
	var alone, beside []time.Duration
	measure := func(to *[]time.Duration) {
		lat, _, err := load(1, span, func(int) error {
			_, err := post(url, quiet, "s-quiet", []byte(`{"n":1}`))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		*to = append(*to, lat...)
	}
	var made noiseMade
	for range turns {
		measure(&alone)
		var wg sync.WaitGroup
		var n noiseMade
		var failed error
		wg.Go(func() { n, failed = noisy(noise{url, other}) })
		time.Sleep(time.Second)
		measure(&beside)
		wg.Wait()
		if failed != nil {
			t.Fatal(failed)
		}
		made.Calls += n.Calls
		made.Over += n.Over
	}
	slices.Sort(alone)
	slices.Sort(beside)
	add(row{Name: "governed no-op of a tenant, alone", Durability: "process", Clients: 1, P50us: us(alone, .5), P99us: us(alone, .99), Value: loadAverage(t)})
	add(row{Name: fmt.Sprintf("the same beside %d clients of a tenant%s", noisyClients, what), Durability: "process", Clients: 1, P50us: us(beside, .5), P99us: us(beside, .99),
		Value: fmt.Sprintf("p99 %.2f times; %d calls of the tenant, %d over its quota; %s", us(beside, .99)/us(alone, .99), made.Calls, made.Over, loadAverage(t)), Budget: "p99 <= 1.5 times"})
}

// tenantToken returns a token for calls of tools in a tenant.
func tenantToken(t *testing.T, m *harness.Mesh, tenant string) string {
	t.Helper()
	out, err := m.CLI("token", "create", "--tenant", tenant, "--actor", "ann", "--scope", "tools:call")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// loadAverage returns the machine's load average over the last minute, as text.
func loadAverage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	return "load average " + string(bytes.Fields(b)[0])
}
