package policy

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

var noon = time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)

func key(t testing.TB, name string) *sign.Key {
	h := sha256.Sum256([]byte(name))
	k, err := sign.NewKey(h[:])
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// world is a state that is built from events without a ledger.
type world struct {
	t        testing.TB
	st       state.States
	contents map[string][]byte
	lamport  uint64
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, contents: map[string][]byte{}}
	root := key(t, "root")
	w.st.Keep = true
	w.st.Keys = func(kid, owner, use string, _ uint64) ([]byte, error) {
		if kid != root.KID || use != contract.UseRoot {
			return nil, errors.New("unknown key")
		}
		return root.Public(), nil
	}
	w.st.Open = func(_ string, c *contract.Content) ([]byte, error) { return w.contents[c.Commitment], nil }
	return w
}

func (w *world) event(service, name string, data canon.Document) {
	w.t.Helper()
	w.lamport++
	e := &contract.Event{ID: fmt.Sprint("e-", w.lamport), Tenant: w.st.Configured, Source: service + "/" + service + "-1", Name: name, Data: contract.Bytes(data), Lamport: w.lamport}
	if err := w.st.Apply(e); err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
}

func (w *world) activate(layer, name string, precedence int64, body []byte) {
	w.t.Helper()
	d := sign.Digest(body)
	w.contents[d] = body
	w.event("policy", "policy_activated", &contract.Activated{Bundle: contract.Content{Commitment: d}, Digest: d, Layer: layer, Name: name, Precedence: precedence})
}

func (w *world) rego(name string, precedence int64, src string) {
	w.t.Helper()
	b, err := rego.Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\n" + src)}, "", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.activate("p1", name, precedence, b)
}

func box() *contract.Sandbox {
	return &contract.Sandbox{CPUMillis: 1000, MemoryMiB: 64, OutputBytes: 100, Pids: 8, Tier: "process", WallMS: 1000}
}

func (w *world) tool(name string, change func(*contract.Tool)) {
	w.t.Helper()
	t := contract.Tool{Class: "E0", Executor: "session-runner", Kind: "tool." + name, Tool: name, Version: "v1", Sandbox: box(),
		InputSchema: contract.Raw(`{"properties":{"n":{"type":"integer"}},"type":"object"}`), OutputSchema: contract.Raw(`{"type":"object"}`)}
	if change != nil {
		change(&t)
	}
	w.event("session-runner", "tool_registered", &t)
}

func (w *world) ceilings(change func(*guard.Ceilings)) {
	w.t.Helper()
	c := guard.Ceilings{ForbiddenKinds: []string{"tool.rm"}, EgressHosts: []string{"mail.example"}, MaxCents: 100, Sandbox: *box(), StartWindowMS: 60_000,
		Approvals: []guard.KindApproval{{Kinds: []string{"tool.pay"}, Rule: contract.ApprovalRule{Quorum: 1, TimeoutMS: 1000}}}}
	if change != nil {
		change(&c)
	}
	w.activate("p0", "", 0, guard.SignP0(key(w.t, "root"), c))
}

// usual returns a world with ceilings, the built-in bundle and a few tools.
func usual(t testing.TB) *world { return usualIn(t, "") }

// usualIn returns a world like usual, but the given tenant is the cell's own tenant.
func usualIn(t testing.TB, tenant string) *world {
	w := newWorld(t)
	w.st.Configured = tenant
	w.ceilings(nil)
	b, err := defaultBundle()
	if err != nil {
		t.Fatal(err)
	}
	w.activate("p1", "default", 1000, b)
	for name, change := range map[string]func(*contract.Tool){
		"echo": nil, "rm": nil, "pay": nil,
		"fetch": func(t *contract.Tool) { t.Labels = []string{"web"} },
		"e3":    func(t *contract.Tool) { t.Class = "E3" },
		"e4":    func(t *contract.Tool) { t.Class = "E4" },
		"login": func(t *contract.Tool) { t.Secrets = []contract.SecretGrant{{Name: "k"}} },
		"mail":  func(t *contract.Tool) { t.Egress = []string{"mail.example"} },
		"evil":  func(t *contract.Tool) { t.Egress = []string{"evil.example"} },
		"dear":  func(t *contract.Tool) { t.Reserve = &contract.Amounts{Cents: 101} },
		"bad":   func(t *contract.Tool) { t.InputSchema = contract.Raw(`{"$ref":"https://x.example/s"}`) },
		"nobox": func(t *contract.Tool) { t.Sandbox.Tier = "cardboard" },
	} {
		w.tool(name, change)
	}
	w.event("llm-router", "tool_registered", &contract.Tool{Executor: "llm-router", Kind: "llm.chat", Tool: "llm.chat", Version: "v1", InputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`), OutputSchema: contract.Raw(`{"type":"object"}`)})
	w.event("policy", "tool_registered", &contract.Tool{Executor: "policy", Kind: "policy.freeze", Tool: "policy.freeze", Version: "v1", InputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`), OutputSchema: contract.Raw(`{"type":"object"}`)})
	return w
}

