package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Two tenants of one organization, besides the original tenant, t.
const (
	tenantA = "acme_web_prod"
	tenantB = "acme_web_test"
)

// in stores a new event of a service in a tenant.
func (l *ledger) in(tenant, service, name, key string, data canon.Document) {
	l.t.Helper()
	e := l.other.In(tenant).New(name, key, contract.Bytes(data), nil)
	e.Source = service + "/" + service + "-1"
	if _, err := l.other.Append(context.Background(), e); err != nil {
		l.t.Fatal(err)
	}
}

// opened returns a founded ledger whose cell is opened, with the tenants tenantA and
// tenantB, and an instance of policy. tool.pay needs an approval.
func opened(t *testing.T) (l *ledger, m *member) {
	l = founded(t, nil)
	l.published("t")
	l.open("t")
	l.created("prod")
	l.created("test")
	return l, l.join("policy-1")
}

// published publishes the root key in a tenant.
func (l *ledger) published(tenant string) {
	l.t.Helper()
	l.in(tenant, "provision", contract.EventKeyPublished, "key-root", &contract.TrustKey{KID: key(l.t, "root").KID})
}

// open opens the cell of a ledger whose root key was published in the tenant log.
func (l *ledger) open(log string) {
	l.t.Helper()
	root := key(l.t, "root")
	o := &contract.CellOpened{Cell: contract.CellTenant, Log: log, SignerKID: root.KID, Tenant: "t"}
	o.Sig = root.Sign(sign.DomainCell, contract.Bytes(o))
	l.in(log, "provision", contract.EventCellOpened, "cell", o)
}

// created creates a tenant of the organization acme.
func (l *ledger) created(environment string) {
	l.t.Helper()
	id := "acme_web_" + environment
	l.in(contract.CellTenant, "policy", contract.EventTenantCreated, contract.TenantKey(id), &contract.TenantCreated{Admin: "ann", Organization: "acme", Project: "web", Environment: environment, Tenant: id})
}

// decided proposes a call in a tenant, of alice unless change sets another actor, and returns
// its id and the result of the decision: the reason code of a denial, "escalated", or "" if the
// call is allowed.
func (l *ledger) decided(ctx context.Context, m *member, tenant, kind string, change func(*contract.Event, *contract.Call)) (call, reason string) {
	l.t.Helper()
	d := l.propose("echo", func(e *contract.Event, c *contract.Call) {
		e.Tenant, e.Session = tenant, contract.SessionID(tenant, "alice", "s-mine")
		c.Kind, c.Tool = kind, strings.TrimPrefix(kind, "tool.")
		if change != nil {
			change(e, c)
		}
	})
	if err := m.decider.take(ctx, d); err != nil {
		l.t.Fatal(err)
	}
	call = l.callOf(d)
	m.follow()
	for _, name := range []string{contract.EventAllowed, contract.EventEscalated} {
		for _, e := range l.of(name) {
			if e.CallID == call && e.Tenant == tenant {
				return call, strings.TrimPrefix(name, contract.EventAllowed)
			}
		}
	}
	_, reason = l.outcome(call)
	return call, reason
}

