package recorded

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/draft"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

var noon = time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)

func key(t *testing.T, name string) *sign.Key {
	seed := sha256.Sum256([]byte(name))
	k, err := sign.NewKey(seed[:])
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// past applies events to a state. Decisions can be made between the events.
type past struct {
	t        *testing.T
	state    *State
	contents map[string][]byte
	lamport  uint64
}

func (p *past) event(service, name string, data canon.Document) {
	p.t.Helper()
	p.lamport++
	if !p.state.Reads(name) {
		p.t.Errorf("%s is not read", name)
	}
	if err := p.state.Apply(&contract.Event{ID: "e", Source: service + "/1", Tenant: "t", Name: name, Data: contract.Bytes(data), Lamport: p.lamport}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *past) activate(layer, name string, body []byte) {
	p.t.Helper()
	d := sign.Digest(body)
	p.contents[d] = body
	p.event("policy", contract.EventPolicyActivated, &contract.Activated{Bundle: contract.Content{Commitment: d}, Digest: d, Layer: layer, Name: name, Precedence: 1})
}

func overlay(reason string) []byte {
	return contract.Bytes(&guard.Overlay{ID: "o", Scope: "agent", Subject: "alice", Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: reason, Verdict: contract.Deny}}})
}

func newPast(t *testing.T) *past { return newPastWith(t, true) }

// newPastWith returns a past with ceilings, a bundle and a tool. If readable is false,
// every content counts as erased.
func newPastWith(t *testing.T, readable bool) *past {
	p := &past{t: t, contents: map[string][]byte{}}
	root := key(t, "root")
	p.state = NewState(func(kid, _, use string, _ uint64) ([]byte, error) {
		if kid != root.KID || use != contract.UseRoot {
			return nil, errors.New("unknown key")
		}
		return root.Public(), nil
	}, func(_ string, c *contract.Content) ([]byte, error) {
		if b := p.contents[c.Commitment]; b != nil && readable {
			return b, nil
		}
		return nil, contract.ErrErased
	})
	p.event("provision", contract.EventKeyPublished, &contract.TrustKey{KID: root.KID, Owner: "provision", Uses: []string{contract.UseRoot}})
	p.activate("p0", "", guard.SignP0(root, guard.Ceilings{StartWindowMS: 60_000, MaxCents: 1,
		Sandbox: contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "process", WallMS: 1}}))
	bundle, err := rego.Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"DENY\", \"reason_code\": \"DENY_ROLE\"} if \"out\" in input.roles\nelse := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_ALL\"}\n")}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.activate("p1", "b", bundle)
	p.event("judge", contract.EventToolRegistered, &contract.Tool{Executor: "judge", Kind: "tool.x", Tool: "x", InputSchema: contract.Raw(`{"type":"object"}`), OutputSchema: contract.Raw(`{}`)})
	return p
}

// decided makes a decision with the events applied so far, and returns it with the event
// that records it.
func (p *past) decided() (*contract.Event, *contract.Decision) {
	f := guard.Facts{Actor: "alice", Client: "-", Deadline: contract.Time(noon.Add(time.Minute)), Kind: "tool.x", Now: contract.Time(noon), Proposed: contract.Time(noon), Proposer: "gateway",
		Scopes: []string{}, Session: "s-1", Tenant: "t", Tool: "x"}
	eval := p.state.in.OfCell().Evaluate(context.Background(), stack.Call{ID: "c-1", Facts: f, Args: []byte(`{}`)})
	d := eval.Decide(1, key(p.t, "policy"))
	return &contract.Event{Name: contract.EventAllowed, Version: contract.VersionOf(contract.EventAllowed)}, &d
}

// TestRedecide shows that a recorded decision is taken again with the documents of its
// time, even if an overlay was activated later, and that this fails if a document is
// erased or the facts cannot be decoded.
func TestRedecide(t *testing.T) {
	p := newPast(t)
	e, d := p.decided()
	p.activate("p2", "o", overlay("DENY_LATER"))
	again := func() string {
		recalled, err := p.state.Recall(e, d)
		if err != nil {
			return err.Error()
		}
		v, r, hash, _ := recalled.Redecide(t.Context(), []byte(`{}`))
		if v != d.Verdict || hash != d.PolicyHash {
			t.Errorf("%s %s", v, hash)
		}
		return r
	}
	if got := again(); got != "RULE_ALL" {
		t.Error(got)
	}
	if _, err := p.state.Recall(e, &contract.Decision{Facts: contract.Raw(`[]`)}); err == nil {
		t.Error("a decision without facts is taken again")
	}
	gone := newPast(t)
	gone.event("policy", contract.EventPolicyActivated, &contract.Activated{Bundle: contract.Content{Commitment: "sha256:gone"}, Digest: "sha256:gone", Layer: "p2", Name: "o"})
	d.Policies.P2 = "sha256:gone"
	if _, err := gone.state.Recall(e, d); !errors.Is(err, contract.ErrErased) {
		t.Error(err)
	}
}

