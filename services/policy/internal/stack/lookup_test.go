package stack

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// TestArchiveBasis checks which documents of an archive a decision is taken again with, and
// the error for each document that the archive lacks.
func TestArchiveBasis(t *testing.T) {
	tool, ceilings, overlay, engine := echo(nil), &guard.Ceilings{}, &guard.Overlay{ID: "o"}, new(rego.Engine)
	var a Archive
	a.Add("p0", "1", ceilings)
	a.Add("p1", "1", engine)
	a.Add("p1", "2", new(rego.Engine))
	a.Add("p2", "1", overlay)
	a.Add("p2", "gone", Erased{Layer: "p2"})
	a.AddTool(tool)
	known := contract.Digest(tool)
	for _, c := range []struct {
		digests contract.PolicyDigests
		tool    string
		want    string // part of the error
		erased  bool
	}{
		{contract.PolicyDigests{P0: "1", P1: "1+2", P2: "1"}, known, "", false},
		{contract.PolicyDigests{}, "none", "", false},
		{contract.PolicyDigests{P0: "1"}, "sha256:other", "never registered", false},
		{contract.PolicyDigests{P0: "2"}, known, "never activated", false},
		{contract.PolicyDigests{P1: "1+3"}, known, "never activated", false},
		{contract.PolicyDigests{P2: "1+gone"}, known, "policy gone", true},
	} {
		b, err := a.Basis(&contract.Event{Version: 2}, &contract.Decision{Policies: c.digests}, &guard.Facts{ToolDigest: c.tool})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || errors.Is(err, contract.ErrErased) != c.erased {
			t.Errorf("%+v, tool %s: %v", c.digests, c.tool, err)
			continue
		}
		if err != nil {
			continue
		}
		if full := c.digests.P1 != ""; full != (b.Ceilings == ceilings && len(b.Bundles) == 2 && b.Bundles[0] == engine && len(b.Overlays) == 1 && b.Overlays[0] == overlay && b.Tool == tool) || b.Digests != c.digests {
			t.Errorf("%+v: %+v", c.digests, b)
		}
	}
}

// TestNth checks the digest of each document in a field that joins several.
func TestNth(t *testing.T) {
	for i, want := range []string{"a", "b", ""} {
		if got := nth("a+b", i); got != want {
			t.Errorf("%d: %q, want %q", i, got, want)
		}
	}
	if got := nth("", 0); got != "" {
		t.Errorf("of none: %q", got)
	}
}

// TestErasedDocuments checks that an erased document of each layer takes its place in the
// stack, is named by Readable, is among the documents in force, and leaves a call without
// a policy.
func TestErasedDocuments(t *testing.T) {
	for layer, want := range map[string]string{"p0": "ceilings d", "p1": "bundle n, d", "p2": "overlay n, d"} {
		name := "n"
		if layer == "p0" {
			name = ""
		}
		s := put(t, with(t, []string{permit}), layer, name, "d", 1, Erased{Layer: layer})
		err := s.Readable()
		if !errors.Is(err, contract.ErrErased) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", layer, err)
		}
		if !slices.ContainsFunc(s.InForce(), func(a *contract.Activated) bool { return a.Layer == layer && a.Name == name && a.Digest == "d" }) {
			t.Errorf("%s is not in force: %v", layer, s.InForce())
		}
		f := facts()
		b := s.Basis(offer{tool: echo(nil)}, &f)
		if b.Tool == nil || b.Ceilings != nil || b.Bundles != nil || b.Digests != (contract.PolicyDigests{}) || f.OwnBundles != 0 {
			t.Errorf("%s: %+v", layer, b)
		}
	}
}