// TestTenants shows that events of one tenant that suspend a principal, set limits,
// approve or retire a tool, or freeze the mesh have no effect on the calls of another
// tenant. Calls of suspended and unknown tenants, calls in the cell's own tenant by an
// actor who is not an operator, and calls of other tenants that govern the cell are
// denied.
func TestTenants(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		running, stop := context.WithCancel(ctx)
		defer stop()
		m.keepUp(running)
		want := func(what, tenant, kind, reason string) {
			t.Helper()
			if _, got := l.decided(ctx, m, tenant, kind, nil); got != reason {
				t.Errorf("%s: a call of %s in %s: %q, want %q", what, kind, tenant, got, reason)
			}
		}
		for _, tenant := range []string{"t", tenantA, tenantB} {
			want("at first", tenant, "tool.echo", "")
		}
		one := contract.Bytes(&guard.Limits{Limits: []guard.Limit{{ID: "l", Level: "environment", Measure: "calls", Max: 0, Window: "day"}}})
		for _, c := range []struct {
			name, key string
			data      canon.Document
			reason    string
			undo      string
			back      canon.Document
		}{
			{events.PrincipalSuspendedName, "identity", &events.PrincipalSuspended{Principal: "alice", Reason: "x"}, contract.ReasonPrincipalSuspended, events.PrincipalResumedName, &events.PrincipalResumed{Principal: "alice", Reason: "x"}},
			{events.LimitsSetName, "limits", &events.LimitsSet{Limits: one}, contract.ReasonBudgetExceeded, events.LimitsSetName, &events.LimitsSet{Limits: contract.Bytes(&guard.Limits{})}},
			{contract.EventToolApproved, "tools", &contract.ToolApproved{Digest: "sha256:0", Kind: "tool.echo"}, contract.ReasonToolDrift, "", nil},
		} {
			l.in(tenantA, "policy", c.name, c.key, c.data)
			m.follow()
			want(c.name, tenantA, "tool.echo", c.reason)
			want(c.name, tenantB, "tool.echo", "")
			want(c.name, "t", "tool.echo", "")
			if c.back != nil {
				l.in(tenantA, "policy", c.undo, c.key, c.back)
				m.follow()
				want(c.undo, tenantA, "tool.echo", "")
			}
		}
		l.in(tenantA, "policy", events.MeshFrozenName, "freeze", &events.MeshFrozen{ID: "f-1", Reason: "x"})
		l.in(tenantA, "session-runner", contract.EventToolRetired, "tool-echo", &contract.Tool{Executor: "session-runner", Kind: "tool.echo", Tool: "echo", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)})
		l.in(contract.CellTenant, "policy", contract.EventTenantSuspended, "tenant-"+tenantA, &contract.TenantState{Reason: "x", Tenant: tenantA})
		m.follow()
		want("A is suspended", tenantA, "tool.echo", contract.ReasonTenantSuspended)
		want("A tried to freeze the mesh", tenantB, "tool.echo", "")
		want("unknown", "acme_web_old", "tool.echo", contract.ReasonTenantIsolation)
		want("budget", "_org-acme", "tool.echo", contract.ReasonTenantIsolation)
		want("alice is not an operator", contract.CellTenant, "tool.echo", contract.ReasonOperatorRequired)
		want("outside", tenantB, "policy.freeze", contract.ReasonTenantIsolation)
		if r := m.governor.handle(ctx, inTenant(tenantB, work("alice", "policy.freeze", `{"reason":"x"}`))); r.ErrorCode != contract.CodeInvalidInput {
			t.Errorf("%+v", r)
		}
		if r := m.governor.handle(ctx, inTenant("acme_web_old", work("alice", "policy.suspend_principal", `{"principal":"bob","reason":"x"}`))); r.ErrorCode != contract.CodeInvalidInput {
			t.Errorf("%+v", r)
		}
	})
}

// inTenant changes the tenant of a governing call.
func inTenant(tenant string, w *execute.Work) *execute.Work {
	w.Event.Tenant = tenant
	return w
}

