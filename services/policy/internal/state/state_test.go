package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

var noon = time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) string { return contract.Time(noon.Add(d)) }

// ledger builds a state from the events that a test supplies, with consecutive Lamport
// times.
type ledger struct {
	t        *testing.T
	st       States
	contents map[string][]byte // contents by commitment; nil = erased
	lamport  uint64
}

func newLedger(t *testing.T, keep bool) *ledger {
	l := &ledger{t: t, contents: map[string][]byte{}}
	l.st.Keep = keep
	l.st.Keys = func(string, string, string, uint64) ([]byte, error) { return nil, errors.New("no key") }
	l.st.Open = func(_ string, c *contract.Content) ([]byte, error) {
		b, ok := l.contents[c.Commitment]
		if !ok {
			return nil, errors.New("not stored")
		}
		if b == nil {
			return nil, contract.ErrErased
		}
		return b, nil
	}
	return l
}

// event applies one event; call is the id of its call, or "".
func (l *ledger) event(service, name, call string, data canon.Document) error {
	l.lamport++
	return l.st.Apply(&contract.Event{ID: fmt.Sprint("e-", l.lamport), Source: service + "/" + service + "-1", Name: name, CallID: call, Data: contract.Bytes(data), Lamport: l.lamport, Time: at(0)})
}

func (l *ledger) must(service, name string, data canon.Document) {
	l.t.Helper()
	if err := l.event(service, name, "", data); err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
}

// overlay activates or retires an overlay.
func (l *ledger) overlay(id string, retired bool, change func(*guard.Overlay)) error {
	o := guard.Overlay{ID: id, Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: "DENY_" + strings.ToUpper(id), Verdict: contract.Deny}}}
	if change != nil {
		change(&o)
	}
	body := contract.Bytes(&o)
	d := sign.Digest(body)
	if _, ok := l.contents[d]; !ok {
		l.contents[d] = body
	}
	return l.event("policy", contract.EventPolicyActivated, "", &contract.Activated{Bundle: contract.Content{Commitment: d}, Digest: d, Layer: "p2", Name: id, Retired: retired})
}

func (l *ledger) facts(change func(*guard.Facts)) (f guard.Facts) {
	f = guard.Facts{Actor: "alice", Kind: "tool.x", Now: at(0), Tenant: "t"}
	if change != nil {
		change(&f)
	}
	l.st.OfCell().Read(func(v *View) { v.AddFacts(&f, noon) })
	return f
}

// TestFacts shows which facts follow from governing events.
func TestFacts(t *testing.T) {
	l := newLedger(t, false)
	given := []struct {
		name string
		data canon.Document
	}{
		{events.RoleGrantedName, &events.RoleGranted{Principal: "alice", Role: "sec"}},
		{events.RoleGrantedName, &events.RoleGranted{Principal: "dana", Role: "ops"}},
		{events.DelegationGrantedName, &events.DelegationGranted{Delegate: "alice", Delegator: "dana", Expires: at(time.Hour), ID: "g-1", Kinds: []string{"tool.*"}, Scopes: []string{"tools:call"}}},
		{events.BreakGlassOpenedName, &events.BreakGlassOpened{Actor: "alice", Expires: at(time.Minute), ID: "b-1", Reason: "x"}},
		{events.BreakGlassOpenedName, &events.BreakGlassOpened{Actor: "dana", Expires: at(-govern.ReviewWithin - time.Hour), ID: "b-2", Reason: "x"}},
		{events.MeshFrozenName, &events.MeshFrozen{ID: "f-1", Reason: "x"}},
		{events.PrincipalSuspendedName, &events.PrincipalSuspended{Principal: "mallory", Reason: "x"}},
	}
	for _, g := range given {
		l.must("policy", g.name, g.data)
	}
	f := l.facts(nil)
	if strings.Join(f.Roles, "") != "sec" || f.BreakGlass != "b-1" || f.Frozen != "f-1" || f.Suspended || f.ReviewDue || f.Delegator != nil {
		t.Errorf("%+v", f)
	}
	f = l.facts(func(f *guard.Facts) { f.OnBehalfOf, f.Delegation = "dana", "g-1" })
	if f.BreakGlass != "" || !f.ReviewDue || f.DelegationBad != "" || strings.Join(f.Delegator.Roles, "") != "ops" || strings.Join(f.Delegator.Scopes, "") != "tools:call" {
		t.Errorf("%+v", f)
	}
	f = l.facts(func(f *guard.Facts) { f.OnBehalfOf, f.Delegation, f.Kind = "dana", "g-1", "llm.chat" })
	if f.DelegationBad != contract.ReasonDelegationScopeViolation || f.Delegator != nil || f.BreakGlass != "b-1" {
		t.Errorf("%+v", f)
	}
	if !l.facts(func(f *guard.Facts) { f.Actor = "mallory" }).Suspended || !l.facts(func(f *guard.Facts) { f.OnBehalfOf = "mallory" }).Suspended {
		t.Error("a suspension does not reach the call")
	}
	if l.st.OfCell().MayVote("alice") == nil || l.st.OfCell().EndedAt("alice") != "" {
		t.Error("alice votes, or her credentials have ended")
	}
}

