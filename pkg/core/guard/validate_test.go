package guard_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// wrong fails the test unless err begins with want, or is nil if want is empty.
func wrong(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%s: %v, want %q", name, err, want)
	}
}

// TestCeilingsValidate changes one field of valid ceilings at a time, and checks the
// error.
func TestCeilingsValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *guard.Ceilings)
		want   string
	}{
		"valid":                   {func(*guard.Ceilings) {}, ""},
		"a window that overflows": {func(c *guard.Ceilings) { c.StartWindowMS = 18446744073710 }, "start_window_ms: want 1 to 120000"},
		"no window":               {func(c *guard.Ceilings) { c.StartWindowMS = 0 }, "start_window_ms: want 1 to 120000"},
		"the least window":        {func(c *guard.Ceilings) { c.StartWindowMS = 1 }, ""},
		"the largest window":      {func(c *guard.Ceilings) { c.StartWindowMS = 120000 }, ""},
		"too long a window":       {func(c *guard.Ceilings) { c.StartWindowMS = 120001 }, "start_window_ms:"},
		"no memory":               {func(c *guard.Ceilings) { c.Sandbox.MemoryMiB = 0 }, "sandbox: every limit"},
		"no pids":                 {func(c *guard.Ceilings) { c.Sandbox.Pids = 0 }, "sandbox: every limit"},
		"no time":                 {func(c *guard.Ceilings) { c.Sandbox.WallMS = 0 }, "sandbox: every limit"},
		"no cpu":                  {func(c *guard.Ceilings) { c.Sandbox.CPUMillis = 0 }, "sandbox: every limit"},
		"no output":               {func(c *guard.Ceilings) { c.Sandbox.OutputBytes = 0 }, "sandbox: every limit"},
		"the least sandbox": {func(c *guard.Ceilings) {
			c.Sandbox = contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "wasi", WallMS: 1}
		}, ""},
		"an unknown tier":     {func(c *guard.Ceilings) { c.Sandbox.Tier = "cardboard" }, `sandbox.tier "cardboard":`},
		"an unknown uid":      {func(c *guard.Ceilings) { c.Sandbox.UID = "root" }, `sandbox.uid "root":`},
		"a uid of its own":    {func(c *guard.Ceilings) { c.Sandbox.UID = contract.OwnUID }, ""},
		"cents below zero":    {func(c *guard.Ceilings) { c.MaxCents = -1 }, "max_cents_per_call:"},
		"no cents":            {func(c *guard.Ceilings) { c.MaxCents = 0 }, ""},
		"approval of nothing": {func(c *guard.Ceilings) { c.Approvals = []guard.KindApproval{{Rule: rule}} }, "approvals[0].kinds:"},
		"approval, no quorum": {func(c *guard.Ceilings) {
			c.Approvals = []guard.KindApproval{{Kinds: []string{"a"}, Rule: rule}, {Kinds: []string{"a"}}}
		}, "approvals[1].rule.quorum:"},
		"approval": {func(c *guard.Ceilings) { c.Approvals = []guard.KindApproval{{Kinds: []string{"a"}, Rule: rule}} }, ""},
		"a limit":  {func(c *guard.Ceilings) { c.Limits = []guard.Limit{{}} }, "limits[0].id:"},
	} {
		x := guard.Ceilings{Sandbox: box(64, "process"), StartWindowMS: 1000, MaxCents: 1}
		c.change(&x)
		wrong(t, name, x.Validate(), c.want)
	}
}

// TestCheckRule checks the smallest and the greatest quorum and time to vote.
func TestCheckRule(t *testing.T) {
	const week = 7 * 24 * 3600 * 1000
	for _, c := range []struct {
		quorum, timeout int64
		want            string
	}{
		{1, 1, ""}, {16, week, ""}, {0, 1, "quorum: want 1 to 16"}, {17, 1, "quorum:"}, {-1, 1, "quorum:"}, {1, 0, "timeout_ms: want 1 to 604800000"}, {1, week + 1, "timeout_ms:"},
	} {
		wrong(t, "rule", guard.CheckRule(&contract.ApprovalRule{Quorum: c.quorum, TimeoutMS: c.timeout}), c.want)
	}
}

