package fault

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

// TestTable compares each row of the table with a line of text: whether the attempt is
// retried after the statuses 500 and 401, what the plan does next, the trigger, the key,
// the caller's status for a provider's 0, 400 and 500, and for one that is overloaded,
// whether the attempt is free if the provider did not, and did, accept the request, the
// attempt's status, and whether the provider's error is hidden.
func TestTable(t *testing.T) {
	want := map[string]string{
		RateLimited:         "again:yes next:0 rate_limit key:3 edge:429,429,429,429 free:true,false failed",
		Timeout:             "again:yes next:0 timeout key:2 edge:504,504,504,504 free:false,false failed",
		Unreachable:         "again:yes next:0 error key:2 edge:502,502,502,502 free:true,false failed",
		Cut:                 "again:yes next:0 error key:2 edge:502,502,502,502 free:false,false failed",
		Malformed:           "again:yes next:0 error key:2 edge:502,502,502,502 free:false,false failed",
		Upstream:            "again:yes next:0 error key:2 edge:502,502,502,503 free:true,false failed",
		Refused:             "again:no next:0 error key:1 edge:502,400,502,502 free:true,false failed",
		ModelNotFound:       "again:no next:0 error key:1 edge:404,404,404,404 free:true,false failed",
		CredentialInvalid:   "again:401 next:0 error key:4 edge:502,502,502,502 free:true,false failed hidden",
		CredentialMissing:   "again:no next:0 error key:0 edge:502,502,502,502 free:true,true failed",
		ProviderUnavailable: "again:no next:0 error key:0 edge:503,503,503,503 free:true,true failed",
		Unsupported:         "again:no next:0 error key:1 edge:502,400,502,502 free:true,false failed",
		OverBudget:          "again:no next:2 error key:0 edge:429,429,429,429 free:true,true failed",
		ContentBlocked:      "again:no next:1 error key:1 edge:400,400,400,400 free:false,false failed",
		InvalidInput:        "again:no next:0 error key:0 edge:400,400,400,400 free:true,true failed",
		NotFound:            "again:no next:0 error key:0 edge:404,404,404,404 free:true,true failed",
		ClientStalled:       "again:no next:1 error key:0 edge:502,502,502,502 free:false,false failed",
		Hedged:              "again:no next:1 error key:0 edge:502,502,502,502 free:false,false cancelled",
		Cancelled:           "again:no next:1 error key:0 edge:502,502,502,502 free:false,false cancelled",
		Internal:            "again:no next:0 error key:0 edge:502,502,502,502 free:false,false failed",
	}
	if len(Table) != len(want) {
		t.Errorf("%d rows, want %d", len(Table), len(want))
	}
	for i := range Table {
		r := &Table[i]
		again := map[[2]bool]string{{true, true}: "yes", {false, false}: "no", {false, true}: "401"}[[2]bool{r.Again(500), r.Again(401)}]
		got := fmt.Sprintf("again:%s next:%d %s key:%d edge:%d,%d,%d,%d free:%v,%v %s", again, r.Next, r.Trigger, r.Key,
			r.EdgeStatus(0, false), r.EdgeStatus(400, false), r.EdgeStatus(500, false), r.EdgeStatus(503, true), r.Free(false), r.Free(true), r.Status)
		if r.Hidden {
			got += " hidden"
		}
		if got != want[r.Code] {
			t.Errorf("%s:\n got %s\nwant %s", r.Code, got, want[r.Code])
		}
		if Of(r.Code) != r {
			t.Errorf("%s is in the table twice", r.Code)
		}
	}
}

// TestRows shows that each row has an explanation and valid values, and that Of returns
// the row of Internal for a code without a row.
func TestRows(t *testing.T) {
	for _, r := range Table {
		if len(strings.Fields(r.Means)) < 3 {
			t.Errorf("%s: it does not say what it means", r.Code)
		}
		if r.Trigger != route.RateLimit && r.Trigger != route.Timeout && r.Trigger != route.Error {
			t.Errorf("%s: no rule can name the trigger %q", r.Code, r.Trigger)
		}
		if r.Status != contract.Failed && r.Status != contract.Cancelled {
			t.Errorf("%s: status %q", r.Code, r.Status)
		}
		if r.Edge.As < 400 || r.Edge.As > 599 {
			t.Errorf("%s: a failure is answered with status %d", r.Code, r.Edge.As)
		}
		if r.Key == Resting && r.Trigger != route.RateLimit {
			t.Errorf("%s: a key rests, and no rule for rate limits applies", r.Code)
		}
	}
	if Of("unlisted").Code != Internal {
		t.Error("a code without a row is not internal")
	}
}

// TestConstants shows that each constant of a code has a row, so that a new code cannot
// be used without one, and that each row has a constant.
func TestConstants(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "fault.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes, rows := map[string]bool{}, map[string]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.GenDecl:
			if n.Tok == token.CONST {
				for _, s := range n.Specs {
					if v := s.(*ast.ValueSpec); v.Type == nil && len(v.Values) == 1 { // the constants of Retry, Next and other types have a type or no value
						codes[v.Names[0].Name] = true
					}
				}
			}
		case *ast.ValueSpec:
			if n.Names[0].Name == "Table" {
				for _, row := range n.Values[0].(*ast.CompositeLit).Elts {
					rows[row.(*ast.CompositeLit).Elts[0].(*ast.Ident).Name] = true
				}
			}
		}
		return true
	})
	if !maps.Equal(codes, rows) || len(rows) != len(Table) {
		t.Errorf("codes %v, rows %v of %d", slices.Sorted(maps.Keys(codes)), slices.Sorted(maps.Keys(rows)), len(Table))
	}
}

func TestByStatus(t *testing.T) {
	for status, want := range map[int]string{0: Upstream, 302: Upstream, 400: Refused, 401: CredentialInvalid, 403: CredentialInvalid, 404: ModelNotFound, 408: Timeout, 413: Refused, 422: Refused,
		424: Refused, 429: RateLimited, 500: Upstream, 502: Upstream, 503: Upstream, 504: Timeout, 529: Upstream} {
		if got := ByStatus(status); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
}
