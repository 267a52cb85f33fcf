package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// rootKey returns the root key that ledger.openCell and ledger.ceilings use.
func rootKey(t *testing.T) *sign.Key {
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// factsIn returns the facts of a call of alice in a tenant.
func (l *ledger) factsIn(tenant string, change func(*guard.Facts)) (f guard.Facts) {
	f = guard.Facts{Actor: "alice", Kind: "tool.x", Now: at(0), Tenant: tenant}
	if change != nil {
		change(&f)
	}
	l.st.Of(tenant).Read(func(v *View) { v.AddFacts(&f, noon) })
	return f
}

// TestDumpOfCell shows that the dump has a line for the freeze, the prices and the accepted
// data if there are any, and no line otherwise.
func TestDumpOfCell(t *testing.T) {
	l := newLedger(t, false)
	if got := string(l.st.Dump()); got != "" {
		t.Errorf("the dump of an empty state is %q", got)
	}
	l.must("llm-router", llmrouter.DataAcceptedName, &llmrouter.DataAccepted{Models: []llmrouter.ModelAccepts{{Accepts: []string{"*"}, Model: "a/"}}})
	if got := string(l.st.Dump()); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"accepts"`) {
		t.Errorf("with accepted data: %q", got)
	}
	l.must("llm-router", llmrouter.PricesPublishedName, &llmrouter.PricesPublished{Version: "v7"})
	if got := string(l.st.Dump()); strings.Count(got, "\n") != 2 || !strings.Contains(got, `"v7"`) {
		t.Errorf("with prices: %q", got)
	}
	l.must("policy", events.MeshFrozenName, &events.MeshFrozen{ID: "f-1", Reason: "x"})
	if got := string(l.st.Dump()); strings.Count(got, "\n") != 3 || !strings.Contains(got, `{"frozen":"f-1"}`) {
		t.Errorf("frozen: %q", got)
	}
}

// TestOperatorFact shows that the facts of a call name its actor as an operator only if the
// call is in the cell's own tenant.
func TestOperatorFact(t *testing.T) {
	l := several(t)
	root := rootKey(t)
	o := &contract.Operator{Issued: at(0), Principal: "alice", SignerKID: root.KID}
	o.Sig = root.Sign(sign.DomainOperator, contract.Bytes(o))
	if err := l.at(cellOwn, "provision", contract.EventOperatorDelegated, o); err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string]bool{cellOwn: true, first: false, tenantA: false} {
		if got := l.factsIn(tenant, nil).Operator; got != want {
			t.Errorf("%s: %v", tenant, got)
		}
	}
	if l.factsIn(cellOwn, func(f *guard.Facts) { f.Actor = "bob" }).Operator {
		t.Error("bob is an operator")
	}
}

// TestDelegationFacts shows that a call that names a delegation or another principal must
// name both, and that the delegation must exist.
func TestDelegationFacts(t *testing.T) {
	l := newLedger(t, false)
	l.must("policy", events.DelegationGrantedName, &events.DelegationGranted{Delegate: "alice", Delegator: "dana", Expires: at(time.Hour), ID: "g-1", Kinds: []string{"tool.*"}, Scopes: []string{"tools:call"}})
	for _, c := range []struct {
		behalf, delegation string
		bad, delegator     bool
	}{{"", "", false, false}, {"dana", "", true, false}, {"", "g-1", true, false}, {"dana", "g-2", true, false}, {"dana", "g-1", false, true}} {
		f := l.facts(func(f *guard.Facts) { f.OnBehalfOf, f.Delegation = c.behalf, c.delegation })
		if (f.DelegationBad != "") != c.bad || (f.Delegator != nil) != c.delegator || f.Suspended {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// TestAlone shows that Alone returns true for the configured tenant until the cell is
// opened, unless it is the cell's own tenant, and that its calls cannot create tenants.
func TestAlone(t *testing.T) {
	l := newLedger(t, false)
	l.st.Configured = first
	alone := func(tenant string) (out bool) {
		l.st.Of(tenant).Read(func(v *View) { out = v.Alone() })
		return out
	}
	creates := func(f *guard.Facts) { f.Kind = "tenant.create" }
	if !alone(first) || !l.factsIn(first, creates).OutsideCell || l.factsIn(first, nil).OutsideCell {
		t.Error("before the cell is opened")
	}
	l.open()
	if alone(first) || alone(cellOwn) || l.factsIn(cellOwn, creates).OutsideCell {
		t.Error("after the cell was opened")
	}
	fresh := newLedger(t, false)
	fresh.st.Configured = cellOwn
	fresh.st.OfCell().Read(func(v *View) {
		if v.Alone() {
			t.Error("the cell's own tenant is alone")
		}
	})
}

// TestEpochEnds shows which opening of a log epoch ends the denial of every call.
func TestEpochEnds(t *testing.T) {
	root := rootKey(t)
	for name, c := range map[string]struct {
		service, lost, names string
		signed, ends         bool
	}{
		"of this checkpoint":       {"audit", "sha256:a", "sha256:a", true, true},
		"of another":               {"audit", "sha256:a", "sha256:b", true, false},
		"without a signature":      {"audit", "sha256:a", "sha256:a", false, false},
		"of none":                  {"audit", "sha256:a", "", true, false},
		"after another's alarm":    {"gateway", "sha256:a", "sha256:a", true, false},
		"of none, another's alarm": {"gateway", "sha256:a", "", true, true},
	} {
		l := several(t)
		if err := l.at(cellOwn, c.service, contract.EventLedgerTruncated, &audit.LedgerTruncated{Checkpoint: c.lost}); err != nil || !l.factsIn(first, nil).Truncated {
			t.Fatal(name, err)
		}
		e := contract.LogEpoch{Checkpoint: c.names, Epoch: 2, Reason: "x", Tenant: cellOwn}
		if c.signed {
			e = trust.SignEpoch(root, e)
		}
		if err := l.at(cellOwn, "provision", contract.EventLogEpochOpened, &e); err != nil || l.factsIn(first, nil).Truncated == c.ends {
			t.Errorf("%s: truncated %v, %v", name, !c.ends, err)
		}
	}
}

// TestLimitsOf shows the limits of a tenant with the ids that they have in accounts, which
// name the tenant only if it shares its budget ledger.
func TestLimitsOf(t *testing.T) {
	l := several(t)
	doc := contract.Bytes(&guard.Limits{Limits: []guard.Limit{{ID: "l", Level: "agent", Max: 1, Measure: "calls", Window: "day"}}})
	for _, tenant := range []string{first, tenantA} {
		if err := l.at(tenant, "policy", events.LimitsSetName, &events.LimitsSet{Limits: doc}); err != nil {
			t.Fatal(err)
		}
	}
	for tenant, want := range map[string]string{first: "l", tenantA: tenantA + ".l", tenantB: "", noOne: ""} {
		got := ""
		for _, x := range l.st.Limits(tenant) {
			got += x.ID
		}
		if got != want {
			t.Errorf("%s: %q, want %q", tenant, got, want)
		}
	}
}

// TestSecretsOfCredentials shows that the names for the consistency check include the
// secrets that the egress-broker adds to the requests of tools.
func TestSecretsOfCredentials(t *testing.T) {
	l := newLedger(t, false)
	l.must("judge", contract.EventToolRegistered, &contract.Tool{Executor: "judge", Kind: "judge.x", Tool: "judge.x", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`),
		EgressRules: []contract.EgressRule{{Host: "a.example", Mode: contract.EgressTerminate, Credential: &contract.EgressCredential{Secret: "token", Header: "Authorization"}}}})
	if got := fmt.Sprint(l.st.OfCell().Names(nil).Secrets); got != "[token]" {
		t.Error(got)
	}
}

