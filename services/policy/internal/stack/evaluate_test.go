package stack

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

var noon = time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)

// offer is a stack.Tools with at most one tool.
type offer struct {
	tool     *contract.Tool
	approved string // approved digest; empty = the digest of the tool
	explicit bool
}

func (o offer) Lookup(kind string) (*contract.Tool, string) {
	if o.tool == nil || o.tool.Kind != kind {
		return nil, "none"
	}
	return o.tool, contract.Digest(o.tool)
}

func (o offer) Approved(string) (string, bool) {
	if o.approved == "" {
		return contract.Digest(o.tool), o.explicit
	}
	return o.approved, o.explicit
}

func (offer) Digest() string { return "sha256:catalog" }

func echo(change func(*contract.Tool)) *contract.Tool {
	t := &contract.Tool{Class: "E0", Executor: "session-runner", Kind: "tool.echo", Tool: "echo", Version: "v1",
		InputSchema: contract.Raw(`{"properties":{"n":{"type":"integer"}},"type":"object"}`), OutputSchema: contract.Raw(`{"type":"object"}`)}
	if change != nil {
		change(t)
	}
	return t
}

func bundleOf(t *testing.T, src string) *rego.Engine {
	t.Helper()
	b, err := rego.Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\n" + src)}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := rego.Compile(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const permit = `answer := {"verdict": "ALLOW", "reason_code": "RULE_ALL"}`

// with returns a stack of ceilings, bundles in order of precedence, and overlays.
func with(t *testing.T, bundles []string, overlays ...guard.Overlay) Stack {
	t.Helper()
	var s Stack
	put := func(a contract.Activated, doc any) {
		var err error
		if s, err = s.With(&a, doc); err != nil {
			t.Fatal(err)
		}
	}
	put(contract.Activated{Layer: "p0", Digest: "sha256:p0"}, &guard.Ceilings{StartWindowMS: 60_000})
	for i, src := range bundles {
		name := string(rune('a' + i))
		put(contract.Activated{Layer: "p1", Name: name, Precedence: int64(i), Digest: "sha256:" + name}, bundleOf(t, src))
	}
	for i := range overlays {
		put(contract.Activated{Layer: "p2", Name: overlays[i].ID, Digest: "sha256:" + overlays[i].ID}, &overlays[i])
	}
	return s
}

func facts() guard.Facts {
	return guard.Facts{Actor: "alice", ArgsDigest: "sha256:a", Client: "-", Deadline: contract.Time(noon.Add(time.Minute)), Kind: "tool.echo", Now: contract.Time(noon),
		Proposed: contract.Time(noon), Proposer: "gateway", Scopes: []string{}, Session: "s-1", Tenant: "t", Tool: "echo"}
}

// over returns an overlay that denies every tool to alice.
func over(id string) guard.Overlay {
	return guard.Overlay{ID: id, Scope: "agent", Subject: "alice", Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: "DENY_" + strings.ToUpper(id), Verdict: contract.Deny}}}
}

