package cpi

import (
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// known returns the names that exist in a mesh, for checking the activation of the
// document with this layer and name.
func known(layer, name string) *Known {
	return &Known{Layer: layer, Name: name, Now: "2026-03-03T12:00:00.000Z", Executors: []string{"session-runner"}, Hosts: []string{"mail.example"}, Keys: []string{"team"},
		Kinds: []string{"tool.rm", "tool.pay", "tool.cmd.upper"}, Principals: []string{"alice"}, Roles: []string{"finance"}, Secrets: []string{"api-key"}, Tenant: "acme_shop_prod",
		Actor: func(s string) bool { return s == "bob" }, Session: func(s string) bool { return s == "s-1" }}
}

// TestReferences shows that a name that does not exist is an error in the document to
// activate, unless it is a session or a function of a client, and that an overlay that
// has expired is an error. The error contains the name and, in most cases, existing
// names. In other documents, or if Lenient is set, a name that does not exist is no
// error.
func TestReferences(t *testing.T) {
	rule := func(change func(*guard.OverlayRule)) *guard.Overlay {
		r := guard.OverlayRule{Kinds: []string{"tool.*"}, Reason: "ESCALATE_A", Verdict: contract.Escalate, Approval: &contract.ApprovalRule{Quorum: 1, Roles: []string{"finance"}, TimeoutMS: 1000}}
		change(&r)
		return &guard.Overlay{ID: "o", Scope: "agent", Subject: "alice", Rules: []guard.OverlayRule{r}}
	}
	overlay := func(scope, subject string) *guard.Overlay {
		return &guard.Overlay{ID: "o", Scope: scope, Subject: subject, Only: []string{"llm.*", "policy.*"}}
	}
	s := Stack{P0: ceilings(), Overlays: []guard.Overlay{*overlay("session", "s-2")}, Known: known("p2", "o")}
	if fs := Validate(&s); !slices.ContainsFunc(fs, func(f Finding) bool { return f.Pointer == "/subject" && f.Severity == "warning" }) {
		t.Errorf("no warning of a session that does not exist: %v", fs)
	}
	for name, c := range map[string]struct {
		doc  any
		want string // text that the only error must contain; "" = no error
	}{
		"all there":           {rule(func(*guard.OverlayRule) {}), ""},
		"a kind":              {rule(func(r *guard.OverlayRule) { r.Kinds = []string{"tool.*", "tool.cmd.uper"} }), `/rules/0/kinds/1: kind "tool.cmd.uper" does not exist; did you mean "tool.cmd.upper"?`},
		"a client's function": {rule(func(r *guard.OverlayRule) { r.Kinds = []string{"client.upper"} }), ""},
		"a role":              {rule(func(r *guard.OverlayRule) { r.Approval.Roles = []string{"financ"} }), `/rules/0/approval/roles/0: role "financ" does not exist; did you mean "finance"?`},
		"the usual role":      {rule(func(r *guard.OverlayRule) { r.Approval.Roles = []string{guard.DefaultRole} }), ""},
		"a class":             {rule(func(r *guard.OverlayRule) { r.Classes = []string{"E0", "E7"} }), `/rules/0/classes/1: class "E7" does not exist`},
		"an agent":            {overlay("agent", "alcie"), `/subject: principal "alcie" does not exist; did you mean "alice"?`},
		"one that only acted": {overlay("agent", "bob"), ""},
		"a session to come":   {overlay("session", "s-2"), ""},
		"a session there is":  {overlay("session", "s-1"), ""},
		"a tenant":            {overlay("tenant", "acme"), `/subject: tenant "acme" does not exist; there is acme_shop_prod`},
		"this tenant":         {overlay("tenant", "acme_shop_prod"), ""},
		"bundle, kind":        {Reference{At: "p.rego:3", Path: "input.kind", Value: "tool.cmd.lower"}, `p1 b p.rego:3: kind "tool.cmd.lower" does not exist; did you mean "tool.cmd.upper"?`},
		"bundle, tool":        {Reference{Path: "input.tool", Value: "cmd.upper"}, ""},
		"bundle, function":    {Reference{Path: "input.tool", Value: "client.lookup"}, ""},
		"bundle, actor":       {Reference{Path: "input.actor", Value: "carol"}, `principal "carol" does not exist`},
		"bundle, role":        {Reference{Path: "input.roles", Value: "boss"}, `role "boss" does not exist; there is approver, finance`},
		"bundle, executor":    {Reference{Path: "input.about.executor", Value: "session-runer"}, `did you mean "session-runner"?`},
		"bundle, secret":      {Reference{Path: "input.about.secrets", Value: "k"}, `secret "k" does not exist`},
		"bundle, host":        {Reference{Path: "input.about.egress_hosts", Value: "mail.exmple"}, `did you mean "mail.example"?`},
		"bundle, key":         {Reference{Path: "input.key.id", Value: "x"}, `key "x" does not exist`},
		"bundle, no name":     {Reference{Path: "input.args.say", Value: "no"}, ""},
		"limit, agent":        {guard.Limit{ID: "l", Level: "agent", Subject: "unknown", Measure: "calls", Window: "day"}, `/limits/0/subject: principal "unknown" does not exist`},
		"limit, key":          {guard.Limit{ID: "l", Level: "key", Subject: "teem", Measure: "calls", Window: "day"}, `did you mean "team"?`},
		"limit, project":      {guard.Limit{ID: "l", Level: "project", Subject: "acme_shop", Measure: "calls", Window: "day"}, ""},
		"limit, organization": {guard.Limit{ID: "l", Level: "organization", Subject: "umbrella", Measure: "calls", Window: "day"}, `organization "umbrella" does not exist; there is acme`},
		"limit, everybody":    {guard.Limit{ID: "l", Level: "agent", Measure: "calls", Window: "day"}, ""},
		"ceilings, kind":      {func(p *guard.Ceilings) { p.ForbiddenKinds = []string{"tool.rn"} }, `/ceilings/forbidden_kinds/0: kind "tool.rn" does not exist; did you mean "tool.rm"?`},
		"ceilings, caller":    {func(p *guard.Ceilings) { p.CallerKinds = []string{"tool.zzzzzzzz"} }, `/ceilings/forbidden_caller_kinds/0: kind "tool.zzzzzzzz" does not exist; there is tool.rm`},
		"ceilings, role":      {func(p *guard.Ceilings) { p.Approvals[0].Rule.Roles = []string{"x"} }, `/ceilings/approvals/0/rule/roles/0: role "x" does not exist`},
		"expired":             {&guard.Overlay{ID: "o", Scope: "agent", Subject: "alice", Only: []string{"llm.*"}, Expires: "2026-03-03T12:00:00.000Z"}, `error: expired: p2 o /expires: the overlay expired`},
		"expires later":       {&guard.Overlay{ID: "o", Scope: "agent", Subject: "alice", Only: []string{"llm.*"}, Expires: "2026-03-03T12:00:00.001Z"}, ""},
	} {
		s := Stack{P0: ceilings()}
		layer, id := "", ""
		switch d := c.doc.(type) {
		case *guard.Overlay:
			layer, id, s.Overlays = "p2", "o", []guard.Overlay{*d}
		case Reference:
			layer, id, s.Bundles = "p1", "b", bundle(allow("tool.cmd*", 0))
			s.Bundles[0].References = []Reference{d}
		case guard.Limit:
			layer, s.Limits = "limits", []guard.Limit{d}
		case func(*guard.Ceilings):
			layer = "p0"
			d(s.P0)
		}
		s.Known = known(layer, id)
		errs := Errors(Validate(&s))
		if c.want == "" && len(errs) > 0 || c.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].String(), c.want)) {
			t.Errorf("%s: %v, want %q", name, errs, c.want)
		}
		// In a document that is in force already, or that the configuration activates, a
		// missing name is a warning. The overlay that has expired contains no missing
		// name and is skipped.
		if strings.Contains(c.want, "expired") {
			continue
		}
		for _, k := range []*Known{known("p1", "another"), func() *Known { k := known(layer, id); k.Lenient = true; return k }()} {
			s.Known = k
			if errs := Errors(Validate(&s)); len(errs) > 0 {
				t.Errorf("%s, of %s %s: %v", name, k.Layer, k.Name, errs)
			}
		}
	}
}