// TestOverlayValidate checks the error of Validate for overlays that differ from a valid
// one in one or two fields.
func TestOverlayValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(o *guard.Overlay)
		want   string
	}{
		"valid":            {func(*guard.Overlay) {}, ""},
		"id":               {func(o *guard.Overlay) { o.ID = "a b" }, "id:"},
		"scope":            {func(o *guard.Overlay) { o.Scope = "mesh" }, "scope:"},
		"of a session":     {func(o *guard.Overlay) { o.Scope = "session" }, ""},
		"of an agent":      {func(o *guard.Overlay) { o.Scope = "agent" }, ""},
		"subject":          {func(o *guard.Overlay) { o.Subject = "" }, "subject:"},
		"nothing":          {func(o *guard.Overlay) { o.Rules = nil }, "rules:"},
		"kinds only":       {func(o *guard.Overlay) { o.Rules, o.Only = nil, []string{"tool.*"} }, ""},
		"a sandbox only":   {func(o *guard.Overlay) { o.Rules, o.Sandbox = nil, &contract.Sandbox{Tier: "process"} }, ""},
		"a sandbox's tier": {func(o *guard.Overlay) { o.Sandbox = &contract.Sandbox{} }, "sandbox.tier"},
		"a sandbox's uid":  {func(o *guard.Overlay) { o.Sandbox = &contract.Sandbox{Tier: "process", UID: "0"} }, "sandbox.uid"},
		"expires":          {func(o *guard.Overlay) { o.Expires = "tomorrow" }, "expires:"},
		"expires, a time":  {func(o *guard.Overlay) { o.Expires = contract.Time(now) }, ""},
		"allows":           {func(o *guard.Overlay) { o.Rules[0].Verdict = contract.Allow }, `rules[0].verdict "ALLOW": an overlay may only narrow`},
		"escalates":        {func(o *guard.Overlay) { o.Rules[0].Verdict = contract.Escalate }, ""},
		"no kinds":         {func(o *guard.Overlay) { o.Rules[0].Kinds = nil }, "rules[0].kinds:"},
		"no reason":        {func(o *guard.Overlay) { o.Rules[0].Reason = "" }, "rules[0].reason_code:"},
		"approval of DENY": {func(o *guard.Overlay) { o.Rules[0].Approval = &rule }, "rules[0].approval: belongs to ESCALATE"},
		"approval":         {func(o *guard.Overlay) { o.Rules[0].Verdict, o.Rules[0].Approval = contract.Escalate, &rule }, ""},
		"approval, no time": {func(o *guard.Overlay) {
			o.Rules[0].Verdict, o.Rules[0].Approval = contract.Escalate, &contract.ApprovalRule{Quorum: 1}
		}, "rules[0].approval.timeout_ms:"},
		"the second rule": {func(o *guard.Overlay) { o.Rules = append(o.Rules, guard.OverlayRule{}) }, "rules[1].verdict"},
	} {
		o := guard.Overlay{ID: "o", Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{{Kinds: []string{"tool.*"}, Reason: "R", Verdict: contract.Deny}}}
		c.change(&o)
		wrong(t, name, o.Validate(), c.want)
	}
}

// TestOverlayApplies shows for which calls and until when an overlay applies.
func TestOverlayApplies(t *testing.T) {
	for _, c := range []struct {
		scope, subject, expires string
		want                    bool
	}{
		{"tenant", "t", "", true}, {"tenant", "u", "", false}, {"tenant", "alice", "", false},
		{"session", "s-1", "", true}, {"session", "mine", "", true}, {"session", "s-2", "", false},
		{"agent", "alice", "", true}, {"agent", "bob", "", true}, {"agent", "carol", "", false},
		{"tenant", "t", "2026-05-04T03:02:01.000Z", false}, {"tenant", "t", "2026-05-04T03:02:01.001Z", true}, {"tenant", "t", "2026-05-04T03:02:00.999Z", false},
	} {
		f := inputs().Facts
		f.SessionName, f.OnBehalfOf, f.Delegator = "mine", "bob", &guard.DelegatorFact{}
		o := guard.Overlay{Scope: c.scope, Subject: c.subject, Expires: c.expires}
		if o.Applies(&f) != c.want {
			t.Errorf("%+v: %v", c, !c.want)
		}
	}
	f := inputs().Facts
	if f.OnBehalfOf = "bob"; (&guard.Overlay{Scope: "agent", Subject: "bob"}).Applies(&f) {
		t.Error("on behalf of bob, who delegated nothing")
	}
}