// TestForeignVotes shows that principals of one tenant cannot vote on a call of another,
// in person or with a ballot, that a key for bundles of one tenant is rejected in
// another, and that a governing call of one tenant does not change another.
func TestForeignVotes(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		for _, tenant := range []string{"t", tenantA, tenantB} {
			for _, who := range []string{"bob", "carol"} {
				l.in(tenant, "policy", events.PrincipalRegisteredName, "identity", &events.PrincipalRegistered{Principal: who, Type: "person"})
				l.in(tenant, "policy", events.RoleGrantedName, "identity", &events.RoleGranted{Principal: who, Role: guard.DefaultRole})
			}
		}
		m.follow()
		call, reason := l.decided(ctx, m, tenantB, "tool.pay", nil)
		if reason != contract.EventEscalated {
			t.Fatal(reason)
		}
		k := key(t, "ballot")
		shown := &m.states.Of(tenantB).WaitingFor(call).Escalated.Decision
		sig := k.Sign(sign.DomainApproval, contract.Bytes(guard.BallotOf(&contract.Approval{Approver: "carol", CallID: call, KID: k.KID, Reason: "seen", Tenant: tenantB, Vote: contract.Grant}, shown)))
		ballot := `{"call_id":"` + call + `","kid":"` + k.KID + `","reason":"seen","sig":"` + sig + `","vote":"grant"}`
		plain := `{"call_id":"` + call + `","reason":"seen","vote":"grant"}`
		for _, c := range []struct{ tenant, args, code string }{{tenantA, plain, contract.CodeNotFound}, {"t", plain, contract.CodeNotFound}, {tenantA, ballot, contract.CodeNotFound}, {"t", ballot, contract.CodeNotFound}, {tenantB, ballot, contract.CodeInvalidInput}} {
			if r := m.governor.handle(ctx, inTenant(c.tenant, work("bob", kindVote, c.args))); r.ErrorCode != c.code {
				t.Errorf("%s of %s: %+v", c.args, c.tenant, r)
			}
		}
		if m.ballots.verifies(&contract.Event{Tenant: tenantB, Actor: "bob"}, []byte(ballot)) {
			t.Error("a ballot with a key of the original tenant verifies for another")
		}
		if r := m.governor.handle(ctx, inTenant(tenantB, work("bob", kindVote, plain))); r.ErrorCode != "" {
			t.Errorf("%+v", r)
		}
		if _, err := m.activator.bundleKey("t", key(t, "bundler").KID); err != nil {
			t.Error(err)
		}
		if _, err := m.activator.bundleKey(tenantA, key(t, "bundler").KID); err == nil {
			t.Error("a key of the original tenant signs bundles of another")
		}
		if r := m.governor.handle(ctx, inTenant(tenantA, work("ann", "policy.suspend_principal", `{"principal":"bob","reason":"x"}`))); r.ErrorCode != "" {
			t.Fatalf("%+v", r)
		}
		m.follow()
		if m.states.Of(tenantA).MayVote("bob") == nil || m.states.Of(tenantB).MayVote("bob") != nil {
			t.Error("which bob is suspended is wrong")
		}
	})
}

// TestTenantCreatedMeanwhile shows that, if another instance has just created a tenant, the
// decision on a call and the execution of a governing call wait until this instance has
// applied the tenant's creation.
func TestTenantCreatedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		waits := func(environment string, f func(tenant string) string) {
			t.Helper()
			ended, end := context.WithCancel(ctx)
			defer end()
			go func() {
				time.Sleep(500 * time.Millisecond)
				l.created(environment)
				for ended.Err() == nil {
					m.follow()
					sleep(ended, 5*time.Millisecond)
				}
			}()
			began := time.Now()
			if failed := f("acme_web_" + environment); failed != "" {
				t.Error(failed)
			}
			if waited := time.Since(began); waited < 500*time.Millisecond || waited > 2*time.Second {
				t.Error("the call waited", waited)
			}
		}
		waits("stage", func(tenant string) string {
			_, reason := l.decided(ctx, m, tenant, "tool.echo", nil)
			return reason
		})
		overlay := contract.Bytes(&guard.Overlay{ID: "o", Scope: "agent", Subject: "ann", Rules: []guard.OverlayRule{{Kinds: []string{"tool.echo"}, Reason: "DENY_O", Verdict: contract.Deny}}})
		for i, c := range [][2]string{{"policy.grant_role", `{"principal":"bob","role":"r"}`}, {kindActivate, fmt.Sprintf(`{"layer":"p2","name":"o","document":%q}`, overlay)}} {
			waits(fmt.Sprint("stage", i), func(tenant string) string {
				return m.governor.handle(ctx, inTenant(tenant, work("ann", c[0], c[1]))).ErrorMessage
			})
		}
	})
}