// TestInForceAgain checks that InForce returns the last activation of a document that was
// activated twice, and none with another layer, name or digest.
func TestInForceAgain(t *testing.T) {
	var s Stack
	for _, a := range []*contract.Activated{
		{Layer: "p2", Name: "o", Digest: "1", Source: "first"}, {Layer: "p2", Name: "x", Digest: "1", Source: "another name"}, {Layer: "p2", Name: "o", Digest: "2", Source: "another digest"},
		{Layer: "p2", Name: "o", Digest: "2", Retired: true}, {Layer: "p2", Name: "o", Digest: "1", Source: "again"}, {Layer: "p1", Name: "o", Digest: "1", Source: "another layer"},
	} {
		var err error
		if s, err = s.With(a, Erased{Layer: a.Layer}); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, a := range s.InForce() {
		got = append(got, a.Source)
	}
	if want := "another layer, again, another name"; strings.Join(got, ", ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestTools checks the digests of the tool that Basis adds to the facts.
func TestTools(t *testing.T) {
	strict := put(t, with(t, []string{permit}), "p0", "", "d", 0, &guard.Ceilings{ExplicitTools: true})
	of := func(executor string) *contract.Tool {
		return echo(func(t *contract.Tool) { t.Executor = executor })
	}
	for _, c := range []struct {
		name  string
		s     Stack
		offer offer
		want  string
	}{
		{"approved", with(t, nil), offer{tool: of("work")}, ""}, {"drift", with(t, nil), offer{tool: of("work"), approved: "other"}, "other"},
		{"no ceilings", Stack{}, offer{tool: of("work"), approved: "other"}, "other"}, {"not approved by a call", strict, offer{tool: of("work")}, "none"},
		{"approved by a call", strict, offer{tool: of("work"), explicit: true}, ""}, {"drift after a call", strict, offer{tool: of("work"), approved: "other", explicit: true}, "other"},
		{"of policy", strict, offer{tool: of("policy"), approved: "other"}, ""},
	} {
		f := facts()
		f.ToolPinned, f.OwnBundles = "before", 7
		c.s.Basis(c.offer, &f)
		if f.ToolPinned != c.want || f.OwnBundles != 0 || f.CatalogDigest != "sha256:catalog" || f.ToolDigest != contract.Digest(c.offer.tool) {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}

// TestTainting checks for which granted secrets Tainting returns true.
func TestTainting(t *testing.T) {
	for names, want := range map[string]bool{"": false, "a": true, "llm.*": false, "llm.* a": true} {
		tool := &contract.Tool{}
		for _, n := range strings.Fields(names) {
			tool.Secrets = append(tool.Secrets, contract.SecretGrant{Name: n})
		}
		if Tainting(tool) != want {
			t.Errorf("%q: %t", names, !want)
		}
	}
}

// TestDelegatorScopes checks that, for the delegator, the bundles are evaluated with the
// scopes of the delegation if these are recorded, and else with those of the call, and
// with the roles of the delegator and not of the actor.
func TestDelegatorScopes(t *testing.T) {
	const rules = `answer := {"verdict": "ALLOW", "reason_code": "RULE_ACTOR"} if input.actor == "alice"
else := {"verdict": "ALLOW", "reason_code": "RULE_BOSS"} if { input.actor == "boss"; some s in input.scopes; s in {"wide", "own"}; not "admin" in input.roles }`
	for _, c := range []struct {
		scopes []string // of the delegation
		roles  []string // of the delegator
		want   string
	}{
		{nil, []string{"member"}, "RULE_ACTOR"}, {[]string{"wide"}, []string{"member"}, "RULE_ACTOR"}, {[]string{"narrow"}, []string{"member"}, contract.ReasonNoPolicyDefined}, {[]string{"wide"}, []string{"admin"}, contract.ReasonNoPolicyDefined},
	} {
		s, f := with(t, []string{rules}), facts()
		f.Scopes, f.Roles, f.OnBehalfOf = []string{"own"}, []string{"admin"}, "boss"
		f.Delegator = &guard.DelegatorFact{Scopes: c.scopes, Roles: c.roles}
		b := s.Basis(offer{tool: echo(nil)}, &f)
		e := Evaluate(t.Context(), b, Call{ID: "c-1", Facts: f, Args: []byte(`{}`)})
		if got := e.Verdict().Reason; got != c.want {
			t.Errorf("scopes %v, roles %v: %s, want %s", c.scopes, c.roles, got, c.want)
		}
	}
}

// TestOffered checks that layer P2 has an answer for a request to a model that offers a
// tool, even without an overlay, and none for a request that offers no tool.
func TestOffered(t *testing.T) {
	tool := &contract.Tool{Executor: "llm-router", Kind: llm.Chat, Tool: llm.Chat, InputSchema: contract.Raw(llm.Schema), OutputSchema: contract.Raw(`{}`)}
	for tools, want := range map[string]int{`[]`: 0, `["echo"]`: 1} {
		s, f := with(t, []string{permit}), facts()
		f.Kind, f.Tool = llm.Chat, llm.Chat
		b := s.Basis(offer{tool: tool}, &f)
		args := `{"body":"sha256:x","bytes":5,"capture":"plain","fields":["model"],"hold_input":1,"hold_tokens":2,"messages":1,"model":"m","params":{},"tools":` + tools + `}`
		e := Evaluate(t.Context(), b, Call{ID: "c-1", Facts: f, Args: []byte(args)})
		if got := len(e.inputs.P2); got != want {
			t.Errorf("%s: %d answers of layer P2, want %d", tools, got, want)
		}
	}
}

// TestValidateOwn checks that, after a rule of the cell that applies to every call,
// Validate reports a rule of the cell as unreachable but not a rule of the tenant, and
// that Lines has a line for the ceilings, for each bundle's rule and for the overlay.
func TestValidateOwn(t *testing.T) {
	base := put(t, Stack{}, "p0", "", "P0", 0, &guard.Ceilings{StartWindowMS: 60_000})
	base = put(t, base, "p1", "cell", "1", 0, bundleOf(t, permit))
	own := put(t, Stack{}, "p1", "own", "2", 0, bundleOf(t, strings.Replace(permit, "RULE_ALL", "RULE_OWN", 1)))
	own = put(t, own, "p2", "o", "3", 0, &guard.Overlay{ID: "o", Scope: "agent", Subject: "alice", Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: "DENY_O", Verdict: contract.Deny}}})
	s := own.Over(base)
	lines := s.Lines()
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "p0 {") || !strings.HasPrefix(lines[1], "p1 cell: ALLOW RULE_ALL") || !strings.HasPrefix(lines[2], "p1 own: ALLOW RULE_OWN") || !strings.HasPrefix(lines[3], "p2 {") {
		t.Error(lines)
	}
	// After a rule of the cell that applies to every call, another rule of the cell never
	// applies, but a rule of the tenant does.
	findings := func(s Stack) (n int) {
		for _, f := range s.Validate(nil, nil) {
			if f.Check == "unreachable" {
				n++
			}
		}
		return n
	}
	both := put(t, base, "p1", "later", "2", 1, bundleOf(t, strings.Replace(permit, "RULE_ALL", "RULE_OWN", 1)))
	if findings(s) != 0 || findings(both) == 0 {
		t.Errorf("the tenant's bundle: %v; a second one of the cell: %v", s.Validate(nil, nil), both.Validate(nil, nil))
	}
}

// TestEstimateBounds checks the amounts of a tool that reserves tokens or has no sandbox,
// and of requests at the limits of their attempts and prices.
func TestEstimateBounds(t *testing.T) {
	price := func(p llmrouter.ModelPrice) func(string) (llmrouter.ModelPrice, bool) {
		return func(string) (llmrouter.ModelPrice, bool) { return p, true }
	}
	q := &llm.Args{Model: "m", In: 10, Hold: 30}
	if a := Estimate(echo(func(t *contract.Tool) { t.Reserve = &contract.Amounts{Tokens: 5} }), q, price(llmrouter.ModelPrice{Input: 1}), 1); a.Tokens != 5 || a.USDMicros != 0 || a.EgressBytes != 0 {
		t.Errorf("with reserved tokens: %+v", a)
	}
	if a := Estimate(echo(func(t *contract.Tool) { t.Reserve = &contract.Amounts{EgressBytes: 9} }), q, price(llmrouter.ModelPrice{Input: 1_000_000}), 1); a.EgressBytes != 9 || a.Tokens != 30 || a.USDMicros != 10 {
		t.Errorf("with reserved bytes: %+v", a)
	}
	for attempts, want := range map[int64]int64{0: 10, 1: 10, 3: 12} { // each further attempt may be rounded up by one
		if a := Estimate(echo(nil), q, price(llmrouter.ModelPrice{Input: 1_000_000, Attempts: attempts}), 0); a.USDMicros != want || a.Tokens != 30*max(attempts, 1) || a.EgressBytes != q.Egress(max(attempts, 1)) {
			t.Errorf("%d attempts: %+v", attempts, a)
		}
	}
	for _, c := range [][3]int64{{0, 5, 0}, {-1, 5, 0}, {5, -1, 0}, {3, 5, 15}, {canon.MaxInt, 1, canon.MaxInt}, {canon.MaxInt, 2, canon.MaxInt}, {1 << 62, 4, canon.MaxInt}, {1 << 62, 1 << 62, canon.MaxInt}} {
		if got := times(c[0], c[1]); got != c[2] {
			t.Errorf("%d times %d: %d", c[0], c[1], got)
		}
	}
}

// TestSplitErrors checks that Split returns the error of open, that it does not open a
// document of the configuration which is in force, and that documents of other sources
// remain the tenant's own. It also checks that History.configured compares the digest.
func TestSplitErrors(t *testing.T) {
	failed := errors.New("not stored")
	open := func(*contract.Activated) (any, error) { return nil, failed }
	add := func(s Stack, a contract.Activated) Stack {
		t.Helper()
		s, err := s.With(&a, new(rego.Engine))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := add(Stack{}, contract.Activated{Layer: "p1", Name: "b", Digest: "1", Source: "config"})
	cell, own, err := s.Split(Stack{}, open)
	if err != nil || shown(cell) != "1" || shown(own) != "" {
		t.Errorf("%v: the cell has %q, the tenant %q", err, shown(cell), shown(own))
	}
	// All documents that are not from the configuration remain the tenant's own.
	for _, a := range []contract.Activated{{Layer: "p1", Name: "c", Digest: "3", Source: "call"}, {Layer: "p1", Name: "d", Digest: "4", Source: "call"}} {
		s = add(s, a)
	}
	s = put(t, put(t, put(t, s, "p2", "b", "5", 0, &guard.Overlay{}), "p2", "o", "6", 0, &guard.Overlay{}), "p2", "b", "5", 0, nil)
	cell, own, err = s.Split(Stack{}, open)
	if err != nil || shown(cell) != "1" || shown(own) != "3 4 6" || len(own.history) != 3 {
		t.Errorf("%v: the cell has %q, the tenant %q of %d activations", err, shown(cell), shown(own), len(own.history))
	}
	h := History{{&contract.Activated{Layer: "p1", Name: "b", Digest: "1", Source: "config"}, 1, "t"}, {&contract.Activated{Layer: "p1", Name: "c", Digest: "2", Source: "config"}, 2, "t"}}
	for digest, want := range map[string]bool{"1": true, "2": false} {
		if got := h.configured(&contract.Activated{Layer: "p1", Name: "b", Digest: digest}); got != want {
			t.Errorf("digest %s of b: configured %t", digest, got)
		}
	}
	if _, _, err := add(s, contract.Activated{Layer: "p1", Name: "b", Digest: "2", Source: "call"}).Split(Stack{}, open); !errors.Is(err, failed) {
		t.Error(err)
	}
}