// TestTruncation shows that a ledger_truncated event sets the fact Truncated, even if
// the gateway recorded it, and that an epoch that no root key opened does not clear it.
func TestTruncation(t *testing.T) {
	l := newLedger(t, false)
	l.must("gateway", contract.EventLedgerTruncated, &audit.LedgerTruncated{Checkpoint: "sha256:a"})
	if !l.facts(nil).Truncated {
		t.Error("an alarm of another service is none")
	}
	l.must("audit", contract.EventLedgerTruncated, &audit.LedgerTruncated{Checkpoint: "sha256:a"})
	l.must("provision", contract.EventLogEpochOpened, &events.MeshUnfrozen{ID: "sha256:a"}) // an epoch event without a valid signature
	if !l.facts(nil).Truncated {
		t.Error("an epoch that no root key opened ends the alarm")
	}
}

// TestPrices shows that prices and accepted labels come from events of the llm-router
// and not of the gateway, and that a model without an entry has the accepted labels of
// its provider.
func TestPrices(t *testing.T) {
	l := newLedger(t, false)
	prices := &llmrouter.PricesPublished{Version: "v", Models: []llmrouter.ModelPrice{{Model: "a/x", Input: 5}, {Model: "b/y", Input: 7}}, Sends: 3}
	accepted := &llmrouter.DataAccepted{Models: []llmrouter.ModelAccepts{{Accepts: []string{"*"}, Model: "a/"}, {Accepts: []string{"web"}, Model: "a/x"}}}
	l.must("gateway", llmrouter.PricesPublishedName, prices)
	l.must("gateway", llmrouter.DataAcceptedName, accepted)
	look := func() (found bool, in, sends int64, exact, provider, none string) {
		l.st.OfCell().Read(func(v *View) {
			p, ok := v.Price("b/y")
			found, in, sends = ok, p.Input, v.Sends()
			exact, provider, none = strings.Join(v.Accepts("a/x"), ""), strings.Join(v.Accepts("a/z"), ""), strings.Join(v.Accepts("c/z"), "")
		})
		return
	}
	if found, _, _, exact, provider, _ := look(); found || exact+provider != "" {
		t.Error("the gateway sets prices")
	}
	l.must("llm-router", llmrouter.PricesPublishedName, prices)
	l.must("llm-router", llmrouter.DataAcceptedName, accepted)
	if found, in, sends, exact, provider, none := look(); !found || in != 7 || sends != 3 || exact != "web" || provider != "*" || none != "" {
		t.Error(found, in, sends, exact, provider, none)
	}
	if dump := string(l.st.Dump()); !strings.Contains(dump, `"a/x"`) {
		t.Error(dump)
	}
}