// TestTenantNotRead shows that a call of a tenant that is not known is not decided while
// the instance cannot read the ledger, and that a call of the first operator is allowed
// although the instance has not applied the opening of the cell.
func TestTenantNotRead(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		down := errors.New("down")
		m.reach = func(context.Context) error { return down }
		d := l.propose("echo", func(e *contract.Event, _ *contract.Call) {
			e.Tenant, e.Session = "acme_web_stage", contract.SessionID("acme_web_stage", "alice", "s-mine")
		})
		if err := m.decider.take(ctx, d); !errors.Is(err, down) {
			t.Fatalf("decided although the tenant's creation cannot be read: %v", err)
		}
	})
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		late := l.join("policy-2")
		l.published("t")
		late.follow()
		l.open("t")
		l.operator("operator", time.Time{}, false)
		late.reach = func(context.Context) error { late.follow(); return nil }
		_, reason := l.decided(ctx, late, contract.CellTenant, "tool.echo", func(e *contract.Event, _ *contract.Call) {
			e.Actor, e.Session = "operator", contract.SessionID(contract.CellTenant, "operator", "s-mine")
		})
		if reason != "" {
			t.Error(reason)
		}
	})
}

// TestFirstEscalation shows that a vote waits for the escalation of its call if this
// instance has not applied the escalation yet, even if that is the tenant's first event.
func TestFirstEscalation(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		l.operator("operator", time.Time{}, false)
		m.follow()
		d := l.propose("pay", func(e *contract.Event, _ *contract.Call) {
			e.Tenant, e.Actor, e.Session = contract.CellTenant, "operator", contract.SessionID(contract.CellTenant, "operator", "s-mine")
		})
		if err := m.decider.take(ctx, d); err != nil || len(l.of(contract.EventEscalated)) != 1 {
			t.Fatal("the call is not escalated", err)
		}
		go func() {
			time.Sleep(200 * time.Millisecond)
			m.follow()
		}()
		r := m.governor.handle(ctx, governing("g-1", kindVote, `{"call_id":"`+l.callOf(d)+`","reason":"seen","vote":"grant"}`))
		if !strings.Contains(r.ErrorMessage, "is not registered") {
			t.Errorf("%+v", r)
		}
	})
}

// governing returns the work of a governing call of an operator in the cell's tenant. The
// claim of the call has the id of the call.
func governing(id, kind, args string) *execute.Work {
	w := inTenant(contract.CellTenant, work("operator", kind, args))
	w.Event.ID, w.Event.CallID, w.Call.ID = id, id, id
	return w
}

const createAcme = `{"organization":"acme","project":"web","environment":"stage","admin":"ann"}`

// TestCreatedOnce shows that, if two instances execute calls that create the same tenant
// concurrently, one call succeeds and the other one fails because the tenant exists.
func TestCreatedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, first := opened(t)
		second := l.join("policy-2")
		results := make(chan execute.Result, 2)
		// Both instances have read the history before either appends.
		var reading sync.WaitGroup
		reading.Add(2)
		for i, m := range []*member{first, second} {
			var once sync.Once
			m.faults.failBefore(func(subject string) error {
				if strings.Contains(subject, contract.EventTenantCreated) {
					once.Do(func() { reading.Done(); reading.Wait() })
				}
				return nil
			})
			m.keepUp(ctx)
			go func() {
				results <- m.governor.handle(ctx, governing([]string{"g-1", "g-2"}[i], "tenant.create", createAcme))
			}()
		}
		a, b := <-results, <-results
		if a.ErrorCode != "" {
			a, b = b, a
		}
		if a.ErrorCode != "" || !strings.Contains(string(a.Output), `"tenant":"acme_web_stage"`) {
			t.Errorf("no instance creates the tenant: %+v", a)
		}
		if b.ErrorCode != contract.CodeInvalidInput || b.ErrorMessage != "environment: tenant acme_web_stage exists: choose another name" {
			t.Errorf("the tenant is created twice: %+v", b)
		}
		created := l.of(contract.EventTenantCreated)
		if n := len(created); n != 3 || created[2].Tenant != contract.CellTenant || created[2].Key != "tenant-acme_web_stage" {
			t.Errorf("%d tenants", n)
		}
		if _, reason := l.decided(ctx, second, "acme_web_stage", "tool.echo", nil); reason != "" {
			t.Error("a call of the new tenant:", reason)
		}
	})
}