func facts(tool string) guard.Facts {
	return guard.Facts{Actor: "alice", ArgsDigest: "sha256:a", Client: "-", Deadline: contract.Time(noon.Add(time.Minute)), Kind: "tool." + tool, Now: contract.Time(noon),
		Proposed: contract.Time(noon), Proposer: "gateway", Scopes: []string{"tools:call", "policy:admin"}, Session: "s-1", Tenant: "t", Tool: tool}
}

func (w *world) addFacts(f *guard.Facts) {
	w.st.OfCell().Read(func(v *state.View) { v.AddFacts(f, noon) })
}

func (w *world) limits() (limits []guard.Limit) {
	w.st.OfCell().Read(func(v *state.View) { limits = v.Limits() })
	return limits
}

// estimate returns the greatest amounts that an evaluated call can use.
func (w *world) estimate(eval *stack.Evaluation, args []byte) (a contract.Amounts) {
	w.st.OfCell().Read(func(v *state.View) {
		a = stack.Estimate(eval.Tool(), stack.LLMArgs(eval.Facts().Kind, args), v.Price, 1)
	})
	return a
}

// key returns the facts about the virtual key k1 for a call of an actor. model is the
// model that the call requests, or empty if it requests none.
func (w *world) key(actor, model string) (k *guard.KeyFact) {
	f := facts("echo")
	f.Client, f.Actor = "key/k1", actor
	w.st.OfCell().Read(func(v *state.View) { k = v.Key(&f, model) })
	return k
}

// digests returns the digests of the policies that apply to a call with these facts.
func (w *world) digests(f *guard.Facts) contract.PolicyDigests {
	s := w.st.OfCell().Stack()
	return s.Basis(w.st.Catalog.In(w.st.Cell()), f).Digests
}

// decide makes a complete decision without a network: facts, evaluation, limits and
// verdict. Empty args count as args that cannot be read. decide checks that the recorded
// decision can be taken again with the same result, and can be explained.
func (w *world) decide(f guard.Facts, args string) (verdict, reason string) {
	w.t.Helper()
	w.addFacts(&f)
	var raw []byte
	if args != "" {
		raw = []byte(args)
	}
	eval := w.st.OfCell().Evaluate(context.Background(), stack.Call{ID: "c-1", Facts: f, Args: raw})
	v := eval.Verdict()
	if limits := w.limits(); v.Verdict == contract.Allow && len(limits) > 0 {
		var book limit.State
		spent := events.BudgetChanged{Now: f.Now, Reserved: []events.Reserved{{CallID: "c-0", Session: "s", Charges: []events.Charge{
			{Account: "rate/agent:alice", Amount: 1, Window: "minute:2026-03-03T12:00:00.000Z"}, {Account: "ask/agent:bob", Amount: 1, Window: "minute:2026-03-03T12:00:00.000Z"},
			{Account: "wide/agent:carol", Amount: 1, Window: "concurrent"}, {Account: "day/agent:dave", Amount: 1, Window: "day:2026-03-03T00:00:00.000Z"}}}}}
		limit.Evolve(&book, &spent)
		_, got := limit.Decide(&book, func(string) []guard.Limit { return limits }, noon, []limit.Request{{Call: limit.Call{ID: "c-1"}, Facts: eval.Facts(), Amounts: w.estimate(&eval, raw)}}, nil)
		if len(got[0].Accounts) > 0 {
			eval.Charge(&got[0])
		}
	}
	d := eval.Decide(0, key(w.t, "policy"))
	e := &contract.Event{Name: "allowed", Version: contract.VersionOf("allowed")}
	second, err := redecide(&w.st, e, &d, raw, false)
	again, why, hash := second.Again()
	if err != nil || again != d.Verdict || why != d.ReasonCode || hash != d.PolicyHash {
		w.t.Errorf("decided again: %s %s instead of %s %s: %v", again, why, d.Verdict, d.ReasonCode, err)
	}
	w.explains(e, &d, raw)
	return d.Verdict, d.ReasonCode
}