// TestSimulation shows that a simulation distinguishes the changes since a call was
// recorded from the changes that a candidate would cause. It omits overlays that have
// expired, uses the current roles, and rejects a candidate of an unknown layer and a
// tenant that does not exist.
func TestSimulation(t *testing.T) {
	p := newPast(t)
	_, d := p.decided()
	simulate := func(body []byte, at time.Time) string {
		t.Helper()
		s, err := NewSimulation(p.state, &draft.Document{Layer: "p2", Name: "o", Body: body}, "", at)
		if err != nil {
			t.Fatal(err)
		}
		now, would, err := s.Decide(t.Context(), d, []byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		return now.Reason + " " + would.Reason
	}
	if got := simulate(overlay("DENY_NEW"), noon); got != "RULE_ALL DENY_NEW" {
		t.Error(got)
	}
	p.activate("p2", "old", contract.Bytes(&guard.Overlay{ID: "old", Scope: "agent", Subject: "alice", Expires: contract.Time(noon.Add(time.Hour)),
		Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: "DENY_OLD", Verdict: contract.Deny}}}))
	if got := simulate(overlay("DENY_NEW"), noon); got != "DENY_OLD DENY_NEW" {
		t.Error(got)
	}
	if got := simulate(overlay("DENY_NEW"), noon.Add(2*time.Hour)); got != "RULE_ALL DENY_NEW" {
		t.Error("an overlay that has expired answers:", got)
	}
	p.event("policy", events.RoleGrantedName, &events.RoleGranted{Principal: "alice", Role: "out"})
	if got := simulate(overlay("DENY_NEW"), noon.Add(2*time.Hour)); got != "DENY_ROLE DENY_ROLE" {
		t.Error("the roles are not today's:", got)
	}
	if _, err := NewSimulation(p.state, &draft.Document{Layer: "p9"}, "", noon); err == nil {
		t.Error("a candidate of no layer is placed")
	}
	if _, err := NewSimulation(p.state, &draft.Document{Layer: "p2", Name: "o", Body: overlay("DENY_NEW")}, "nosuch", noon); err == nil {
		t.Error("a simulation in a tenant that does not exist is accepted")
	}
}

// TestSimulationOfTenants shows which candidates apply to the calls of another tenant than
// the one of the simulation: bundles of the cell's own tenant, and not overlays.
func TestSimulationOfTenants(t *testing.T) {
	p := newPast(t)
	_, d := p.decided()
	bundle, err := rego.Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"DENY\", \"reason_code\": \"DENY_NEW\"}\n")}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		layer, tenant, want string
		body                []byte
	}{
		{"p2", "", "DENY_NEW", overlay("DENY_NEW")},
		{"p2", "other", "RULE_ALL", overlay("DENY_NEW")},
		{"p1", "", "DENY_NEW", bundle},
		{"p1", "other", "DENY_NEW", bundle},
	} {
		s, err := NewSimulation(p.state, &draft.Document{Layer: c.layer, Name: "a", Body: c.body}, "", noon)
		if err != nil {
			t.Fatal(err)
		}
		of := *d
		of.Tenant = cmp.Or(c.tenant, d.Tenant)
		now, would, err := s.Decide(t.Context(), &of, []byte(`{}`))
		if err != nil || now.Reason != "RULE_ALL" || would.Reason != c.want {
			t.Errorf("%s for %s: %v %v %v", c.layer, c.tenant, now, would, err)
		}
	}
}

// TestSimulationErased shows that a simulation is refused with an error that names the
// document if the content of a document in force is erased, whatever its layer, and that
// a new decision is then a denial.
func TestSimulationErased(t *testing.T) {
	for layer, name := range map[string]string{"p0": "", "p1": "gone", "p2": "gone"} {
		p := newPast(t)
		_, d := p.decided()
		p.event("policy", contract.EventPolicyActivated, &contract.Activated{Bundle: contract.Content{Commitment: "sha256:gone"}, Digest: "sha256:gone", Layer: layer, Name: name, Precedence: 1})
		sim, err := NewSimulation(p.state, &draft.Document{Layer: "p2", Name: "o", Body: overlay("DENY_NEW")}, "", noon)
		if err == nil {
			_, _, err = sim.Decide(t.Context(), d, []byte(`{}`))
		}
		if !errors.Is(err, contract.ErrErased) || !strings.Contains(err.Error(), "sha256:gone") {
			t.Errorf("%s: %v", layer, err)
		}
		if _, again := p.decided(); again.Verdict != contract.Deny {
			t.Errorf("%s: %s by a stack with an erased document", layer, again.Verdict)
		}
	}
}

// TestErasedDump shows that the dump of a state is the same whether or not the contents
// of the documents in force are erased, since the live view was built before the
// erasure.
func TestErasedDump(t *testing.T) {
	live, gone := newPast(t), newPastWith(t, false)
	for _, p := range []*past{live, gone} {
		p.activate("p2", "o", overlay("DENY_O"))
	}
	if a, b := string(live.state.Dump()), string(gone.state.Dump()); a != b || strings.Count(a, `"layer"`) != 3 {
		t.Errorf("%s\n%s", a, b)
	}
}

// TestViews shows which events the views read, that an event with another name does not
// change the state, and that empty views have empty dumps.
func TestViews(t *testing.T) {
	p := newPast(t)
	before := string(p.state.Dump())
	if p.state.Reads(contract.EventCallProposed) || StartsReads(contract.EventCallProposed) || !StartsReads(contract.EventAllowed) {
		t.Error("what the views read is wrong")
	}
	if err := p.state.Apply(&contract.Event{Name: contract.EventCallProposed, Data: []byte(`x`)}); err != nil || string(p.state.Dump()) != before || !strings.Contains(before, `"layer":"p0"`) {
		t.Errorf("%v %s", err, p.state.Dump())
	}
	var b Budget
	var s Starts
	if _, lines := s.Dump(); len(b.Dump())+len(lines) != 0 {
		t.Error("empty views have lines")
	}
}