// TestTenantCallAgain shows that a call that an instance executed, but whose outcome it
// did not record, has the same result when it is executed again, and no second effect.
func TestTenantCallAgain(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		m.faults.failAfter(once(1, contract.EventTenantCreated)) // the event is stored, but its acknowledgement is lost
		if r := m.governor.handle(ctx, governing("g-1", "tenant.create", createAcme)); r.ErrorCode != contract.CodeUnavailable {
			t.Fatalf("%+v", r)
		}
		other := l.join("policy-2")
		again := other.governor.handle(ctx, governing("g-1", "tenant.create", createAcme))
		ev := l.of(contract.EventTenantCreated)[2]
		if again.ErrorCode != "" || again.EffectType != "policy.tenant_created" || string(again.Output) != `{"event":"`+ev.ID+`","result":`+string(ev.Data)+`}` {
			t.Errorf("%+v", again)
		}
		if n := len(l.of(contract.EventTenantCreated)); n != 3 {
			t.Errorf("%d tenants", n)
		}
		if r := other.governor.handle(ctx, governing("g-2", "tenant.create", createAcme)); r.ErrorCode != contract.CodeInvalidInput {
			t.Errorf("another call creates the tenant again: %+v", r)
		}
	})
}

// TestTenantCalls shows that the suspension and the resumption of a tenant take effect on the
// next decision, that suspensions and quotas are shown in the list of tenants, and that
// tenant.create is rejected in tenants other than the cell's own, and before the cell is
// opened.
func TestTenantCalls(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		for i, c := range []struct{ kind, args, tenant, reason string }{
			{"tenant.suspend", `{"tenant":"` + tenantA + `","reason":"unpaid"}`, tenantA, contract.ReasonTenantSuspended},
			{"tenant.resume", `{"tenant":"` + tenantA + `","reason":"paid"}`, tenantA, ""},
			{"tenant.suspend", `{"tenant":"t","reason":"moved"}`, "t", contract.ReasonTenantSuspended},
			{"tenant.set_quota", `{"tenant":"` + tenantB + `","quota":{"in_flight":2}}`, tenantB, ""},
		} {
			if r := m.governor.handle(ctx, governing("g-"+string(rune('a'+i)), c.kind, c.args)); r.ErrorCode != "" {
				t.Fatalf("%s: %+v", c.kind, r)
			}
			m.follow()
			if _, reason := l.decided(ctx, m, c.tenant, "tool.echo", nil); reason != c.reason {
				t.Errorf("after %s %s: %q, want %q", c.kind, c.args, reason, c.reason)
			}
		}
		rows, err := m.queries.tenants(ctx, nil)
		b, _ := json.Marshal(rows)
		since := func(i int) string { return `"since":"` + rows[i].Since + `","suspended":` }
		want := `[{"environment":"prod","organization":"acme","original":false,"project":"web","quota":{},` + since(0) + `false,"tenant":"` + tenantA + `"},` +
			`{"environment":"test","organization":"acme","original":false,"project":"web","quota":{"in_flight":2},` + since(1) + `false,"tenant":"` + tenantB + `"},` +
			`{"original":true,"quota":{},` + since(2) + `true,"tenant":"t"}]`
		if err != nil || string(b) != want {
			t.Errorf("%s, want\n%s, %v", b, want, err)
		}
		for _, tenant := range []string{"t", tenantA} {
			w := inTenant(tenant, governing("g-"+tenant, "tenant.create", createAcme))
			if r := m.governor.handle(ctx, w); r.ErrorCode != contract.CodeInvalidInput || !strings.Contains(r.ErrorMessage, "operator") {
				t.Errorf("a call of %s creates a tenant: %+v", tenant, r)
			}
		}
		one := founded(t, nil)
		w := inTenant("t", governing("g-1", "tenant.create", createAcme))
		if r := one.join("policy-1").governor.handle(ctx, w); r.ErrorCode != contract.CodeInvalidInput || !strings.Contains(r.ErrorMessage, "binnacle trust cell") {
			t.Errorf("a tenant is created before the cell is opened: %+v", r)
		}
		if n := len(one.of(contract.EventTenantCreated)) + len(l.of(contract.EventTenantCreated)); n != 2 {
			t.Errorf("%d tenants", n)
		}
	})
}

