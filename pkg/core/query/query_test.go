package query_test

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/query"
)

// TestAdmits checks for each scope whether it admits a query for a tenant that
// does not exist and is not that of the mesh itself, for the tenant of the
// mesh itself, for another tenant that exists, and for one that is both.
func TestAdmits(t *testing.T) {
	for scope, want := range map[query.Scope][4]bool{
		query.OfBoth:   {false, true, true, true},
		query.OfTenant: {false, false, true, true},
		query.OfCell:   {false, true, false, true},
	} {
		got := [4]bool{scope.Admits(false, false), scope.Admits(true, false), scope.Admits(false, true), scope.Admits(true, true)}
		if got != want {
			t.Errorf("scope %d: %v, want %v", scope, got, want)
		}
	}
}

// TestOf shows that Of sets the service in the query that it returns, and does not change its
// receiver.
func TestOf(t *testing.T) {
	q := query.Query[int, int]{Info: query.Info{Verb: "v"}}
	if got := q.Of("audit"); got.Service != "audit" || got.Verb != "v" || q.Service != "" {
		t.Errorf("%+v from %+v", got, q)
	}
	b := query.Bytes[int]{Info: query.Info{Verb: "v"}}
	if got := b.Of("audit"); got.Service != "audit" || got.Verb != "v" || b.Service != "" {
		t.Errorf("%+v from %+v", got, b)
	}
}