// TestEvaluate shows which reason code a call gets, that the decision taken again from
// the archive has the same result, and which parts the explanation lists.
func TestEvaluate(t *testing.T) {
	silent := `answer := {"verdict": "DENY", "reason_code": "DENY_BOB"} if input.actor == "bob"`
	broken := `answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if 1 / (count(input.args) - 0) > 0`
	model := `{"body":"sha256:x","bytes":5,"capture":"plain","fields":["model"],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"tools":[]}`
	for _, c := range []struct {
		name   string
		stack  Stack
		offer  offer
		change func(*guard.Facts)
		args   string
		want   string
		parts  string // parts that the explanation lists
	}{
		{"allowed", with(t, []string{permit}), offer{tool: echo(nil)}, nil, `{"n":1}`, "RULE_ALL", "gates input schema p1 p0 decision"},
		{"no documents", Stack{}, offer{tool: echo(nil)}, nil, `{}`, contract.ReasonNoPolicyDefined, "gates decision"},
		{"no bundle", with(t, nil), offer{tool: echo(nil)}, nil, `{}`, contract.ReasonNoPolicyDefined, "gates input schema p0 decision"},
		{"the first with an opinion", with(t, []string{silent, permit, silent}), offer{tool: echo(nil)}, nil, `{}`, "RULE_ALL", "gates input schema p1 p1 p0 decision"},
		{"the first, for another", with(t, []string{silent, permit}), offer{tool: echo(nil)}, func(f *guard.Facts) { f.Actor = "bob" }, `{}`, "DENY_BOB", "gates input schema p1 p0 decision"},
		{"a broken bundle", with(t, []string{broken, permit}), offer{tool: echo(nil)}, nil, `{}`, contract.ReasonPrgEvaluationError, "gates input schema p1 p0 decision"},
		{"an overlay", with(t, []string{permit}, over("o")), offer{tool: echo(nil)}, nil, `{}`, "DENY_O", "gates input schema p1 p2 p0 decision"},
		{"an overlay of another", with(t, []string{permit}, over("o")), offer{tool: echo(nil)}, func(f *guard.Facts) { f.Actor = "bob" }, `{}`, "RULE_ALL", "gates input schema p1 p0 decision"},
		{"for a delegator", with(t, []string{silent, permit}), offer{tool: echo(nil)}, func(f *guard.Facts) { f.OnBehalfOf, f.Delegator = "bob", &guard.DelegatorFact{} }, `{}`, "DENY_BOB", "gates input schema p1 p1 p1 for the delegator p0 decision"},
		{"without opinion on one of them", with(t, []string{`answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if input.actor == "alice"`}), offer{tool: echo(nil)}, func(f *guard.Facts) { f.OnBehalfOf, f.Delegator = "bob", &guard.DelegatorFact{} }, `{}`, contract.ReasonNoPolicyDefined, "gates input schema p1 p1 for the delegator p0 decision"},
		{"unknown tool", with(t, []string{permit}), offer{}, nil, `{}`, contract.ReasonUnknownTool, "gates decision"},
		{"another tool of the kind", with(t, []string{permit}), offer{tool: echo(func(t *contract.Tool) { t.Tool = "other" })}, nil, `{}`, contract.ReasonUnknownTool, "gates decision"},
		{"drift", with(t, []string{permit}), offer{tool: echo(nil), approved: "sha256:other"}, nil, `{}`, contract.ReasonToolDrift, "gates decision"},
		{"unknown member", with(t, []string{permit}), offer{tool: echo(nil)}, nil, `{"m":1}`, contract.ReasonArgsUnknownField, "gates input schema p0 decision"},
		{"not canonical", with(t, []string{permit}), offer{tool: echo(nil)}, nil, `{"n":1, "n":2}`, contract.ReasonSchemaViolation, "gates input schema p0 decision"},
		{"unreadable", with(t, []string{permit}), offer{tool: echo(nil)}, nil, ``, contract.ReasonArgsUnavailable, "gates input schema p0 decision"},
		{"a request to a model", with(t, []string{permit}), offer{tool: &contract.Tool{Executor: "llm-router", Kind: llm.Chat, Tool: llm.Chat, InputSchema: contract.Raw(llm.Schema), OutputSchema: contract.Raw(`{}`)}}, func(f *guard.Facts) { f.Kind, f.Tool = llm.Chat, llm.Chat }, model, "RULE_ALL", "gates input schema p1 p0 decision"},
		{"a malformed one", with(t, []string{permit}), offer{tool: &contract.Tool{Executor: "llm-router", Kind: llm.Chat, Tool: llm.Chat, InputSchema: contract.Raw(llm.Schema), OutputSchema: contract.Raw(`{}`)}}, func(f *guard.Facts) { f.Kind, f.Tool = llm.Chat, llm.Chat }, `{}`, contract.ReasonSchemaViolation, "gates input schema p0 decision"},
	} {
		f := facts()
		if c.change != nil {
			c.change(&f)
		}
		call := Call{ID: "c-1", Args: []byte(c.args)}
		if c.args == "" {
			call.Args = nil
		}
		b := c.stack.Basis(c.offer, &f)
		call.Facts = f
		eval := Evaluate(context.Background(), b, call)
		seed := sha256.Sum256([]byte("policy"))
		k, err := sign.NewKey(seed[:])
		if err != nil {
			t.Fatal(err)
		}
		if got := eval.Verdict().Reason; got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		d := eval.Decide(7, k)
		if d.ReasonCode != c.want || d.Lamport != 7 || d.ToolDigest != f.ToolDigest {
			t.Errorf("%s: decided %s %s", c.name, d.Verdict, d.ReasonCode)
		}
		var past Archive
		if c.offer.tool != nil {
			past.AddTool(c.offer.tool)
		}
		for _, a := range c.stack.history {
			past.Add(a.Layer, a.Digest, c.stack.document(a))
		}
		again, err := past.Basis(&contract.Event{Name: contract.EventAllowed, Version: 2}, &d, &call.Facts)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		call.Explain = true
		second := Evaluate(context.Background(), again, call)
		if v, r, hash := second.Again(); v != d.Verdict || r != d.ReasonCode || hash != d.PolicyHash {
			t.Errorf("%s: decided again %s %s", c.name, v, r)
		}
		var parts []string
		for _, s := range second.Steps() {
			parts = append(parts, s.Part)
			if s.Part == guard.PartRules && !strings.HasPrefix(s.Digest, "sha256:") || s.Part == guard.PartOverlay && s.Digest != "sha256:"+s.Name {
				t.Errorf("%s: a step names no document: %+v", c.name, s)
			}
		}
		if got := strings.Join(parts, " "); got != c.parts {
			t.Errorf("%s: explained by %s, want %s", c.name, got, c.parts)
		}
	}
}