// explains checks that an explanation ends with the decision, and that one of its parts
// has the same verdict and reason, unless the reason is that no policy is defined.
func (w *world) explains(e *contract.Event, d *contract.Decision, args []byte) {
	w.t.Helper()
	eval, err := redecide(&w.st, e, d, args, true)
	steps := eval.Steps()
	if err != nil || len(steps) < 2 {
		w.t.Errorf("%s: explained by %v, %v", d.ReasonCode, steps, err)
		return
	}
	last := steps[len(steps)-1]
	if last.Part != stack.PartDecision || last.Verdict != d.Verdict || last.Reason != d.ReasonCode {
		w.t.Errorf("decided %s %s, explained %+v", d.Verdict, d.ReasonCode, steps)
	}
	if !slices.ContainsFunc(steps[:len(steps)-1], func(s guard.Step) bool { return s.Verdict == d.Verdict && s.Reason == d.ReasonCode }) &&
		d.ReasonCode != contract.ReasonNoPolicyDefined { // no part of an explanation has this reason
		w.t.Errorf("no part of %+v answered %s %s", steps, d.Verdict, d.ReasonCode)
	}
}

// TestPrivilegedKinds shows that the built-in policy allows policy.freeze and
// tenant.suspend only with the scope of the kind, and never in a session that has read
// data from the web.
func TestPrivilegedKinds(t *testing.T) {
	w := usualIn(t, contract.CellTenant) // calls of other tenants that change tenants are denied before the policy is evaluated
	for kind, scope := range map[string]string{"policy.freeze": "policy:admin", "tenant.suspend": "cell:admin"} {
		w.event("policy", "tool_registered", &contract.Tool{Executor: "policy", Kind: kind, Tool: kind, Version: "v1", InputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`), OutputSchema: contract.Raw(`{"type":"object"}`)})
		for _, c := range []struct {
			scopes, labels []string
			want           string
		}{
			{[]string{scope}, nil, contract.ReasonRuleScopedCall},
			{[]string{"tools:call", "audit:read"}, nil, contract.ReasonMissingRequirement},
			{[]string{scope}, []string{"web"}, contract.ReasonTaintedPrivilegedInvokeDeny},
		} {
			f := facts("")
			f.Kind, f.Tool, f.Scopes, f.Labels = kind, kind, c.scopes, c.labels
			if v, reason := w.decide(f, `{}`); reason != c.want {
				t.Errorf("%s with %v and labels %v: %s %s, want %s", kind, c.scopes, c.labels, v, reason, c.want)
			}
		}
	}
}

// TestOneScope shows that the built-in policy requires exactly one scope for each of
// policy's tools and for each family of kinds, and none for those that are about the
// caller's own affairs.
func TestOneScope(t *testing.T) {
	w := usualIn(t, contract.CellTenant)
	known := map[string]bool{"approvals:vote": true, "vault:erase": true, "audit:read": true, "calls:decide": true}
	var kinds []string
	for _, tool := range tools {
		kinds = append(kinds, tool.Kind)
	}
	for _, k := range services.Kinds() {
		if known[k.Scope] = true; !k.Callers {
			kinds = append(kinds, k.Prefix+".x")
		}
	}
	own := []string{"policy.accept_invitation", "policy.approve_device", "policy.consent_key", "policy.end_login", "policy.grant_session", "policy.open_login", "policy.register_passkey", "policy.remove_passkey", "policy.renew_login", "policy.report_groups", "policy.revoke_session", "policy.withdraw_consent"}
	for _, kind := range append(kinds, "vault.destroy_content_key", "vault.erase", "vault.erase_subject", "vault.erase_tenant") {
		w.event("policy", "tool_registered", &contract.Tool{Executor: "policy", Kind: kind, Tool: kind, Version: "v1", InputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`), OutputSchema: contract.Raw(`{"type":"object"}`)})
		var passed []string
		for scope := range known {
			f := facts("")
			f.Kind, f.Tool, f.Scopes = kind, kind, []string{scope}
			if _, reason := w.decide(f, `{}`); reason != contract.ReasonMissingRequirement {
				passed = append(passed, scope)
			}
		}
		want := 1
		if slices.Contains(own, kind) {
			want = len(known)
		}
		if len(passed) != want {
			t.Errorf("%s passes with each of %v, want %d scopes", kind, passed, want)
		}
	}
}

