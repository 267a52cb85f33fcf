package execute

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// TestFenced shows that a call with draws from an allotment does not start before this instance
// has read the ledger up to the work; that it is recorded as cancelled, with the error code
// budget_fenced, and not run, if its allotment was closed before the work; that it is run if its
// allotment was closed after the work, or another allotment was closed; and that a call without
// draws starts at once.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tt := newTenantsTest(t)
		ran := 0
		tt.x.Handler = func(context.Context, *Work) Result { ran++; return Result{} }
		policy := &emit.Emitter{Log: tt.log, Tenant: "_org-x", Source: "policy/policy-1", Now: time.Now}
		closing := func(id string, seq uint64) eventlog.Entry {
			e := policy.New(contract.EventAllotmentClosed, "budget", []byte(`{"allotment":"`+id+`","now":"x"}`), nil)
			raw, err := e.Encode()
			if err != nil {
				t.Fatal(err)
			}
			return eventlog.Entry{Seq: seq, Subject: e.Subject(), Data: raw}
		}
		run := func(tenant, allotment, status, code string) {
			t.Helper()
			if tt.budget = nil; allotment != "" {
				tt.budget = &guard.BudgetFact{Accounts: []string{"l/agent:alice"}, Allotment: allotment, Draws: []guard.DrawFact{{Account: "l/agent:alice", Amount: 1}}}
			}
			d, _ := tt.deliver(tenant, 1)
			d.Seq = 10
			if err := tt.x.one(t.Context(), d); status == "" != errors.Is(err, errLag) || status != "" && err != nil {
				t.Errorf("%s: %v", tenant, err)
			}
			if s, c := tt.outcome(tenant); s != status || c != code {
				t.Errorf("%s: %s %s, want %s %s", tenant, s, c, status, code)
			}
		}
		run("free", "", contract.Succeeded, "")
		run("late", "al-open", "", "")
		tt.x.fence.Apply(closing("al-closed", 9))
		run("late", "al-open", "", "")
		tt.x.fence.Apply(closing("al-after", 11))
		run("late", "al-open", contract.Succeeded, "")
		run("after", "al-after", contract.Succeeded, "")
		run("closed", "al-closed", contract.Cancelled, contract.CodeBudgetFenced)
		if ran != 3 {
			t.Errorf("%d calls ran, want 3", ran)
		}
	})
}