// document returns the compiled document of an activation.
func (s *Stack) document(a *contract.Activated) any {
	for _, b := range s.all() {
		if a.Layer == "p1" && b.Digest == a.Digest {
			return b.engine
		}
	}
	for _, o := range s.overlays {
		if a.Layer == "p2" && o.digest == a.Digest {
			return o.doc
		}
	}
	return s.ceilings
}

// TestOldSchemas shows for which events rulesOf returns the schema rules of release 0.1,
// and that these rules permit a field that a schema does not mention.
func TestOldSchemas(t *testing.T) {
	for _, c := range []struct {
		event   string
		version int
		want    toolschema.Rules
	}{{contract.EventAllowed, 1, toolschema.Open}, {contract.EventEffectRecorded, 1, toolschema.Open}, {contract.EventAllowed, 2, toolschema.Closed}, {contract.EventEscalated, 1, toolschema.Closed}} {
		if got := rulesOf(&contract.Event{Name: c.event, Version: c.version}); got != c.want {
			t.Errorf("%s v%d: %v", c.event, c.version, got)
		}
	}
	s, f := with(t, []string{permit}), facts()
	b := s.Basis(offer{tool: echo(nil)}, &f)
	b.Rules = toolschema.Open
	eval := Evaluate(context.Background(), b, Call{ID: "c-1", Facts: f, Args: []byte(`{"m":1}`)})
	if got := eval.Verdict().Reason; got != "RULE_ALL" {
		t.Error(got)
	}
}

// TestCharge shows that a refusal of the budget ledger denies the call, or escalates it
// if the limit requires approval, and that an explanation names the accounts.
func TestCharge(t *testing.T) {
	s, f := with(t, []string{permit}), facts()
	b := s.Basis(offer{tool: echo(nil)}, &f)
	eval := Evaluate(context.Background(), b, Call{ID: "c-1", Facts: f, Args: []byte(`{}`), Explain: true})
	eval.Charge(&guard.BudgetFact{Accounts: []string{"l/agent:alice"}, Refused: contract.ReasonBudgetExceeded})
	if got := eval.Verdict(); got.Verdict != contract.Deny || got.Reason != contract.ReasonBudgetExceeded {
		t.Errorf("%+v", got)
	}
	steps := eval.Steps()
	if !slices.ContainsFunc(steps, func(s guard.Step) bool { return s.Part == guard.PartLimits && s.Name == "l/agent:alice" }) {
		t.Errorf("%+v", steps)
	}
	eval.Charge(&guard.BudgetFact{Accounts: []string{"l/agent:alice"}, Refused: contract.ReasonBudgetExceeded, Escalate: true})
	if got := eval.Verdict(); got.Verdict != contract.Escalate {
		t.Errorf("%+v", got)
	}
}