// TestEveryReason shows that every reason code of the registry occurs in a decision with
// the registry's verdict, since the registry must not have codes that are not used, and
// that no other reason code occurs.
func TestEveryReason(t *testing.T) {
	seen := map[string]string{}
	try := func(w *world, f guard.Facts, args string) {
		t.Helper()
		v, r := w.decide(f, args)
		seen[r] = v
	}
	with := func(tool string, change func(*guard.Facts)) guard.Facts {
		f := facts(tool)
		change(&f)
		return f
	}
	w := usual(t)
	try(w, facts("echo"), `{}`) // an ALLOW with the reason RULE_SCOPED_CALL
	for _, tool := range []string{"rm", "pay", "evil", "dear", "bad", "nobox", "nosuch"} {
		try(w, facts(tool), `{}`)
	}
	try(w, facts("echo"), `{"n":"x"}`)
	try(w, facts("echo"), `{"m":1}`)
	try(w, facts("echo"), ``)
	try(w, with("echo", func(f *guard.Facts) { f.Scopes = nil }), `{}`)
	try(w, with("t\u0435st", func(*guard.Facts) {}), `{}`)
	try(w, with("a b", func(*guard.Facts) {}), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.ReportWithin = guard.MaxReportWithin.Milliseconds() + 1 }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.MeshTenant = "other" }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.TenantSuspended = true }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.Tenant = contract.CellTenant }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.Proposer = "judge" }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.SessionOwner = "bob" }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.Unverified = true }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.Revoked = true }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.Key = &guard.KeyFact{ID: "k", Fault: contract.ReasonKeyNotInPerson} }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.Key = &guard.KeyFact{ID: "k", Fault: contract.ReasonKeyKindNotAllowed} }), `{}`)
	w.event("policy", events.PrincipalSuspendedName, &events.PrincipalSuspended{Principal: "mallory", Reason: "x"})
	try(w, with("echo", func(f *guard.Facts) { f.Actor = "mallory" }), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.Now = contract.Time(noon.Add(time.Hour)) }), `{}`)
	for _, c := range []struct{ tool, label string }{{"e4", "web"}, {"login", "web"}, {"mail", "secret"}, {"mail", "web"}, {"e3", "web"}} {
		try(w, with(c.tool, func(f *guard.Facts) { f.Labels = []string{c.label} }), `{}`)
	}
	try(w, with("", func(f *guard.Facts) { f.Kind, f.Tool, f.Labels = "policy.freeze", "policy.freeze", []string{"web"} }), `{}`)
	try(w, with("", func(f *guard.Facts) {
		f.Kind, f.Tool, f.Labels, f.Accepts, f.Scopes = "llm.chat", "llm.chat", []string{"secret", "user_file"}, []string{"user_file"}, []string{"llm:call"}
	}), `{}`)
	try(w, with("echo", func(f *guard.Facts) { f.OnBehalfOf = "dana" }), `{}`)
	w.event("policy", events.DelegationGrantedName, &events.DelegationGranted{Delegate: "alice", Delegator: "dana", Expires: contract.Time(noon.Add(time.Hour)), ID: "g-1", Kinds: []string{"tool.mail"}})
	try(w, with("echo", func(f *guard.Facts) { f.OnBehalfOf, f.Delegation = "dana", "g-1" }), `{}`)

	// Reasons about approvals: granted, denied and expired ones, break-glass, and a
	// break-glass grant whose review is overdue.
	vote := guard.ApprovalFact{Approver: "bob", EventID: "e", Roles: []string{guard.DefaultRole}, Vote: contract.Grant}
	for _, resolution := range []string{"granted", "denied", "timed_out"} {
		try(w, with("pay", func(f *guard.Facts) {
			f.Resolution, f.Resolved, f.Approvals = resolution, f.Now, []guard.ApprovalFact{vote}
		}), `{}`)
	}
	w.event("policy", events.BreakGlassOpenedName, &events.BreakGlassOpened{Actor: "alice", Expires: contract.Time(noon.Add(time.Minute)), ID: "b-1", Reason: "x"})
	try(w, facts("pay"), `{}`)
	w = usual(t)
	w.event("policy", events.BreakGlassOpenedName, &events.BreakGlassOpened{Actor: "alice", Expires: contract.Time(noon.Add(-govern.ReviewWithin - time.Hour)), ID: "b-1", Reason: "x"})
	try(w, facts("echo"), `{}`)

	// Reasons about limits.
	w = usual(t)
	w.event("policy", events.LimitsSetName, &events.LimitsSet{Limits: contract.Bytes(&guard.Limits{Limits: []guard.Limit{
		{ID: "rate", Level: "agent", Subject: "alice", Measure: "calls", Max: 1, Window: "minute"}, {ID: "ask", Level: "agent", Subject: "bob", Measure: "calls", Max: 1, Window: "minute", OnExceed: "escalate"},
		{ID: "wide", Level: "agent", Subject: "carol", Measure: "calls", Max: 1, Window: "concurrent"}, {ID: "day", Level: "agent", Subject: "dave", Measure: "calls", Max: 1, Window: "day"}}})})
	for _, who := range []string{"alice", "bob", "carol", "dave"} {
		try(w, with("echo", func(f *guard.Facts) { f.Actor = who }), `{}`)
	}
	try(w, with("echo", func(f *guard.Facts) {
		f.Budget, f.Actor = &guard.BudgetFact{Accounts: []string{}, Refused: contract.ReasonBudgetError}, "erin"
	}), `{}`)

	// Reasons about virtual keys, and about a price that is not known.
	w = usual(t)
	w.event("policy", events.VirtualKeyCreatedName, &events.VirtualKeyCreated{Actor: "alice", Digest: "sha256:x", ID: "k1", Models: []string{"openai/*"}, Scopes: []string{"llm:call"}})
	for _, model := range []string{"openai/good", "vllm/local"} {
		f := facts("echo")
		f.Key = w.key("alice", model)
		try(w, f, `{}`)
	}
	if f := w.key("bob", ""); f.Fault != contract.ReasonKeyInvalid {
		t.Error("another's key works")
	}
	w.event("policy", events.VirtualKeyRevokedName, &events.VirtualKeyRevoked{ID: "k1", Reason: "x"})
	try(w, with("echo", func(f *guard.Facts) { f.Key = w.key("alice", "") }), `{}`)
	try(w, with("echo", func(f *guard.Facts) {
		f.Budget = &guard.BudgetFact{Accounts: []string{}, Refused: contract.ReasonPriceUnknown}
	}), `{}`)

	// Reasons about tools: one that has changed and one that was never approved.
	w = usual(t)
	w.tool("echo", func(t *contract.Tool) { t.Description = "another" })
	try(w, facts("echo"), `{}`)
	w.ceilings(func(c *guard.Ceilings) { c.ExplicitTools = true })
	try(w, facts("fetch"), `{}`)

	// The access list of secrets denies another caller than the one whom it permits.
	w = usual(t)
	w.tool("vaulted", func(t *contract.Tool) { t.Secrets = []contract.SecretGrant{{Name: "token"}} })
	w.event("policy", events.SecretAccessSetName, &events.SecretAccessSet{Change: "granted", Access: contract.Bytes(&contract.SecretAccess{Default: contract.SecretDefaultIntent, Listed: []string{"token"},
		Entries: []contract.SecretEntry{{ID: "sa-1", Secret: "token", Subject: "alice", Client: "*", Tool: "*"}}})})
	for who, want := range map[string]string{"alice": contract.AccessAllowed, "bob": contract.AccessNoMatch} {
		f := with("vaulted", func(f *guard.Facts) { f.Actor = who })
		w.st.OfCell().AddSecrets(&f)
		if len(f.SecretAccess) != 1 || f.SecretAccess[0].Result != want {
			t.Errorf("%s: %+v, want %s", who, f.SecretAccess, want)
		}
		try(w, f, `{}`)
	}

	// Reasons about policies: missing, failing and narrowing ones, a frozen mesh, and a
	// truncated ledger.
	w = usual(t)
	w.activate("p2", "o", 0, contract.Bytes(&guard.Overlay{ID: "o", Scope: "agent", Subject: "alice", Only: []string{"llm.*"}}))
	try(w, facts("echo"), `{}`)
	w = newWorld(t)
	w.ceilings(nil)
	w.tool("echo", nil)
	try(w, facts("echo"), `{}`)
	w.rego("r", 1, `answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if 1 / (count(input.args) - 0) > 0`)
	try(w, facts("echo"), `{}`)
	w.event("policy", events.MeshFrozenName, &events.MeshFrozen{ID: "f-1", Reason: "x"})
	try(w, facts("echo"), `{}`)
	w.event("audit", "ledger_truncated", &events.MeshUnfrozen{})
	try(w, facts("echo"), `{}`)

	for code, info := range contract.Reasons {
		if v, ok := seen[code]; !ok {
			t.Errorf("nothing emits %s", code)
		} else if v != info.Verdict {
			t.Errorf("%s came with %s, the registry says %s", code, v, info.Verdict)
		}
	}
	for code := range seen {
		if _, ok := contract.Reasons[code]; !ok {
			t.Errorf("%s is not in the registry", code)
		}
	}
}

