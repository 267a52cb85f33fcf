package evidence

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// step is one event of a session with its decoded data.
type step struct {
	e *contract.Event
	x data
}

// session returns the decoded events of a session, and the state that the trust and
// policy events of the whole ledger produce.
func (w *world) session(id string) (steps []step, sys *system) {
	w.t.Helper()
	src := w.source(id)
	system := make([][]byte, len(src.System))
	for i, s := range src.System {
		system[i] = s.Bytes
	}
	sys, err := foldSystem(system, w.root.KID, "t", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range src.Events {
		e, err := openEvent(s.Bytes)
		if err != nil {
			w.t.Fatal(err)
		}
		x, err := decode(e)
		if err != nil {
			w.t.Fatal(err)
		}
		steps = append(steps, step{e, x})
	}
	return steps, sys
}

// follow checks the steps in order and returns the first error.
func follow(steps []step, sys *system, session string) error {
	calls, tip := map[string]*callState{}, receipt.Genesis("t", session)
	for i := range steps {
		steps[i].x.check(sys.reg.At)
		if err := checkEvent(steps[i].e, &steps[i].x, calls, &tip, sys); err != nil {
			return err
		}
	}
	return nil
}

// TestCallRules breaks one rule of a call at a time, in an otherwise valid sequence of
// events, and checks the error. The numbers are indexes of the events: the first call is
// proposed (0), allowed (1), started (2) and recorded (3); the second call is proposed
// (4) and denied (5).
func TestCallRules(t *testing.T) {
	const proposed, allowed, started, recorded, denied = 0, 1, 2, 3, 5
	type change func(s []step, sys *system) []step
	drop := func(i int) change { return func(s []step, _ *system) []step { return slices.Delete(s, i, i+1) } }
	twice := func(i int) change {
		return func(s []step, _ *system) []step { return slices.Insert(s, i, s[i]) }
	}
	edit := func(f func(s []step)) change { return func(s []step, _ *system) []step { f(s); return s } }
	// both changes the call in the proposal and in the work item, so that only the
	// decision differs from it.
	both := func(f func(c *contract.Call)) change {
		return edit(func(s []step) { f(s[proposed].x.call); f(&s[allowed].x.allowed.Call) })
	}
	for name, c := range map[string]struct {
		change change
		want   string // expected part of the error; empty = accepted
	}{
		"as written":                  {edit(func([]step) {}), ""},
		"not yet recorded":            {drop(recorded), "does not follow the chain"},
		"proposed twice":              {twice(proposed), "call proposed twice"},
		"proposed under another id":   {edit(func(s []step) { s[proposed].x.call.ID = "c-x" }), "envelope names another call"},
		"proposed without an id":      {edit(func(s []step) { s[proposed].x.call.ID, s[proposed].e.CallID = "", "" }), "envelope names another call"},
		"not proposed":                {drop(proposed), "its call was never proposed"},
		"decided twice":               {twice(allowed), "not the one decision of policy"},
		"decided by another":          {edit(func(s []step) { s[allowed].e.Source = "gateway/gw1" }), "not the one decision of policy"},
		"decided after the outcome":   {func(s []step, _ *system) []step { return slices.Insert(s, recorded+1, s[allowed]) }, "not the one decision of policy"},
		"decided on another call":     {edit(func(s []step) { s[allowed].x.allowed.Call.Kind = "tool.rm" }), "decides on another call"},
		"allowed by a denial":         {edit(func(s []step) { s[allowed].x.allowed.Decision.Verdict = contract.Deny }), "does not address its executor"},
		"allowed without an intent":   {edit(func(s []step) { s[allowed].x.allowed.Decision.Intent = nil }), "does not address its executor"},
		"addressed to another":        {edit(func(s []step) { s[allowed].e.Target = "judge" }), "does not address its executor"},
		"a decision with other bytes": {edit(func(s []step) { s[allowed].x.allowed.Decision.Lamport++ }), "signature does not verify"},
		"a decision on other args":    {both(func(c *contract.Call) { c.Args.Commitment = "sha256:x" }), "decision is about another call"},
		"a decision on another kind":  {both(func(c *contract.Call) { c.Kind = "tool.rm" }), "decision is about another call"},
		"a decision on another tool":  {both(func(c *contract.Call) { c.Tool = "rm" }), "decision is about another call"},
		"an intent for the executor":  {both(func(c *contract.Call) { c.ReportWithin = 1000 }), "the intent's executor does not match the proposal"},
		"another actor":               {edit(func(s []step) { s[proposed].e.Actor = "mallory" }), "decision names another caller"},
		"another client":              {edit(func(s []step) { s[proposed].e.Client = "mallory" }), "decision names another caller"},
		"another session":             {edit(func(s []step) { s[proposed].e.Session = "s-x" }), "decision names another caller"},
		"another tenant":              {edit(func(s []step) { s[proposed].e.Tenant = "u" }), "decision names another caller"},
		"ceilings never activated":    {policies("p0"), "a policy that was never activated"},
		"rules never activated":       {policies("p1"), "a policy that was never activated"},
		"started before the decision": {edit(func(s []step) { s[allowed], s[started] = s[started], s[allowed] }), "started without a decision, or twice"},
		"started twice":               {twice(started), "started without a decision, or twice"},
		"started after the outcome":   {func(s []step, _ *system) []step { return slices.Insert(s, recorded+1, s[started]) }, "started without a decision, or twice"},
		"another call is started":     {edit(func(s []step) { s[started].x.started.CallID = "c-x" }), "starts another call, decision or intent"},
		"another decision is started": {edit(func(s []step) { s[started].x.started.DecisionID = "d-x" }), "starts another call, decision or intent"},
		"another intent is started":   {edit(func(s []step) { s[started].x.started.IntentID = "i-x" }), "starts another call, decision or intent"},
		"claimed by another":          {edit(func(s []step) { s[started].e.Source = "judge/judge-1" }), "claimed by judge, want session-runner"},
		"expired by the executor":     {edit(func(s []step) { s[started].e.Name = "start_expired" }), "claimed by session-runner, want policy"},
		"executed by the caller":      {edit(func(s []step) { s[started].x.started.ExecutedBy = contract.Caller }), "executed_by does not match the intent's executor"},
		"executed by another":         {edit(func(s []step) { s[started].x.started.ExecutedBy = "x" }), "executed_by does not match the intent's executor"},
		"never claimed":               {drop(started), "its recorder did not claim"},
		"claimed by policy":           {edit(func(s []step) { s[started].e.Name, s[started].e.Source = "start_expired", "policy/p" }), "its recorder did not claim"},
		"recorded twice":              {twice(recorded), "second outcome of one call"},
		"recorded without a decision": {drop(allowed), "started without a decision"},
		"decided again at the end":    {edit(func(s []step) { s[recorded].x.recorded.Decision = &s[allowed].x.allowed.Decision }), "second decision on one call"},
		"published by another":        {edit(func(s []step) { s[recorded].e.Source = "judge/judge-1" }), "published by another service than the one that signed it"},
		"another receipt":             {edit(func(s []step) { s[recorded].x.recorded.Receipt.Time = "x" }), "signature does not verify"},
		"another effect":              {edit(func(s []step) { s[recorded].x.recorded.Effect.Ended = "x" }), "effect does not match its digest"},
		"the denial comes first":      {func(s []step, _ *system) []step { return append(slices.Clone(s[4:]), s[:4]...) }, "does not follow the chain"},
		"a denial by another":         {edit(func(s []step) { s[denied].e.Source = "session-runner/x" }), "published by another service than the one that signed it"},
		"a denial with other bytes":   {edit(func(s []step) { s[denied].x.recorded.Decision.ReasonCode = "X" }), "signature does not verify"},
		"a denial without decision":   {edit(func(s []step) { s[denied].x.recorded.Decision = nil }), "no decision for it"},
		"a vote on no escalation": {func(s []step, _ *system) []step {
			return slices.Insert(s, started, step{s[allowed].e, data{approval: &contract.Approval{CallID: "c-1"}}})
		}, "a vote on a call that does not wait for one"},
		"an escalation too late": {func(s []step, _ *system) []step {
			return slices.Insert(s, started, step{s[allowed].e, data{escalated: &contract.Escalated{}}})
		}, "not the one escalation"},
		"an event of no rule": {func(s []step, _ *system) []step { return slices.Insert(s, started, step{s[allowed].e, data{}}) }, ""},
	} {
		w := newWorld(t)
		for e := range w.ledgerOfSystem() {
			w.store(e)
		}
		w.call("s-a", "c-1", true, false)
		w.call("s-a", "c-2", false, false)
		steps, sys := w.session("s-a")
		err := follow(c.change(steps, sys), sys, "s-a")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// policies returns a change that removes the activations of a layer.
func policies(layer string) func([]step, *system) []step {
	return func(s []step, sys *system) []step {
		for k := range sys.policies {
			if strings.HasPrefix(k.policy, layer) {
				delete(sys.policies, k)
			}
		}
		return s
	}
}

// TestDenialNeedsNoPolicy shows that a denial is valid without P0 and P1 policies, but
// not if it names an overlay that was never activated, and that for other verdicts every
// policy must have been activated.
func TestDenialNeedsNoPolicy(t *testing.T) {
	sys := newSystem("k")
	for _, a := range []contract.Activated{{Layer: "p0", Digest: "a"}, {Layer: "p1", Digest: "b"}, {Layer: "p1", Digest: "c"}, {Layer: "p2", Digest: "d"}} {
		if err := sys.activate(&contract.Event{Tenant: "t", Version: 2}, &a); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		verdict    string
		p0, p1, p2 string
		want       bool
	}{
		{contract.Allow, "a", "b", "", true}, {contract.Allow, "a", "b+c", "d", true}, {contract.Allow, "x", "b", "", false}, {contract.Allow, "a", "x", "", false},
		{contract.Allow, "a", "b+x", "", false}, {contract.Allow, "a", "b", "x", false}, {contract.Allow, "a", "", "", false}, {contract.Escalate, "a", "x", "", false},
		{contract.Deny, "", "", "", true}, {contract.Deny, "x", "x", "d", true}, {contract.Deny, "a", "b", "x", false}, {contract.Allow, "b", "a", "", false},
	} {
		d := &contract.Decision{Verdict: c.verdict, Policies: contract.PolicyDigests{P0: c.p0, P1: c.p1, P2: c.p2}}
		if sys.activated(d) != c.want {
			t.Errorf("%+v: %v", c, !c.want)
		}
	}
}

// TestSystemEvents breaks one rule of trust and policy events at a time, and checks the
// error.
func TestSystemEvents(t *testing.T) {
	for name, c := range map[string]struct {
		change func(e *contract.Event)
		want   string
	}{
		"as written":             {func(*contract.Event) {}, ""},
		"a key by another":       {func(e *contract.Event) { e.Source = "policy/p" }, "is not a system event"},
		"published as a revoked": {func(e *contract.Event) { e.Name = "key_revoked" }, "its document does not match its name"},
		"of another tenant":      {func(e *contract.Event) { e.Tenant = "u" }, "its document does not match its name"},
		"not canonical":          {func(e *contract.Event) { e.Data = append([]byte(" "), e.Data...) }, "json:"},
		"another event":          {func(e *contract.Event) { e.Name = "call_proposed" }, "is not a system event"},
	} {
		w := newWorld(t)
		sys := newSystem(w.root.KID)
		e := *w.system[0]
		c.change(&e)
		if err := sys.apply(&e, nil); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	w := newWorld(t)
	policy := w.system[len(w.system)-1]
	for name, c := range map[string]struct {
		change func(a *contract.Activated)
		want   string
	}{
		"as written":        {func(*contract.Activated) {}, ""},
		"another digest":    {func(a *contract.Activated) { a.Digest = "sha256:x" }, "bundle does not match its digest"},
		"erased":            {func(a *contract.Activated) { a.Bundle.Salt, a.Bundle.Text = "", "" }, ""},
		"another text":      {func(a *contract.Activated) { a.Bundle.Text = "x" }, "content does not match its commitment"},
		"encrypted, erased": {func(a *contract.Activated) { a.Bundle.Encryption = &contract.Encryption{} }, ""},
	} {
		var a contract.Activated
		if err := contract.Decode(policy.Data, &a); err != nil {
			t.Fatal(err)
		}
		c.change(&a)
		e, sys := *policy, newSystem(w.root.KID)
		e.Data = contract.Bytes(&a)
		err := sys.apply(&e, nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || sys.policies[policyOf{"", "p1" + a.Digest}] != (err == nil) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestEndsByEscalation shows that an outcome cannot rest on a decision that escalates,
// although policy signed the decision and the receipt of the denial. If BINNACLE_NODE is
// the path of node, the second verifier must reject the packs too.
func TestEndsByEscalation(t *testing.T) {
	for name, escalated := range map[string]bool{"without the escalation": false, "after the escalation": true} {
		w := sample(t, 1)
		w.escalated(func(*escalation) {})
		all := w.ledger
		steps, _ := w.session("s-e")
		n := len(all) - len(steps) + 1 // the proposal is the first event of the call
		if escalated {
			n++
		}
		w.ledger = all[:n]
		d := &steps[1].x.escalated.Decision
		delete(w.tips, "s-e")
		w.record("policy", steps[1].e, d, true, contract.Effect{CallID: d.CallID, EffectType: d.Kind, Ended: contract.Time(w.now), ErrorCode: contract.CodeDenied,
			InputDigest: d.ArgsDigest, Instance: "policy-1", Status: contract.Denied, Tool: d.Tool}, nil)
		pack := build(t, w.source("s-e"), w.keys["audit"])
		if _, err := Verify(pack, w.root.KID); err == nil || !strings.Contains(err.Error(), "its decision is not DENY") {
			t.Errorf("%s: %v", name, err)
		}
		if second := startSecond(t, w.root.KID); second != nil {
			if v := second.verify(t, pack); v.OK || !strings.Contains(v.Error, "its decision is not DENY") {
				t.Errorf("%s: the second verifier: %+v", name, v)
			}
		}
	}
}

// TestForeignRoot shows that revoking a key that has the use root but belongs to policy
// does not count as revoking the only root key: the pack verifies. If BINNACLE_NODE is
// the path of node, the second verifier must accept the pack too.
func TestForeignRoot(t *testing.T) {
	w := sample(t, 1)
	foreign := key(t, "foreign")
	for _, name := range []string{contract.EventKeyPublished, contract.EventKeyRevoked} {
		doc := trust.Publish(w.root, contract.TrustKey{Algorithm: "ed25519", KID: foreign.KID, Owner: "policy", PublicKey: base64.StdEncoding.EncodeToString(foreign.Public()),
			Revoked: name == contract.EventKeyRevoked, Tenant: "t", Uses: []string{contract.UseRoot}})
		w.store(w.put("provision", name, "trust", contract.Bytes(&doc), nil))
	}
	pack := build(t, w.source("s-a"), w.keys["audit"])
	if _, err := Verify(pack, w.root.KID); err != nil {
		t.Error(err)
	}
	if second := startSecond(t, w.root.KID); second != nil {
		if v := second.verify(t, pack); !v.OK {
			t.Errorf("the second verifier: %+v", v)
		}
	}
}

// TestEscalationRules breaks one rule of an escalated call at a time, and checks the
// error. The numbers are indexes of the call's events: it is proposed (0), escalated
// (1), voted on (2, 3), allowed (4), started (5) and recorded (6).
func TestEscalationRules(t *testing.T) {
	const escalated, first, settles, allowed = 1, 2, 3, 4
	for name, c := range map[string]struct {
		change func(s []step) []step
		want   string
	}{
		"as written":             {func(s []step) []step { return s }, ""},
		"escalated by another":   {func(s []step) []step { s[escalated].e.Source = "gateway/gw1"; return s }, "not the one escalation of this call by policy"},
		"escalated twice":        {func(s []step) []step { return slices.Insert(s, escalated, s[escalated]) }, "not the one escalation of this call by policy"},
		"escalated when allowed": {func(s []step) []step { return []step{s[0], s[allowed], s[escalated]} }, "not the one escalation of this call by policy"},
		"escalated when ended":   {func(s []step) []step { return append(s, s[escalated]) }, "not the one escalation of this call by policy"},
		"by a denial":            {func(s []step) []step { s[escalated].x.escalated.Decision.Verdict = contract.Deny; return s }, "its decision does not escalate"},
		"another call":           {func(s []step) []step { s[escalated].x.escalated.Call.Tool = "rm"; return s }, "its call differs from the one proposed"},
		"other bytes":            {func(s []step) []step { s[escalated].x.escalated.Decision.Lamport++; return s }, "signature does not verify"},
		"not escalated":          {func(s []step) []step { return slices.Delete(s, escalated, escalated+1) }, "a vote on a call that does not wait for one"},
		"a vote by another":      {func(s []step) []step { s[first].e.Source = "gateway/gw1"; return s }, "a vote on a call that does not wait for one"},
		"a vote on another":      {func(s []step) []step { s[first].x.approval.CallID = "c-x"; return s }, "a vote on a call that does not wait for one"},
		"a vote after the last":  {func(s []step) []step { s[first], s[settles] = s[settles], s[first]; return s }, "a vote on a call that does not wait for one"},
		"a vote when allowed":    {func(s []step) []step { return slices.Insert(s, allowed+1, s[first]) }, "a vote on a call that does not wait for one"},
		"a vote at the end":      {func(s []step) []step { return append(s, s[first]) }, "a vote on a call that does not wait for one"},
		"a vote not recorded":    {func(s []step) []step { return slices.Delete(s, first, first+1) }, "decision counts a vote of bob that is not recorded"},
		"no vote that settles":   {func(s []step) []step { s[settles].x.approval.Resolved = ""; return s }, "allowed before the escalation was settled"},
		"another vote":           {func(s []step) []step { s[settles].x.approval.Vote = contract.Refuse; return s }, "decision counts a vote of carol"},
		"another role":           {func(s []step) []step { s[settles].x.approval.Roles = nil; return s }, "decision counts a vote of carol"},
		"another approver":       {func(s []step) []step { s[settles].x.approval.Approver = "dave"; return s }, "decision counts a vote of carol"},
	} {
		w := sample(t, 1)
		w.escalated(func(*escalation) {})
		steps, sys := w.session("s-e")
		if len(steps) != 7 {
			t.Fatalf("%d events", len(steps))
		}
		err := follow(c.change(steps), sys, "s-e")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