// TestKeptTools shows that replay, which keeps every document, has a registered tool in its
// catalog too.
func TestKeptTools(t *testing.T) {
	for _, keep := range []bool{false, true} {
		l := newLedger(t, keep)
		l.must("judge", contract.EventToolRegistered, &contract.Tool{Executor: "judge", Kind: "judge.x", Tool: "judge.x", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)})
		if got := fmt.Sprint(l.st.OfCell().Names(nil).Kinds); got != "[judge.x]" {
			t.Errorf("keep %v: %s", keep, got)
		}
	}
}

// TestAccessFacts shows that the facts of a call compare the secrets of its tool with the tenant's
// access list, and that there are no such facts without a list.
func TestAccessFacts(t *testing.T) {
	l := newLedger(t, false)
	l.must("judge", contract.EventToolRegistered, &contract.Tool{Executor: "judge", Kind: "tool.x", Tool: "x", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`), Secrets: []contract.SecretGrant{{Name: "k"}}})
	facts := func() []guard.SecretFact {
		f := guard.Facts{Actor: "alice", Client: "-", Kind: "tool.x", Now: at(0), Tenant: "t", Tool: "x"}
		l.st.OfCell().AddSecrets(&f)
		return f.SecretAccess
	}
	if got := facts(); got != nil {
		t.Errorf("without a list: %+v", got)
	}
	l.must("policy", events.SecretAccessSetName, &events.SecretAccessSet{Access: contract.Bytes(&contract.SecretAccess{Default: contract.SecretDefaultDeny}), Change: "default_set"})
	if got := facts(); len(got) != 1 || got[0].Secret != "k" || got[0].Result != contract.AccessNoMatch {
		t.Errorf("with a list: %+v", got)
	}
}