// TestPrecedence shows that the first bundle that returns a verdict determines the answer
// of layer P1, that an overlay can narrow it in its session until the overlay expires,
// and that the digests name all bundles and the overlay.
func TestPrecedence(t *testing.T) {
	w := usual(t)
	w.rego("late", 2000, `answer := {"verdict": "DENY", "reason_code": "DENY_LATE"}`)
	if _, r := w.decide(facts("echo"), `{}`); r != "RULE_SCOPED_CALL" {
		t.Error(r)
	}
	w.rego("early", 10, `answer := {"verdict": "DENY", "reason_code": "DENY_EARLY"} if input.actor == "alice"`)
	if _, r := w.decide(facts("echo"), `{}`); r != "DENY_EARLY" {
		t.Error(r)
	}
	f := facts("echo")
	f.Actor = "bob"
	if _, r := w.decide(f, `{}`); r != "RULE_SCOPED_CALL" {
		t.Error(r)
	}
	w.activate("p2", "o", 0, contract.Bytes(&guard.Overlay{ID: "o", Scope: "session", Subject: "s-1", Expires: contract.Time(noon.Add(time.Second)),
		Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: "DENY_OVER", Verdict: contract.Deny}}}))
	if _, r := w.decide(f, `{}`); r != "DENY_OVER" {
		t.Error(r)
	}
	d := w.digests(&f)
	if n := strings.Count(d.P1, "sha256:"); n != 3 || d.P2 == "" {
		t.Errorf("%+v", d)
	}
	f.Now = contract.Time(noon.Add(time.Second))
	if _, r := w.decide(f, `{}`); r != "RULE_SCOPED_CALL" {
		t.Error("an overlay outlives its expiry:", r)
	}
	f.Session = "s-2"
	if d = w.digests(&f); d.P2 != "" {
		t.Error("an overlay of another session applies")
	}
}