// operator stores a signed document that delegates the operation of the mesh to a
// principal until notAfter, or for good if that is the zero time, or withdraws it.
func (l *ledger) operator(principal string, notAfter time.Time, withdrawn bool) {
	l.t.Helper()
	root := key(l.t, "root")
	o := &contract.Operator{Issued: contract.Time(time.Now()), Principal: principal, SignerKID: root.KID, Withdrawn: withdrawn}
	if !notAfter.IsZero() {
		o.NotAfter = contract.Time(notAfter)
	}
	o.Sig = root.Sign(sign.DomainOperator, contract.Bytes(o))
	name := contract.EventOperatorDelegated
	if withdrawn {
		name = contract.EventOperatorWithdrawn
	}
	l.in(contract.CellTenant, "provision", name, "operator", o)
}

// TestOperators shows that a call of the cell's tenant is denied unless its actor is an
// operator when it is decided, also when it is decided again after it was approved. A
// principal whose delegation has expired or was withdrawn is no operator. The built-in
// policy allows the calls about tenants only to operators with the scope cell:admin.
func TestOperators(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		l.operator("operator", time.Time{}, false)
		l.operator("oscar", time.Now().Add(time.Hour), false)
		l.operator("olga", time.Time{}, false)
		for i := range tools {
			l.in(contract.CellTenant, "policy", contract.EventToolRegistered, catalog.Key(tools[i].Kind), &tools[i])
		}
		m.follow()
		kinds := map[string]string{"tool.echo": `{"n":1}`, "tool.pay": `{"n":1}`, "tenant.create": createAcme, "tenant.suspend": `{"tenant":"t","reason":"x"}`, "tenant.resume": `{"tenant":"t","reason":"x"}`,
			"tenant.set_quota": `{"tenant":"t","quota":{"in_flight":1}}`, "policy.freeze": `{"reason":"x"}`, "policy.grant_role": `{"principal":"ann","role":"r"}`}
		decide := func(who, kind string, scopes ...string) (call, reason string) {
			return l.decided(ctx, m, contract.CellTenant, kind, func(e *contract.Event, c *contract.Call) {
				e.Actor, e.Session = who, contract.SessionID(contract.CellTenant, who, "s-mine")
				c.Tool, c.Scopes = strings.TrimPrefix(kind, "tool."), scopes
				c.Args = contract.NewContent(make([]byte, contract.SaltSize), canonical(kinds[kind]), "application/json")
			})
		}
		all := []string{"tools:call", "policy:admin", "cell:admin"}
		each := func(who, want string) {
			t.Helper()
			for kind := range kinds {
				want := want
				if kind == "tool.pay" && want == "" {
					want = contract.EventEscalated
				}
				if _, reason := decide(who, kind, all...); reason != want {
					t.Errorf("%s calls %s: %q, want %q", who, kind, reason, want)
				}
			}
		}
		for _, who := range []string{"operator", "oscar", "olga"} {
			each(who, "")
		}
		each("admin", contract.ReasonOperatorRequired)
		for kind := range kinds {
			if !strings.HasPrefix(kind, "tenant.") {
				continue
			}
			want := contract.ReasonMissingRequirement
			if _, reason := decide("operator", kind, "tools:call", "policy:admin"); reason != want {
				t.Errorf("%s without cell:admin: %q, want %q", kind, reason, want)
			}
		}
		// olga's call is approved after her delegation was withdrawn.
		call, reason := decide("olga", "tool.pay", all...)
		if reason != contract.EventEscalated {
			t.Fatal(reason)
		}
		l.in(contract.CellTenant, "policy", events.PrincipalRegisteredName, "identity", &events.PrincipalRegistered{Principal: "operator", Type: "person"})
		l.in(contract.CellTenant, "policy", events.RoleGrantedName, "identity", &events.RoleGranted{Principal: "operator", Role: guard.DefaultRole})
		time.Sleep(time.Second) // a document is ignored unless it is newer than the one before
		l.operator("olga", time.Time{}, true)
		m.follow()
		if r := m.governor.handle(ctx, governing("g-vote", kindVote, `{"call_id":"`+call+`","reason":"seen","vote":"grant"}`)); r.ErrorCode != "" {
			t.Fatalf("%+v", r)
		}
		settled(t, ctx, l, m)
		if _, reason := l.outcome(call); reason != contract.ReasonOperatorRequired {
			t.Errorf("the approved call of an operator whose delegation was withdrawn: %q", reason)
		}
		time.Sleep(time.Hour)
		each("operator", "")
		each("oscar", contract.ReasonOperatorRequired)
		each("olga", contract.ReasonOperatorRequired)
	})
}