// TestOverlayAnswer shows that a kind which is not listed in Only is denied, that for
// other kinds the first rule that matches kind, class and labels counts, and that every
// answer has the overlay's sandbox.
func TestOverlayAnswer(t *testing.T) {
	limits := &contract.Sandbox{MemoryMiB: 1}
	o := guard.Overlay{Sandbox: limits, Only: []string{"tool.*", "vault.put"}, Rules: []guard.OverlayRule{
		{Kinds: []string{"vault.*"}, Reason: "VAULT", Verdict: contract.Deny},
		{Kinds: []string{"tool.*"}, Classes: []string{"E3", "E4"}, Labels: []string{"web", "pii"}, Reason: "TAINTED", Verdict: contract.Escalate, Approval: &rule},
		{Kinds: []string{"tool.*"}, Classes: []string{"E4"}, Reason: "HIGH", Verdict: contract.Escalate},
	}}
	for name, c := range map[string]struct {
		kind, class string
		labels      []string
		verdict     string
		reason      string
		approvals   int
	}{
		"not listed":                {"llm.chat", "E0", nil, contract.Deny, contract.ReasonOverlayNotListed, 0},
		"the first rule":            {"vault.put", "E0", nil, contract.Deny, "VAULT", 0},
		"every label":               {"tool.x", "E3", []string{"pii", "a", "web"}, contract.Escalate, "TAINTED", 1},
		"a label missing":           {"tool.x", "E3", []string{"web"}, "", "", 0},
		"the next rule":             {"tool.x", "E4", []string{"web"}, contract.Escalate, "HIGH", 0},
		"another class":             {"tool.x", "E1", []string{"pii", "web"}, "", "", 0},
		"a tool without class":      {"tool.x", "", []string{"pii", "web"}, contract.Escalate, "TAINTED", 1},
		"a tool that is not known ": {"tool.x", "nil", []string{"pii", "web"}, contract.Escalate, "TAINTED", 1},
	} {
		tool := &contract.Tool{Class: c.class}
		if c.class == "nil" {
			tool = nil
		}
		a := o.Answer(&guard.Facts{Kind: c.kind, Labels: c.labels}, tool)
		if a.Verdict != c.verdict || a.Reason != c.reason || len(a.Approvals) != c.approvals || a.Sandbox != limits {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if a := (&guard.Overlay{}).Answer(&guard.Facts{Kind: "x"}, nil); a.Verdict != "" {
		t.Errorf("an overlay without a list: %+v", a)
	}
}

// TestCheckLimits checks the error of CheckLimits for limits that differ from a valid
// one in one or two fields.
func TestCheckLimits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *guard.Limit)
		want   string
	}{
		"valid":             {func(*guard.Limit) {}, ""},
		"id":                {func(l *guard.Limit) { l.ID = "" }, "limits[1].id: want"},
		"of a virtual key":  {func(l *guard.Limit) { l.ID = guard.KeyLimit + "1" }, "limits[1].id: begins with key_"},
		"id used twice":     {func(l *guard.Limit) { l.ID = "a" }, "limits[1].id: is used twice"},
		"level":             {func(l *guard.Limit) { l.Level = "galaxy" }, "limits[1].level: want one of organization, project"},
		"measure":           {func(l *guard.Limit) { l.Measure = "smiles" }, "limits[1].measure:"},
		"window":            {func(l *guard.Limit) { l.Window = "week" }, "limits[1].window:"},
		"below zero":        {func(l *guard.Limit) { l.Max = -1 }, "limits[1].max:"},
		"zero":              {func(l *guard.Limit) { l.Max = 0 }, ""},
		"the largest":       {func(l *guard.Limit) { l.Max = canon.MaxInt }, ""},
		"larger":            {func(l *guard.Limit) { l.Max = canon.MaxInt + 1 }, "limits[1].max:"},
		"escalates":         {func(l *guard.Limit) { l.OnExceed = "escalate" }, ""},
		"does what else":    {func(l *guard.Limit) { l.OnExceed = "allow" }, "limits[1].on_exceed:"},
		"twice and no more": {func(l *guard.Limit) { l.ID, l.Level = "a", "galaxy" }, "limits[1].id: is used twice"},
	} {
		a := guard.Limit{ID: "a", Level: "agent", Max: 1, Measure: "calls", Window: "day"}
		b := guard.Limit{ID: "b", Level: "key", Max: 1, Measure: "tokens", Window: "total"}
		c.change(&b)
		wrong(t, name, guard.CheckLimits([]guard.Limit{a, b}), c.want)
	}
}