// TestForgedPolicies shows that ceilings need the signature of a root key, and that
// activations, roles, unfreezing and tool approvals in events of the gateway change
// nothing.
func TestForgedPolicies(t *testing.T) {
	w := usual(t)
	forged := guard.SignP0(key(t, "stranger"), guard.Ceilings{MaxCents: 1, Sandbox: *box(), StartWindowMS: 1000})
	d := sign.Digest(forged)
	w.contents[d] = forged
	data := contract.Bytes(&contract.Activated{Bundle: contract.Content{Commitment: d}, Digest: d, Layer: "p0"})
	if err := w.st.Apply(&contract.Event{ID: "x", Source: "policy/policy-1", Name: "policy_activated", Data: data, Lamport: 99}); err == nil {
		t.Error("ceilings of a stranger's are in force")
	}
	before := w.st.Dump()
	for _, name := range []string{"policy_activated", events.RoleGrantedName, events.MeshUnfrozenName, "tool_approved"} {
		body := contract.Bytes(&events.RoleGranted{Principal: "mallory", Role: "approver"})
		if name == "policy_activated" {
			body = data
		}
		if name == "tool_approved" {
			body = contract.Bytes(&contract.ToolApproved{Digest: "sha256:x", Kind: "tool.echo"})
		}
		if err := w.st.Apply(&contract.Event{ID: "y", Source: "gateway/gw1", Name: name, Data: body, Lamport: 100}); err != nil {
			t.Error(name, err)
		}
	}
	if string(w.st.Dump()) != string(before) {
		t.Error("another service's events govern")
	}
}

