package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestTimingOfForeignIDs shows that the times of responses do not distinguish an id of
// another tenant from an id that never existed: the medians of 1,000 requests each differ
// by less than 10 percent in at least one of three rounds. The requests alternate, so that
// both are sent under the same load.
func TestTimingOfForeignIDs(t *testing.T) {
	m := harness.One(t, harness.Options{Noop: true})
	cli(t, m, "tenant", "create", "acme/shop/prod", "--admin", "ann")
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-work", "{}")
	if err != nil || r.Status != 200 {
		t.Fatal(r, err)
	}
	call, session := r.Header.Get("X-Binnacle-Call-Id"), r.Header.Get("X-Binnacle-Session-Id")
	ann := tenantMesh(t, m, shopProd, "ann")
	for path, ids := range map[string][2]string{
		"/api/v1/calls/ID":                        {call, neverWas["call"]},
		"/api/v1/sessions/ID/evidence":            {session, contract.SessionID("default", "no-such-actor", "s-none")},
		"/api/v1/proofgraph/sessions/ID/receipts": {session, contract.SessionID("default", "no-such-actor", "s-none")},
		"/api/v1/approvals/ID":                    {call, neverWas["waiting"]},
	} {
		t.Run(path, func(t *testing.T) {
			var ratios []float64
			for range 3 {
				var took [2][]time.Duration
				for i := range 2000 {
					at := strings.Replace(path, "ID", ids[i%2], 1)
					began := time.Now()
					r, err := ann.Do(t.Context(), "GET", at, "", "")
					took[i%2] = append(took[i%2], time.Since(began))
					if err != nil || r.Status != 404 {
						t.Fatalf("%s: %+v %v", at, r, err)
					}
				}
				a, b := median(took[0]), median(took[1])
				ratio := float64(a) / float64(b)
				ratios = append(ratios, ratio)
				t.Logf("foreign %s, absent %s: %.3f", a, b, ratio)
				if ratio > 0.9 && ratio < 1.1 {
					return
				}
			}
			t.Errorf("the medians differ by more than 10 percent in every round: %.3f", ratios)
		})
	}
}

// median returns the median of an unsorted sample, which it sorts.
func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