// TestEscalations shows that a call waits until a vote that policy recorded settles it,
// which escalations are listed and overdue, and that escalations and votes that another
// service recorded are ignored.
func TestEscalations(t *testing.T) {
	l := newLedger(t, false)
	for i, call := range []string{"c-2", "c-1"} {
		d := contract.Decision{CallID: call, Facts: contract.Raw(`{}`), ReasonCode: contract.ReasonApprovalRequired}
		x := &contract.Escalated{Call: contract.Call{ID: call, OnBehalfOf: "dana"}, Decision: d, Expires: at(time.Duration(i) * time.Minute)}
		if err := l.event("policy", contract.EventEscalated, call, x); err != nil {
			t.Fatal(err)
		}
		if err := l.event("judge", contract.EventEscalated, "c-forged", x); err != nil {
			t.Fatal(err)
		}
	}
	list := l.st.OfCell().Escalations()
	if len(list) != 2 || list[0].CallID != "c-1" || list[0].OnBehalfOf != "dana" || list[0].Votes == nil {
		t.Fatalf("%+v", list)
	}
	if over := l.st.Overdue(at(time.Second)); len(over) != 1 || over[0].Event.CallID != "c-2" {
		t.Errorf("%+v", over)
	}
	vote := func(service, call, resolved string) {
		t.Helper()
		if err := l.event(service, contract.EventApprovalRecorded, call, &contract.Approval{Approver: "bob", CallID: call, Resolved: resolved, Vote: contract.Grant}); err != nil {
			t.Fatal(err)
		}
	}
	vote("judge", "c-1", "granted")
	vote("policy", "c-9", "granted")
	vote("policy", "c-1", "")
	if x, _, ok := l.st.OfCell().Escalation("c-1"); !ok || len(x.Votes) != 1 || !strings.Contains(string(l.st.Dump()), `{"escalated":"c-1","votes":1}`) {
		t.Errorf("%+v %s", x, l.st.Dump())
	}
	vote("policy", "c-1", "granted")
	if _, _, ok := l.st.OfCell().Escalation("c-1"); ok || l.st.OfCell().WaitingFor("c-1") != nil || l.st.OfCell().WaitingFor("c-2") == nil {
		t.Error("a settled call waits, or another does not")
	}
}

// TestMalformed checks that malformed events of two services other than policy are no
// error and leave the dump unchanged, live and in replay. If one were an error, policy
// would exit after every start.
func TestMalformed(t *testing.T) {
	for _, l := range []*ledger{newLedger(t, false), newLedger(t, true)} {
		before := l.st.Dump()
		for _, name := range []string{contract.EventToolRegistered, contract.EventToolRetired, contract.EventToolApproved, llmrouter.PricesPublishedName, llmrouter.DataAcceptedName,
			contract.EventPolicyActivated, contract.EventEscalated, contract.EventApprovalRecorded, contract.EventLedgerTruncated, contract.EventPrincipalSuspended, contract.EventTokenRevoked} {
			for _, service := range []string{"judge", "llm-router"} {
				if err := l.st.Apply(&contract.Event{ID: "e-x", Source: service + "/x-1", Name: name, Data: []byte(`{"x":[]}`)}); err != nil {
					t.Errorf("%s of %s: %v", name, service, err)
				}
			}
		}
		if !bytes.Equal(before, l.st.Dump()) {
			t.Error("the state has changed")
		}
	}
}