// TestReplayedState shows that the dump of the catalog does not depend on the order in
// which tools are registered.
func TestReplayedState(t *testing.T) {
	a, b := usual(t), usual(t)
	if string(a.st.Catalog.Dump()) == "" || len(a.st.Dump()) == 0 {
		t.Fatal("empty")
	}
	// usual registers its tools in the random order of a map.
	if string(a.st.Catalog.Dump()) != string(b.st.Catalog.Dump()) {
		t.Error("the catalogs differ")
	}
}

// ten returns a world with three policy layers and the tool noop, whose calls the tenth
// rule of the bundle allows.
func ten(t testing.TB) *world {
	w := newWorld(t)
	w.ceilings(nil)
	w.tool("noop", nil)
	w.rego("ten", 1, `answer := {"verdict": "DENY", "reason_code": "DENY_ONE"} if input.kind == "tool.a"
else := {"verdict": "DENY", "reason_code": "DENY_TWO"} if startswith(input.kind, "vault.")
else := {"verdict": "DENY", "reason_code": "DENY_THREE"} if "web" in input.labels
else := {"verdict": "DENY", "reason_code": "DENY_FOUR"} if input.actor == "mallory"
else := {"verdict": "DENY", "reason_code": "DENY_FIVE"} if input.args.n > 100
else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_SIX"} if input.kind == "tool.pay"
else := {"verdict": "DENY", "reason_code": "DENY_SEVEN"} if startswith(input.kind, "lab.")
else := {"verdict": "DENY", "reason_code": "DENY_EIGHT"} if input.client == "bad"
else := {"verdict": "DENY", "reason_code": "DENY_NINE"} if not "tools:call" in input.scopes
else := {"verdict": "ALLOW", "reason_code": "RULE_TEN"} if startswith(input.kind, "tool.")`)
	w.activate("p2", "o", 0, contract.Bytes(&guard.Overlay{ID: "o", Scope: "agent", Subject: "alice", Rules: []guard.OverlayRule{{Kinds: []string{"tool.x"}, Reason: "DENY_X", Verdict: contract.Deny}}}))
	return w
}

// BenchmarkAllow measures the time of one decision, from facts to signature.
func BenchmarkAllow(b *testing.B) {
	w, k, f := ten(b), key(b, "policy"), facts("noop")
	for i := 0; b.Loop(); i++ {
		f.Client = fmt.Sprint("c", i) // a rule reads this value, so each decision must evaluate the bundle instead of using the cache
		w.addFacts(&f)
		eval := w.st.OfCell().Evaluate(context.Background(), stack.Call{ID: "c-1", Facts: f, Args: []byte(`{"n":1}`)})
		if d := eval.Decide(0, k); d.ReasonCode != "RULE_TEN" {
			b.Fatal(d.ReasonCode)
		}
	}
}

// redecide evaluates the call of a recorded decision again.
func redecide(st *state.States, e *contract.Event, d *contract.Decision, args []byte, explain bool) (stack.Evaluation, error) {
	b, c, err := st.Recall(e, d)
	if err != nil {
		return stack.Evaluation{}, err
	}
	c.Args, c.Explain = args, explain
	return stack.Evaluate(context.Background(), b, c), nil
}
