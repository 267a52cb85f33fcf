package e2e

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestSuspendedFlood shows that a suspended tenant without a quota that sends 5,000 calls
// cannot make the ledger grow by more than a fixed number of denials per minute: every
// call gets 403 tenant_suspended, those that are not on the ledger are counted by a metric,
// and the calls of another tenant succeed meanwhile.
func TestSuspendedFlood(t *testing.T) {
	const flood, clients, perMinute = 5000, 500, 60
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Noop: true})
			m.WaitReady()
			createTenants(t, m)
			a, b := tenantMesh(t, m, shopProd, "ann"), tenantMesh(t, m, shopTest, "bea")
			noop := func(m *harness.Mesh) *harness.Response {
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "", "{}")
				if err != nil {
					t.Error(err)
					return &harness.Response{}
				}
				return r
			}
			noop(a)
			noop(b)
			cli(t, m, "tenant", "suspend", shopProd, "--reason", "attack")
			eventually(t, "the edge refuses the tenant", 20*time.Second, func() bool { return noop(a).Status == http.StatusForbidden })
			quiet := delays(t, b, func(n int) bool { return n < 200 })

			began := time.Now()
			done := make(chan struct{})
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for range flood / clients {
						if r := noop(a); r.Status != http.StatusForbidden || !strings.Contains(strings.ToLower(string(r.Body)), contract.CodeTenantSuspended) {
							t.Errorf("%d %s", r.Status, r.Body)
						}
					}
				})
			}
			go func() { wg.Wait(); close(done) }()
			busy := delays(t, b, func(int) bool {
				select {
				case <-done:
					return false
				default:
					return true
				}
			})
			took := time.Since(began)
			t.Logf("%d calls of the suspended tenant took %s; calls of the other tenant: %s before, %s meanwhile", flood, took.Round(time.Millisecond), quiet, busy)

			metrics, err := m.Do(t.Context(), "GET", "/metrics", "", "")
			if err != nil {
				t.Fatal(err)
			}
			refused := 0
			if found := regexp.MustCompile(`binnacle_quota_exceeded_total\{quota="suspended"\} (\d+)`).FindSubmatch(metrics.Body); found != nil {
				refused, _ = strconv.Atoi(string(found[1]))
			}
			cli(t, m, "tenant", "resume", shopProd, "--reason", "over")
			eventually(t, "the edge accepts the tenant again", 20*time.Second, func() bool { return noop(a).Status == http.StatusOK })
			recorded := 0
			eventually(t, "audit has indexed the denials", 20*time.Second, func() bool {
				r, err := a.Do(t.Context(), "GET", "/api/v1/search?reason="+contract.ReasonTenantSuspended+"&limit=1000", "", "")
				if err != nil || r.Status != http.StatusOK {
					return false
				}
				recorded = strings.Count(string(r.Body), "\n")
				return recorded+refused >= flood
			})
			most := perMinute * (2 + int(took/time.Minute))
			if recorded < 10 || recorded > most {
				t.Errorf("%d denials are on the ledger, want at most %d", recorded, most)
			}
			t.Logf("%d calls were refused at the edge, %d are on the ledger", refused, recorded)
		})
	}
}

// times holds quantiles of the durations of calls.
type times struct{ median, p99 time.Duration }

func (x times) String() string {
	return "median " + x.median.Round(10*time.Microsecond).String() + ", p99 " + x.p99.Round(10*time.Microsecond).String()
}

// delays makes calls of tool.noop one after another while more returns true for the number
// of calls so far, and returns their times. Each call must succeed.
func delays(t *testing.T, m *harness.Mesh, more func(n int) bool) times {
	t.Helper()
	var all []time.Duration
	for more(len(all)) {
		began := time.Now()
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "", "{}")
		if err != nil || r.Status != http.StatusOK {
			t.Fatalf("%v %+v", err, r)
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return times{all[len(all)/2], all[len(all)*99/100]}
}
