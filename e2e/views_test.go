package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// foldedAlike checks that n instances of a service run, that each view of the service is the
// same in all of them, at the same position, and that replay rebuilds it. The mesh must have one
// process per instance.
func foldedAlike(t *testing.T, m *harness.Mesh, of string, n int) {
	t.Helper()
	c := m.Connect(t, services.Gateway)
	gateway := service(t, m, services.Gateway, 4)
	s, _ := services.Get(of)
	for _, v := range s.Views {
		q := query.ViewQuery.Of(of)
		q.Verb = v.Verb
		what := ""
		alike := func() bool {
			live, err := bus.Live(t.Context(), c, of)
			if what = fmt.Sprintf("%v run (%v)", live, err); err != nil || len(live) != n {
				return false
			}
			var first query.ViewDump
			for i, instance := range live {
				r, err := rpc.Do(t.Context(), gateway.In(contract.CellTenant).To(instance), q, query.ViewRequest{})
				if i == 0 {
					first = r.Value
				}
				if what = fmt.Sprintf("%s of %s: %+v, of %s %+v (%v)", v.Name, live[0], first, instance, r.Value, err); err != nil || r.Value != first || first.Position == 0 || first.Name != v.Name {
					return false
				}
			}
			return true
		}
		for end := time.Now().Add(30 * time.Second); !alike(); time.Sleep(200 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	compared(t, m, of)
}

// compared checks that replay rebuilds each view of a service and finds it equal.
func compared(t *testing.T, m *harness.Mesh, of string) {
	t.Helper()
	var rep struct {
		Equal bool
		Views []struct {
			Name        string
			Position    uint64
			Equal       bool
			NotCompared string `json:"not_compared"`
		}
	}
	out, err := m.CLI("replay", "--json")
	if err != nil || json.Unmarshal([]byte(out), &rep) != nil || !rep.Equal {
		t.Errorf("%v\n%s", err, out)
	}
	s, _ := services.Get(of)
	for _, v := range s.Views {
		found := false
		for _, r := range rep.Views {
			found = found || r.Name == v.Name && r.Equal && r.NotCompared == "" && r.Position > 0
		}
		if !found {
			t.Errorf("%s is not compared or not equal:\n%s", v.Name, out)
		}
	}
}