// TestFirstPerson shows that the administrator of a new tenant governs it as its first
// registered person: the administrator registers a second person alone, and a third one only
// with an approval, and is suspended and resumed like any other person. Persons cannot vote in
// a tenant in which they are not registered.
func TestFirstPerson(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		m.keepUp(ctx)
		for i := range tools {
			l.in(contract.CellTenant, "policy", contract.EventToolRegistered, catalog.Key(tools[i].Kind), &tools[i])
		}
		m.follow()
		do := func(tenant, who, kind, args string) string {
			w := inTenant(tenant, work(who, kind, args))
			r := m.governor.handle(ctx, w)
			m.follow()
			return r.ErrorMessage
		}
		decided := func(tenant, who, kind, args string) string {
			_, reason := l.decided(ctx, m, tenant, kind, func(e *contract.Event, c *contract.Call) {
				e.Actor, e.Session = who, contract.SessionID(tenant, who, "s-mine")
				c.Tool, c.Scopes = kind, []string{"policy:admin"}
				c.Args = contract.NewContent(make([]byte, contract.SaltSize), canonical(args), "application/json")
			})
			return reason
		}
		person := func(name string) string { return `{"principal":"` + name + `","type":"person"}` }
		if got := decided(tenantA, "ann", "policy.register_principal", person("bob")); got != "" {
			t.Errorf("the first person registers a second one: %s", got)
		}
		if got := do(tenantA, "eve", "policy.register_principal", person("eve")); !strings.Contains(got, "only registered persons") {
			t.Errorf("a principal who is not registered registers itself: %s", got)
		}
		if got := do(tenantA, "ann", "policy.register_principal", person("bob")); got != "" {
			t.Error(got)
		}
		if got := decided(tenantA, "ann", "policy.register_principal", person("carol")); got != contract.EventEscalated {
			t.Errorf("a third person is registered without approval: %q", got)
		}
		if got := do(tenantA, "bob", "policy.suspend_principal", `{"principal":"ann","reason":"x"}`); got != "" || m.states.Of(tenantA).MayVote("ann") == nil {
			t.Error(got)
		}
		if got := do(tenantA, "bob", "policy.resume_principal", `{"principal":"ann","reason":"x"}`); got != "" || m.states.Of(tenantA).MayVote("ann") != nil {
			t.Error("the first person is not resumed:", got)
		}
		if m.states.Of(tenantB).MayVote("bob") == nil || m.states.Of("t").MayVote("ann") == nil || m.states.Of(tenantB).MayVote("ann") != nil {
			t.Error("who may vote in the other tenants is wrong")
		}
		if a, b := string(m.states.Dump()), string(l.join("policy-2").states.Dump()); a != b {
			t.Errorf("another instance has\n%s, want\n%s", b, a)
		}
	})
}