// TestAccounts shows which accounts a call is charged to.
func TestAccounts(t *testing.T) {
	f := inputs().Facts
	f.Tenant, f.SessionName, f.Key = "acme_web_prod", "mine", &guard.KeyFact{ID: "k-1"}
	for _, c := range []struct {
		level, subject string
		want           []string
	}{
		{"organization", "", []string{"l/organization:acme"}}, {"project", "", []string{"l/project:acme_web"}}, {"environment", "", []string{"l/environment:acme_web_prod"}},
		{"agent", "", []string{"l/agent:alice"}}, {"session", "", []string{"l/session:s-1"}}, {"key", "", []string{"l/key:k-1"}}, {"galaxy", "", nil},
		{"organization", "acme", []string{"l/organization:acme"}}, {"organization", "other", nil}, {"project", "acme", nil}, {"session", "mine", []string{"l/session:s-1"}},
		{"session", "s-1", []string{"l/session:s-1"}}, {"session", "s-2", nil}, {"agent", "bob", nil}, {"key", "k-2", nil},
	} {
		l := guard.Limit{ID: "l", Level: c.level, Subject: c.subject}
		if got := l.Accounts(&f); !slices.Equal(got, c.want) {
			t.Errorf("%s %q: %v, want %v", c.level, c.subject, got, c.want)
		}
	}
	agent := guard.Limit{ID: "l", Level: "agent"}
	f.OnBehalfOf = "bob"
	if got := agent.Accounts(&f); !slices.Equal(got, []string{"l/agent:alice"}) {
		t.Error("nothing was delegated:", got)
	}
	f.Delegator = &guard.DelegatorFact{}
	if got := agent.Accounts(&f); !slices.Equal(got, []string{"l/agent:alice", "l/agent:bob"}) {
		t.Error(got)
	}
	if f.OnBehalfOf = "alice"; len(agent.Accounts(&f)) != 1 {
		t.Error("one principal is charged twice")
	}
	f.Tenant, f.Key = "acme", nil
	for level, want := range map[string]int{"organization": 1, "project": 1, "key": 0} {
		if got := (&guard.Limit{ID: "l", Level: level}).Accounts(&f); len(got) != want || want == 1 && got[0] != "l/"+level+":acme" {
			t.Errorf("%s of a tenant of one part: %v", level, got)
		}
	}
	f.Tenant = contract.CellTenant
	for level, want := range map[string]int{"organization": 0, "project": 0, "environment": 1} {
		if got := (&guard.Limit{ID: "l", Level: level}).Accounts(&f); len(got) != want {
			t.Errorf("%s of the cell's tenant: %v", level, got)
		}
	}
}

// TestWeights checks the risk points of each effect class, and which obligations
// are valid.
func TestWeights(t *testing.T) {
	for class, want := range map[string]int64{"E0": 0, "E1": 1, "E2": 2, "E3": 5, "E4": 10, "": 5, "E9": 5} {
		if got := guard.RiskPoints(class); got != want {
			t.Errorf("%q: %d, want %d", class, got, want)
		}
	}
	for o, ok := range map[string]bool{"tool.withhold:rm": true, "content.flag:pii": true, "content.redact:all": true, "content.block:secret": true,
		"content.block:": false, "tool.withhold": false, "": false, "content.praise:pii": false,
		guard.ObligeFlag + strings.Repeat("x", 256-len(guard.ObligeFlag)): true, guard.ObligeFlag + strings.Repeat("x", 257-len(guard.ObligeFlag)): false} {
		if err := guard.CheckObligation(o); (err == nil) != ok {
			t.Errorf("%q: %v", o, err)
		}
	}
}

// TestForRules shows that bundles do not receive facts that are known only after their
// evaluation, and receive the session under the caller's name for it.
func TestForRules(t *testing.T) {
	f := inputs().Facts
	f.Approvals, f.Budget, f.Resolution, f.Resolved = []guard.ApprovalFact{{}}, &guard.BudgetFact{}, "granted", f.Now
	g := f.ForRules()
	if g.Approvals != nil || g.Budget != nil || g.Resolution != "" || g.Resolved != "" || g.Session != "s-1" || g.Actor != "alice" || f.Budget == nil {
		t.Errorf("%+v", g)
	}
	f.SessionName = "mine"
	if g := f.ForRules(); g.Session != "mine" || g.SessionName != "" || f.Session != "s-1" {
		t.Errorf("%+v", g)
	}
}
