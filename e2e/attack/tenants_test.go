package attack

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// A tenant that does not exist, and one that is suspended.
const (
	noTenant  = "acme_attack_none"
	suspended = "acme_attack_held"
)

// The edge, policy and the executors each refuse calls of a tenant that does not exist or is
// suspended. The attack bypasses the edge with a gateway's identity, and policy with the identity
// and the signing key of policy. A decision for the original tenant that is forged in the same way
// has an effect, so the executor refuses the other decisions because of their tenants alone.
var _ = register("14 foreign and suspended tenants", func(t *testing.T, m *harness.Mesh) {
	foreign, err := m.CLI("token", "create", "--tenant", noTenant, "--actor", "admin", "--scope", "tools:call")
	if err != nil {
		t.Fatal(err)
	}
	must(t, as(t, m, strings.TrimSpace(foreign), "POST", "/api/v1/packs/noop", "", "{}"), 401, "")
	if m.NATS == "" {
		return // the embedded server has no listener; tests of packages policy and execute cover this
	}
	for _, args := range [][]string{{"tenant", "create", "acme/attack/held", "--admin", "ann"}, {"tenant", "suspend", suspended, "--reason", "attack"}} {
		if out, err := m.CLI(args...); err != nil {
			t.Fatal(out, err)
		}
	}
	must(t, as(t, m, mint(t, m, "tenants-14", "tools:call"), "POST", "/api/v1/packs/noop", "s-14", "{}"), 200, "")
	var proposal, allowed *contract.Event
	for _, e := range whole(t, m) {
		switch {
		case e.Session != harness.SessionID("tenants-14", "s-14"):
		case e.Name == contract.EventCallProposed:
			proposal = e
		case e.Name == contract.EventAllowed:
			allowed = e
		}
	}
	if proposal == nil || allowed == nil {
		t.Fatal("the call is not on the ledger")
	}
	gateway, policy := m.Connect(t, services.Gateway), m.Connect(t, services.Policy)
	for _, tenant := range []string{noTenant, suspended} {
		propose(t, gateway, proposal, tenant)
	}
	key := harness.SigningKey(t, filepath.Join(m.Dir, "keys", services.Policy+".sign"))
	for _, tenant := range []string{noTenant, suspended, "default"} {
		decide(t, policy, key, allowed, tenant)
	}
	within(t, 30*time.Second, "the decision for the original tenant has an effect", func() bool { return has(whole(t, m), "c-DECIDED-default", contract.EventEffectStarted, "") })
	within(t, 30*time.Second, "policy denies the call of the unknown tenant", func() bool {
		return has(whole(t, m), "c-PROPOSED-"+noTenant, contract.EventEffectRecorded, contract.ReasonTenantIsolation)
	})
	within(t, 30*time.Second, "policy denies the call of the suspended tenant", func() bool {
		return has(whole(t, m), "c-PROPOSED-"+suspended, contract.EventEffectRecorded, contract.ReasonTenantSuspended)
	})
	within(t, 30*time.Second, "the executor cancels the call of the suspended tenant", func() bool {
		return has(whole(t, m), "c-DECIDED-"+suspended, contract.EventEffectRecorded, contract.CodeTenantSuspended)
	})
	time.Sleep(4 * time.Second) // refused work is delivered eight times, which takes less than this
	for _, e := range whole(t, m) {
		switch {
		case e.Tenant == noTenant && e.Name == contract.EventEffectStarted:
			t.Errorf("an executor has claimed the call %s of %s", e.CallID, e.Tenant)
		case e.Tenant == suspended && e.Name == contract.EventEffectRecorded && strings.Contains(string(e.Data), `"status":"succeeded"`):
			t.Errorf("an executor has run the call %s of %s", e.CallID, e.Tenant)
		}
	}
})

// whole returns the events of the whole ledger.
func whole(t *testing.T, m *harness.Mesh) []*contract.Event {
	t.Helper()
	r := as(t, m, m.OperatorToken, "GET", "/api/v1/ledger", "", "")
	var out []*contract.Event
	for line := range strings.Lines(string(r.Body)) {
		e, err := contract.DecodeEvent([]byte(strings.TrimSuffix(line, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// has reports whether a call has an event with this name whose data contain text.
func has(events []*contract.Event, call, name, text string) bool {
	for _, e := range events {
		if e.CallID == call && e.Name == name && strings.Contains(string(e.Data), text) {
			return true
		}
	}
	return false
}

// propose publishes a copy of a proposal in another tenant, as the call
// c-PROPOSED-<tenant>.
func propose(t *testing.T, c *bus.Conn, like *contract.Event, tenant string) {
	t.Helper()
	var call contract.Call
	if err := contract.Decode(like.Data, &call); err != nil {
		t.Fatal(err)
	}
	e := *like
	call.ID, call.Deadline, call.IdemKey = "c-PROPOSED-"+tenant, contract.Time(time.Now().Add(time.Minute)), ""
	e.ID, e.CallID, e.Tenant, e.Time, e.Data = "p-"+call.ID, call.ID, tenant, contract.Time(time.Now()), contract.Bytes(&call)
	put(t, c, &e)
}

// decide publishes a copy of a decision in another tenant, as that of the call
// c-DECIDED-<tenant>, signed with policy's key.
func decide(t *testing.T, c *bus.Conn, key *sign.Key, like *contract.Event, tenant string) {
	t.Helper()
	var a contract.Allowed
	if err := contract.Decode(like.Data, &a); err != nil {
		t.Fatal(err)
	}
	id := "c-DECIDED-" + tenant
	d := &a.Decision
	a.Call.ID, d.CallID, d.ID, d.Tenant, d.KID = id, id, "d-"+id, tenant, key.KID
	d.Intent.CallID, d.Intent.ID, d.Intent.Expires = id, "i-"+id, contract.Time(time.Now().Add(time.Minute))
	d.Sig = ""
	d.Sig = key.Sign(sign.DomainDecision, contract.Bytes(d))
	e := *like
	e.ID, e.CallID, e.Tenant, e.Time, e.Data = d.ID, id, tenant, contract.Time(time.Now()), contract.Bytes(&a)
	put(t, c, &e)
}

// put publishes an event on the ledger.
func put(t *testing.T, c *bus.Conn, e *contract.Event) {
	t.Helper()
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.JS.PublishMsg(t.Context(), &nats.Msg{Subject: e.Subject(), Data: b}); err != nil {
		t.Fatal(err)
	}
}