// TestDocuments shows that a malformed document is an error, and so is an erased one,
// except in replay. In replay, an erased document remains in the stack until it is
// retired, and a decision cannot be taken again if it names that document, or an overlay
// or tool that is not known, or if its facts are malformed.
func TestDocuments(t *testing.T) {
	live, replayed := newLedger(t, false), newLedger(t, true)
	for _, l := range []*ledger{live, replayed} {
		if err := l.overlay("a", false, nil); err != nil {
			t.Fatal(err)
		}
		if err := l.overlay("b", false, func(o *guard.Overlay) { o.Scope = "planet" }); err == nil {
			t.Error("a malformed overlay is in force")
		}
		for d := range l.contents {
			l.contents[d] = nil
		}
	}
	if err := live.overlay("a", false, nil); !errors.Is(err, contract.ErrErased) {
		t.Error("a live fold goes on without a document:", err)
	}
	if err := replayed.overlay("a", false, nil); err != nil {
		t.Error(err)
	}
	in := replayed.st.OfCell().InForce()
	if len(in) != 1 || in[0].Name != "a" || in[0].Body != nil {
		t.Errorf("%+v", in)
	}
	d := contract.Decision{CallID: "c-1", Facts: contract.Bytes(&guard.Facts{Kind: "tool.x", ToolDigest: "none"}), Policies: contract.PolicyDigests{P2: in[0].Digest}}
	e := &contract.Event{Name: contract.EventAllowed, Version: contract.VersionOf(contract.EventAllowed)}
	if _, err := redecide(&replayed.st, e, &d, []byte(`{}`), false); !errors.Is(err, contract.ErrErased) {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*contract.Decision){
		"never activated": func(d *contract.Decision) { d.Policies.P2 = "sha256:other" },
		"never registered": func(d *contract.Decision) {
			d.Policies.P2, d.Facts = "", contract.Bytes(&guard.Facts{ToolDigest: "sha256:other"})
		},
		"json": func(d *contract.Decision) { d.Facts = contract.Raw(`[]`) },
	} {
		x := d
		spoil(&x)
		if _, err := redecide(&replayed.st, e, &x, nil, false); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := replayed.overlay("a", true, nil); err != nil || len(replayed.st.OfCell().InForce()) != 0 {
		t.Error("a retired overlay is in force", err)
	}
}

// TestNames shows that the existing names are those of the catalog, those of governing
// events without revoked roles, and the given executors; that a client without a virtual
// key has no facts about one; and which events the state processes.
func TestNames(t *testing.T) {
	l := newLedger(t, false)
	l.must("judge", contract.EventToolRegistered, &contract.Tool{Executor: "judge", Kind: "judge.x", Tool: "judge.x", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`),
		Egress: []string{"h.example"}, Secrets: []contract.SecretGrant{{Name: "k"}}})
	l.must("policy", events.RoleGrantedName, &events.RoleGranted{Principal: "bob", Role: "ops"})
	l.must("policy", events.RoleGrantedName, &events.RoleGranted{Principal: "bob", Role: "old"})
	l.must("policy", events.RoleRevokedName, &events.RoleRevoked{Principal: "bob", Role: "old"})
	l.must("policy", events.VirtualKeyCreatedName, &events.VirtualKeyCreated{Actor: "carol", Digest: "d", ID: "k1"})
	k := l.st.OfCell().Names([]string{"audit"})
	for what, got := range map[string][]string{"judge.x": k.Kinds, "audit judge": k.Executors, "h.example": k.Hosts, "k": k.Secrets, "bob carol": k.Principals, "ops": k.Roles, "k1": k.Keys} {
		if strings.Join(got, " ") != what {
			t.Errorf("%v, want %s", got, what)
		}
	}
	var key *guard.KeyFact
	l.st.OfCell().Read(func(v *View) { key = v.Key(&guard.Facts{Client: "console"}, "") })
	if key != nil {
		t.Errorf("%+v", key)
	}
	if !Reads(events.RoleGrantedName) || !Reads(contract.EventEscalated) || Reads(contract.EventCallProposed) {
		t.Error("what the state reads is wrong")
	}
}

// redecide evaluates the call of a recorded decision again.
func redecide(st *States, e *contract.Event, d *contract.Decision, args []byte, explain bool) (stack.Evaluation, error) {
	b, c, err := st.Recall(e, d)
	if err != nil {
		return stack.Evaluation{}, err
	}
	c.Args, c.Explain = args, explain
	return stack.Evaluate(context.Background(), b, c), nil
}

// TestRetiredKept shows that States with Keep, as a replay has, return for a decision a document that
// it names and that was retired since.
func TestRetiredKept(t *testing.T) {
	l := newLedger(t, true)
	if err := l.overlay("a", false, nil); err != nil {
		t.Fatal(err)
	}
	d := contract.Decision{CallID: "c-1", Facts: contract.Bytes(&guard.Facts{Kind: "tool.x", ToolDigest: "none"}), Policies: contract.PolicyDigests{P2: l.st.OfCell().InForce()[0].Digest}}
	if err := l.overlay("a", true, nil); err != nil {
		t.Fatal(err)
	}
	e := &contract.Event{Name: contract.EventAllowed, Version: contract.VersionOf(contract.EventAllowed)}
	if b, _, err := l.st.Recall(e, &d); err != nil || len(b.Overlays) != 1 || b.Overlays[0].ID != "a" {
		t.Errorf("%+v, %v", b.Overlays, err)
	}
}