// TestSuggestion shows which existing names a message contains, the most similar one, or
// the first eight and the number of the others, and the distances of some texts.
func TestSuggestion(t *testing.T) {
	names := strings.Split("aa bb cc dd ee ff gg hh ii", " ")
	for _, c := range []struct {
		value string
		there []string
		want  string
	}{
		{"alcie", []string{"bob", "alice", "alicia"}, `; did you mean "alice"?`},
		{"xxxxxx", nil, ""},
		{"xxxxxx", names[:1], "; there is aa"},
		{"xxxxxx", names[:8], "; there is aa, bb, cc, dd, ee, ff, gg, hh"},
		{"xxxxxx", names, "; there are aa, bb, cc, dd, ee, ff, gg, hh and 1 more"},
	} {
		if got := suggestion(c.value, c.there); got != c.want {
			t.Errorf("%s of %v: %q, want %q", c.value, c.there, got, c.want)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"ab", "b", 1}, {"abc", "abd", 1}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance of %q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// TestSessionsUnknown shows that without a list of sessions every session exists.
func TestSessionsUnknown(t *testing.T) {
	k := known("p2", "o")
	if ok, _ := k.has("session", "s-2"); ok {
		t.Error("a session exists that is not on the list")
	}
	k.Session = nil
	if ok, _ := k.has("session", "s-2"); !ok {
		t.Error("a session does not exist, although there is no list")
	}
}