// TestHistory shows how Resolve completes activations, rollbacks and retirements and
// when they change nothing, and that HistoryOf rejects data that is not an activation.
func TestHistory(t *testing.T) {
	h, err := HistoryOf([]*contract.Event{
		{Lamport: 1, Data: contract.Bytes(&contract.Activated{Layer: "p2", Name: "o", Digest: "1", Source: "config"})},
		{Lamport: 2, Data: contract.Bytes(&contract.Activated{Layer: "p2", Name: "o", Digest: "2"})},
		{Lamport: 3, Data: contract.Bytes(&contract.Activated{Layer: "p2", Name: "o", Digest: "2"})},
		{Lamport: 4, Data: contract.Bytes(&contract.Activated{Layer: "p2", Name: "gone", Digest: "3"})},
		{Lamport: 5, Data: contract.Bytes(&contract.Activated{Layer: "p2", Name: "gone", Digest: "3", Retired: true})},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		a        contract.Activated
		rollback bool
		changes  bool
		want     string // digest, or part of the error
	}{
		{"another", contract.Activated{Layer: "p2", Name: "o", Digest: "4"}, false, true, "4"},
		{"the same", contract.Activated{Layer: "p2", Name: "o", Digest: "2"}, false, false, "2"},
		{"what the configuration said before", contract.Activated{Layer: "p2", Name: "o", Digest: "1", Source: "config"}, false, false, "1"},
		{"something else of the configuration's", contract.Activated{Layer: "p2", Name: "o", Digest: "4", Source: "config"}, false, true, "4"},
		{"rolled back", contract.Activated{Layer: "p2", Name: "o"}, true, true, "1"},
		{"rolled back to what was retired", contract.Activated{Layer: "p2", Name: "gone"}, true, true, "3"},
		{"nothing to roll back to", contract.Activated{Layer: "p2", Name: "new"}, true, false, "no earlier version"},
		{"retired", contract.Activated{Layer: "p2", Name: "o", Retired: true}, false, true, "2"},
		{"nothing to retire", contract.Activated{Layer: "p2", Name: "gone", Retired: true}, false, false, "no document with this name"},
	} {
		changes, err := h.Resolve(&c.a, c.rollback)
		got := c.a.Digest
		if err != nil {
			got = err.Error()
		}
		if changes != c.changes || !strings.Contains(got, c.want) {
			t.Errorf("%s: %v %s, want %v %s", c.name, changes, got, c.changes, c.want)
		}
	}
	if _, err := HistoryOf([]*contract.Event{{Data: []byte(`[]`)}}); err == nil {
		t.Error("noise is an activation")
	}
}

// TestBuild shows that the stack of a history has the latest document of each name
// unless that was retired, that a document that cannot be read or compiled is an error,
// and that the ceilings cannot be retired. An overlay without an expiry time does not
// expire, and Lines has a line for each overlay.
func TestBuild(t *testing.T) {
	contents := map[string][]byte{}
	activation := func(o guard.Overlay, retired bool) *contract.Activated {
		body := contract.Bytes(&o)
		contents[sign.Digest(body)] = body
		return &contract.Activated{Layer: "p2", Name: o.ID, Digest: sign.Digest(body), Bundle: contract.Content{Commitment: sign.Digest(body)}, Retired: retired}
	}
	open := func(tenant string, c *contract.Content) ([]byte, error) {
		if b := contents[c.Commitment]; b != nil && tenant == "t" {
			return b, nil
		}
		return nil, errors.New("not stored")
	}
	keys := func(string, string, string, uint64) ([]byte, error) { return nil, errors.New("no key") }
	second := over("a")
	second.Subject = "bob"
	h := History{{activation(over("a"), false), 1, "t"}, {activation(over("b"), false), 2, "t"}, {activation(second, false), 3, "t"}, {activation(over("b"), true), 4, "t"}}
	s, err := h.Build(Activation{activation(over("c"), false), 5, "t"}, open, keys)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range s.InForce() {
		names = append(names, a.Name)
	}
	if got := strings.Join(names, " "); got != "a c" || s.overlays[0].doc.Subject != "bob" {
		t.Error(got)
	}
	if left := s.WithoutExpired(contract.Time(noon)); len(left.InForce()) != 2 {
		t.Error("an overlay without an end expires")
	}
	if _, err := h.Build(Activation{&contract.Activated{Layer: "p2", Name: "x", Bundle: contract.Content{Commitment: "sha256:none"}}, 5, "t"}, open, keys); err == nil {
		t.Error("a document that cannot be read is in force")
	}
	for layer, body := range map[string]string{"p0": `{}`, "p1": `{}`, "p2": `[]`, "p3": `{}`} {
		if _, err := Compile(layer, []byte(body), 1, keys); err == nil {
			t.Errorf("%s: %s compiles", layer, body)
		}
	}
	if _, err := s.With(&contract.Activated{Layer: "p0", Retired: true}, nil); err == nil {
		t.Error("the ceilings are retired")
	}
	if lines := s.Lines(); len(lines) != 2 || !strings.HasPrefix(lines[0], "p2 {") {
		t.Error(lines)
	}
}

// TestEstimate checks the greatest amounts that Estimate returns, by tool and by price.
func TestEstimate(t *testing.T) {
	prices := map[string]llmrouter.ModelPrice{"m": {Model: "m", Context: 1000, MaxOutput: 100, Input: 2_000_000, Output: 4_000_000, Attempts: 2}, "free": {Model: "free", Unpriced: true},
		"dear": {Model: "dear", Input: 1, Output: 1 << 22}}
	price := func(model string) (llmrouter.ModelPrice, bool) { p, ok := prices[model]; return p, ok }
	box := &contract.Sandbox{CPUMillis: 500, WallMS: 4000}
	for _, c := range []struct {
		name string
		tool *contract.Tool
		q    *llm.Args
		want func(contract.Amounts) bool
	}{
		{"a tool", echo(func(t *contract.Tool) { t.Sandbox = box }), nil, func(a contract.Amounts) bool { return a.Calls == 1 && a.ComputeMillis == 2000 && a.USDMicros == 0 }},
		{"one that says what it uses", echo(func(t *contract.Tool) { t.Sandbox, t.Reserve = box, &contract.Amounts{Cents: 7, ComputeMillis: 9} }), nil, func(a contract.Amounts) bool { return a.Cents == 7 && a.ComputeMillis == 9 }},
		{"the more dangerous", echo(func(t *contract.Tool) { t.Class = "E4" }), nil, func(a contract.Amounts) bool { return a.Risk > guard.RiskPoints("E0") }},
		{"a model of known price", echo(nil), &llm.Args{Model: "m", In: 10, Hold: 30}, func(a contract.Amounts) bool {
			return a.Tokens == 2*(10+20) && a.USDMicros == 10*2+20*4+1 && a.EgressBytes > 0
		}},
		{"the greatest number of tokens of a request, at a price whose product is 2^64", echo(nil), &llm.Args{Model: "dear", In: 10, Hold: 10 + 1<<42}, func(a contract.Amounts) bool {
			return a.Tokens == 10+1<<42 && a.USDMicros == 18446744073710
		}},
		{"more than a limit can hold", echo(nil), &llm.Args{Model: "dear", In: 10, Hold: canon.MaxInt}, func(a contract.Amounts) bool { return a.USDMicros == canon.MaxInt }},
		{"a sandbox without end", echo(func(t *contract.Tool) { t.Sandbox = &contract.Sandbox{CPUMillis: canon.MaxInt, WallMS: canon.MaxInt} }), nil, func(a contract.Amounts) bool { return a.ComputeMillis == canon.MaxInt/1000 }},
		{"of unknown price", echo(nil), &llm.Args{Model: "x", In: 10, Hold: 30}, func(a contract.Amounts) bool { return a.USDMicros == -1 }},
		{"without a price", echo(nil), &llm.Args{Model: "free", In: 10, Hold: 30}, func(a contract.Amounts) bool { return a.USDMicros == -1 && a.Tokens > 0 }},
	} {
		if a := Estimate(c.tool, c.q, price, 1); !c.want(a) {
			t.Errorf("%s: %+v", c.name, a)
		}
	}
}