// TestTenantBudgets shows that calls of created tenants are reserved in the budget ledger
// of their organization, under limits that a tenant has set for itself alone; that their
// outcomes release the reservations, even if the instance that reserved has ended, or the
// outcome was recorded while no instance ran; and that the accounts are listed for their
// own tenant only.
func TestTenantBudgets(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m := opened(t)
		first, stop := context.WithCancel(ctx)
		m.keepUp(first)
		m.follow()
		limits := inTenant(tenantA, work("ann", "policy.set_limits", `{"limits":[{"id":"l","level":"agent","max":2,"measure":"calls","window":"concurrent"}]}`))
		if r := m.governor.handle(ctx, limits); r.ErrorCode != "" {
			t.Fatalf("%+v", r)
		}
		m.follow()
		run := func(m *member, tenant string, want ...string) (calls []string) {
			t.Helper()
			for _, reason := range want {
				call, got := l.decided(ctx, m, tenant, "tool.echo", nil)
				if got != reason {
					t.Errorf("a call of %s: %q, want %q", tenant, got, reason)
				}
				calls = append(calls, call)
			}
			return calls
		}
		ended := func(call string) {
			t.Helper()
			for _, e := range l.of(contract.EventAllowed) {
				if e.CallID == call {
					l.put("session-runner", contract.EventEffectRecorded, e.Session, &contract.Recorded{Effect: contract.Effect{CallID: call, Status: contract.Succeeded}}, e)
				}
			}
		}
		rows := func(m *member, tenant string) (out string) {
			t.Helper()
			rs, err := m.budget.Rows(ctx, tenant)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rs {
				out += fmt.Sprint(r.Account, "=", r.Reserved, " ")
			}
			return out
		}
		calls := run(m, tenantA, "", "", contract.ReasonConcurrencyExceeded)
		run(m, tenantB, "", "", "")
		run(m, "t", "", "", "")
		for _, e := range l.of(events.AllotmentTakenName) {
			if e.Tenant != "_org-acme" {
				t.Errorf("a reservation is recorded in %s", e.Tenant)
			}
		}
		if got := rows(m, tenantA) + "| " + rows(m, tenantB) + "| " + rows(m, "t"); got != "acme_web_prod.l/agent:alice=2 | | " {
			t.Error(got)
		}
		ended(calls[0])
		time.Sleep(time.Second)
		calls = append(calls, run(m, tenantA, "", contract.ReasonConcurrencyExceeded)...)
		stop() // the instance ends, and the outcomes are recorded while none runs
		time.Sleep(time.Second)
		ended(calls[1])
		ended(calls[3])
		other := l.join("policy-2")
		other.keepUp(ctx)
		other.follow()
		if got := rows(other, tenantA); strings.Contains(got, "=2") || strings.Contains(got, "=1") {
			t.Error("reservations remain:", got)
		}
		run(other, tenantA, "", "", contract.ReasonConcurrencyExceeded)
	})
}
