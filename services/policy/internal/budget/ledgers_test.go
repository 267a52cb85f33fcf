package budget

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

// in returns the request of a call of a tenant.
func in(tenant, call string) limit.Request {
	r := judgeRequest(call)
	r.Facts.Tenant = tenant
	return r
}

// TestOrganizations shows that tenants of one organization share its limit and not their
// own, that a reservation that is requested before Run is called is made, that the outcome
// of a call settles nothing of another tenant's call with the same id, that the ledger of an
// organization ends when it is idle and runs again, and that another instance and a View can
// load the state that an instance saved.
func TestOrganizations(t *testing.T) {
	const a, b, org = "acme_web_prod", "acme_web_test", "_org-acme"
	own := func(tenant string) []guard.Limit {
		return []guard.Limit{{ID: tenant + ".l", Level: "agent", Measure: "calls", Max: 2, Window: "concurrent"}, {ID: "org", Level: "organization", Measure: "calls", Max: 3, Window: "concurrent"}}
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*idle+maxTest)
		defer func() { cancel(); time.Sleep(2 * patience) }()
		log := &flaky{Log: &memlog.Log{}}
		made := func(name string) *Ledgers {
			x := member(log, name, nil)
			x.tenants = fixed{"t": three, a: own(a), b: own(b)}
			return x
		}
		x := made("policy-1")
		early := make(chan string)
		go func() { // a reservation that is requested before Run
			f, err := allow(ctx, t, log, x, in(a, "c-0"))
			early <- fmt.Sprint(f.Refused, err)
		}()
		synctest.Wait()
		start(ctx, log, x)
		if got := <-early; got != "<nil>" {
			t.Fatal(got)
		}
		reserved := func() string {
			spent(x, "t")
			out := ""
			for _, tenant := range []string{"t", a, b} {
				for _, r := range rows(x, tenant) {
					out += fmt.Sprint(r.Account, "=", r.Reserved, " ")
				}
			}
			return out
		}
		for _, c := range []struct{ tenant, call, want string }{{"t", "c-1", ""}, {a, "c-1", ""}, {b, "c-1", ""}, {a, "c-3", contract.ReasonConcurrencyExceeded}, {b, "c-3", contract.ReasonConcurrencyExceeded}} {
			if f, err := allow(ctx, t, log, x, in(c.tenant, c.call)); f.Refused != c.want || err != nil {
				t.Errorf("%s in %s: %q, want %q (%v)", c.call, c.tenant, f.Refused, c.want, err)
			}
		}
		if got := reserved(); got != "l/agent:alice=1 acme_web_prod.l/agent:alice=2 org/organization:acme=3 acme_web_test.l/agent:alice=1 org/organization:acme=3 " {
			t.Error(got)
		}
		time.Sleep(2 * idle)
		x.mu.Lock()
		active := x.in(org).active
		x.mu.Unlock()
		if active {
			t.Error("the ledger of an idle organization runs")
		}
		end(t, log, b, "judge", "c-1", contract.Succeeded)
		end(t, log, "other_web_prod", "judge", "c-1", contract.Succeeded)
		if got := reserved(); got != "l/agent:alice=1 acme_web_prod.l/agent:alice=2 org/organization:acme=2 acme_web_test.l/agent:alice=0 org/organization:acme=2 " {
			t.Error("after the outcome of a call of b:", got)
		}
		if f, err := allow(ctx, t, log, x, in(b, "c-4")); f.Refused != "" || err != nil {
			t.Error("after an idle time:", f, err)
		}
		spent(x, "t")
		_, dump := x.Dump()
		if n := strings.Count(string(dump), "{\"tenant\":\"t\"}\n") + strings.Count(string(dump), "{\"tenant\":\"_org-acme\"}\n"); n != 2 {
			t.Errorf("%s", dump)
		}
		saved, at, err := x.Save(ctx)
		if last, _ := x.Dump(); err != nil || at != last {
			t.Fatal(at, last, err)
		}
		again, view := made("policy-2"), View{}
		if again.Load(saved) != nil || view.Load(saved) != nil {
			t.Fatal("what was saved cannot be loaded")
		}
		if _, got := again.Dump(); string(got) != string(dump) || string(view.Dump()) != string(dump) || folded(t, log) != string(dump) {
			t.Errorf("%s, %s and %s, want %s", got, view.Dump(), folded(t, log), dump)
		}
		if from, err := again.From(ctx); from != at+1 || err != nil {
			t.Error("the loaded instance reads from", from, err)
		}
		start(ctx, log, again)
		if f, err := again.Reserve(ctx, in(a, "c-9")); f.Refused != contract.ReasonConcurrencyExceeded || err != nil {
			t.Error("the loaded instance:", f, err)
		}
		for _, c := range []struct{ tenant, call string }{{"t", "c-1"}, {a, "c-0"}, {b, "c-4"}} { // drawn before the state was saved
			end(t, log, c.tenant, "judge", c.call, contract.Succeeded)
		}
		time.Sleep(time.Second)
		_, one := x.Dump()
		if _, two := again.Dump(); string(one) != folded(t, log) || string(two) != string(one) || string(one) == string(dump) {
			t.Errorf("after outcomes, the loaded instance has %s, the other one %s, want %s", two, one, folded(t, log))
		}
	})
}
