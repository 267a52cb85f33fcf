package policy

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/tenant"
)

// upgraded is a ledger of release 0.5 with an instance, before its cell is opened. Each
// call has an id of its own.
type upgraded struct {
	*ledger
	m     *member
	calls int
}

func newUpgraded(ctx context.Context, t *testing.T) *upgraded {
	l := founded(t, nil)
	l.published("t")
	u := &upgraded{ledger: l, m: l.join("policy-1")}
	u.m.keepUp(ctx)
	u.m.governor.freezes.live = func(context.Context, string) ([]string, error) { return nil, nil }
	return u
}

// opens opens the cell and creates the tenants tenantA and tenantB.
func (u *upgraded) opens() {
	u.t.Helper()
	u.open("t")
	u.created("prod")
	u.created("test")
	u.m.follow()
}

// do executes a governing call in a tenant and returns its output, or the error message. The
// actor is an operator in the cell's own tenant, and admin in any other tenant.
func (u *upgraded) do(ctx context.Context, tenant, kind, args string) string {
	u.calls++
	w := inTenant(tenant, governing(fmt.Sprint("g-", u.calls), kind, args))
	if tenant != contract.CellTenant {
		w.Event.Actor = "admin"
	}
	r := u.m.governor.handle(ctx, w)
	u.m.follow()
	return r.ErrorMessage + string(r.Output)
}

// want fails the test unless got contains part.
func (u *upgraded) want(what, got, part string) {
	u.t.Helper()
	if !strings.Contains(got, part) {
		u.t.Errorf("%s: %s, want %s", what, got, part)
	}
}

// count returns the number of events in a tenant that have the given name.
func (u *upgraded) count(name, tenant string) (n int) {
	u.t.Helper()
	for _, e := range u.of(name) {
		if e.Tenant == tenant {
			n++
		}
	}
	return n
}

// TestFreezeOverOpening shows that a freeze from before cell_opened remains in force after
// it: the mesh cannot be frozen a second time, the original tenant can no longer end the
// freeze, and a call of the cell's own tenant ends it.
func TestFreezeOverOpening(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		u := newUpgraded(ctx, t)
		u.want("before", u.do(ctx, "t", govern.KindFreeze, `{"reason":"fire"}`), `"reason":"fire"`)
		u.opens()
		for _, tenant := range []string{"t", tenantA} {
			if _, reason := u.decided(ctx, u.m, tenant, "tool.echo", nil); reason != contract.ReasonSystemFrozen {
				t.Errorf("a call of %s: %q", tenant, reason)
			}
		}
		u.want("a second freeze", u.do(ctx, contract.CellTenant, govern.KindFreeze, `{"reason":"x"}`), "already frozen (f-g-1: fire)")
		u.want("the original tenant", u.do(ctx, "t", guard.KindUnfreeze, `{"reason":"x"}`), "tenant t cannot govern the whole mesh")
		u.want("an operator", u.do(ctx, contract.CellTenant, guard.KindUnfreeze, `{"reason":"out"}`), `"id":"f-g-1"`)
		for _, tenant := range []string{"t", tenantA} {
			if _, reason := u.decided(ctx, u.m, tenant, "tool.echo", nil); reason != "" {
				t.Errorf("after the freeze, a call of %s: %q", tenant, reason)
			}
		}
		u.want("again", u.do(ctx, contract.CellTenant, guard.KindUnfreeze, `{"reason":"x"}`), "is not frozen")
		u.want("a new freeze", u.do(ctx, contract.CellTenant, govern.KindFreeze, `{"reason":"smoke"}`), `"reason":"smoke"`)
		u.want("tenant A", u.do(ctx, tenantA, guard.KindUnfreeze, `{"reason":"x"}`), "cannot govern the whole mesh")
		if u.count(events.MeshFrozenName, "t") != 1 || u.count(events.MeshUnfrozenName, contract.CellTenant) != 1 || u.count(events.MeshFrozenName, contract.CellTenant) != 1 || u.count(events.MeshUnfrozenName, "t") != 0 {
			t.Error("the freezes are recorded in the wrong tenants")
		}
	})
}

// TestCeilingsOverOpening shows that the ceilings that a person activated before
// cell_opened remain in force after it although the configuration has older ones, that
// they can be replaced in the cell's own tenant only, and that they are in force again
// after a rollback, also for an instance that starts later.
func TestCeilingsOverOpening(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		u := newUpgraded(ctx, t)
		// The document does not fit in an event, so its content is stored as an object of
		// its tenant.
		doc := func(cents int64) []byte {
			c := guard.Ceilings{MaxCents: cents, Sandbox: *box(), StartWindowMS: 60_000}
			for i := range 600 {
				c.EgressHosts = append(c.EgressHosts, fmt.Sprintf("a-host-of-the-ceilings-%d.example", i))
			}
			return guard.SignP0(key(t, "root"), c)
		}
		activate := func(tenant string, cents int64) string {
			return u.do(ctx, tenant, kindActivate, fmt.Sprintf(`{"layer":"p0","document":%q}`, doc(cents)))
		}
		if len(doc(1)) <= contract.InlineMax {
			t.Fatal("the ceilings fit in an event")
		}
		configured := u.m.ceilings().MaxCents
		file := doc(configured)
		if err := u.m.activator.put(ctx, "p0", "", 0, file); err != nil {
			t.Fatal(err)
		}
		u.want("before", activate("t", 1), `"changed":true`)
		u.opens()
		if err := u.m.activator.put(ctx, "p0", "", 0, file); err != nil {
			t.Fatal(err)
		}
		u.m.follow()
		if got := u.m.ceilings().MaxCents; got != 1 {
			t.Errorf("after the opening, the ceilings have %d", got)
		}
		u.want("the original tenant", activate("t", 7), "tenant t cannot govern the whole mesh")
		u.want("tenant A", activate(tenantA, 7), "cannot govern the whole mesh")
		u.want("an operator", activate(contract.CellTenant, 2), `"changed":true`)
		u.want("the same", activate(contract.CellTenant, 2), `"changed":false`)
		if got := u.m.ceilings().MaxCents; got != 2 {
			t.Errorf("the ceilings have %d", got)
		}
		u.want("a rollback of the original tenant", u.do(ctx, "t", kindRollback, `{"layer":"p0"}`), "cannot govern the whole mesh")
		u.want("a rollback", u.do(ctx, contract.CellTenant, kindRollback, `{"layer":"p0"}`), `"changed":true`)
		for _, m := range []*member{u.m, u.join("policy-2")} {
			if got := m.ceilings().MaxCents; got != 1 {
				t.Errorf("after the rollback, the ceilings have %d", got)
			}
		}
		u.want("forward", u.do(ctx, contract.CellTenant, kindRollback, `{"layer":"p0"}`), `"changed":true`)
		if got := u.m.ceilings().MaxCents; got != 2 {
			t.Errorf("the ceilings have %d", got)
		}
		if n := u.count(contract.EventPolicyActivated, contract.CellTenant); n != 3 {
			t.Errorf("%d activations in the cell's own tenant, want 3", n)
		}
	})
}

// signedBundle returns the args that activate a signed bundle under a name. The bundle
// denies calls of tool.echo with the reason code reason.
func signedBundle(t *testing.T, name, reason string) string {
	t.Helper()
	return signedRules(t, name, 0, "answer := {\"verdict\": \"DENY\", \"reason_code\": \""+reason+"\"} if input.kind == \"tool.echo\"")
}

// signedRules returns the arguments of a call that activates a bundle of these rules.
func signedRules(t *testing.T, name string, precedence int, rules string) string {
	t.Helper()
	seed := sha256.Sum256([]byte("bundler"))
	b, err := rego.Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\n" + rules)}, key(t, "bundler").KID, seed[:])
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"layer":"p1","name":%q,"precedence":%d,"bundle":%q}`, name, precedence, base64.StdEncoding.EncodeToString(b))
}

// TestTenantCannotWiden shows that an administrator of a tenant cannot permit calls that the
// bundles of the cell deny: neither with a bundle of the same name or with a lower precedence
// value, nor by the retirement of a bundle. A bundle of the tenant can still deny calls that
// the bundles of the cell permit. Every decision has the recorded result when it is taken
// again, also a decision from before the cell was opened, when a bundle of the tenant was
// evaluated first.
func TestTenantCannotWiden(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		u := newUpgraded(ctx, t)
		dir := t.TempDir()
		write := func(name string, body []byte) string {
			t.Helper()
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, body, 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		rules := "answer := {\"verdict\": \"DENY\", \"reason_code\": \"DENY_CELL\"} if input.kind == \"tool.echo\"\nelse := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_SCOPED_CALL\"}\n"
		allow := "answer := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_OWN\"}\n"
		cfg := &Config{P0File: write("p0.json", guard.SignP0(key(t, "root"), guard.Ceilings{MaxCents: 3, Sandbox: *box(), StartWindowMS: 60_000})),
			P1Files: []string{write("p.rego", []byte("package binnacle.p1\nimport rego.v1\n"+rules))}}
		if err := u.m.activator.configure(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		u.m.follow()
		reason := func(what, kind, want string) {
			t.Helper()
			if _, got := u.decided(ctx, u.m, "t", kind, nil); got != want {
				t.Errorf("%s: a call of %s: %q, want %q", what, kind, got, want)
			}
		}
		u.want("before", u.do(ctx, "t", kindActivate, signedRules(t, "early", 1, allow)), `"changed":true`)
		reason("before the cell is opened", "tool.echo", "")
		u.opens()
		reason("a bundle from before", "tool.echo", "DENY_CELL")
		for _, c := range []struct {
			name       string
			precedence int
		}{{nameDefault, 1}, {nameDefault, precedenceDefault}, {"a", 1}, {"z", 2000}} {
			u.want("of the attacker", u.do(ctx, "t", kindActivate, signedRules(t, c.name, c.precedence, allow)), `"changed":true`)
			reason(fmt.Sprint("after bundle ", c), "tool.echo", "DENY_CELL")
		}
		u.want("its retirement", u.do(ctx, "t", kindRetire, `{"layer":"p1","name":"default"}`), `"retired":true`)
		reason("after the retirement", "tool.echo", "DENY_CELL")
		u.want("a second retirement", u.do(ctx, "t", kindRetire, `{"layer":"p1","name":"default"}`), "no document with this name")
		reason("what the cell permits", "tool.pay", "")
		u.want("one that narrows", u.do(ctx, "t", kindActivate, signedRules(t, "a", 1, `answer := {"verdict": "DENY", "reason_code": "DENY_OWN"} if input.kind == "tool.pay"`)), `"changed":true`)
		reason("what the tenant denies", "tool.pay", "DENY_OWN")
		u.replayed(ctx)
	})
}

// replayed takes every decision on the ledger again with the events before it, and fails the
// test if a result differs from the recorded one.
func (u *upgraded) replayed(ctx context.Context) {
	u.t.Helper()
	again, n := 0, map[bool]int{}
	st := &state.States{Keep: true, Keys: u.m.states.Keys, Open: u.m.states.Open, Configured: u.m.states.Configured}
	for _, e := range u.of("") {
		if err := st.Apply(e); err != nil {
			u.t.Fatal(err)
		}
		var made struct{ Decision *contract.Decision }
		if json.Unmarshal(e.Data, &made) != nil || made.Decision == nil {
			continue
		}
		d := made.Decision
		eval, err := redecide(st, e, d, []byte(`{"n":1}`), false)
		if err != nil {
			u.t.Fatal(err)
		}
		if verdict, reason, hash := eval.Again(); verdict != d.Verdict || reason != d.ReasonCode || hash != d.PolicyHash {
			u.t.Errorf("%s %s is taken again as %s %s", d.Verdict, d.ReasonCode, verdict, reason)
		}
		again++
		n[eval.Facts().OwnBundles > 0]++
	}
	if again == 0 || n[true] == 0 || n[false] == 0 {
		u.t.Errorf("%d decisions are taken again, %v with bundles of the tenant", again, n)
	}
}

// TestBundlesOverOpening shows that the configured bundles remain in force for every
// tenant after cell_opened and are not activated again; that a changed configuration is
// activated once, in the cell's own tenant, and applies to every tenant; that a bundle that
// a person activated before remains one of the original tenant, and can be rolled back and
// retired there; and that an overlay that a person activates there afterwards can be retired
// there.
func TestBundlesOverOpening(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		u := newUpgraded(ctx, t)
		dir := t.TempDir()
		write := func(name string, body []byte) string {
			t.Helper()
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, body, 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		allow := "package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_SCOPED_CALL\"}\n"
		cfg := &Config{P0File: write("p0.json", guard.SignP0(key(t, "root"), guard.Ceilings{MaxCents: 3, Sandbox: *box(), StartWindowMS: 60_000})), P1Files: []string{write("p.rego", []byte(allow))}}
		configure := func() {
			t.Helper()
			if err := u.m.activator.configure(ctx, cfg); err != nil {
				t.Fatal(err)
			}
			u.m.follow()
		}
		reasons := func(want ...string) {
			t.Helper()
			for i, tenant := range []string{"t", tenantA} {
				if _, reason := u.decided(ctx, u.m, tenant, "tool.echo", nil); reason != want[i] {
					t.Errorf("a call of %s: %q, want %q", tenant, reason, want[i])
				}
			}
		}
		configure()
		u.want("a bundle before", u.do(ctx, "t", kindActivate, signedBundle(t, "mine", "DENY_ONE")), `"changed":true`)
		u.want("another", u.do(ctx, "t", kindActivate, signedBundle(t, "mine", "DENY_TWO")), `"changed":true`)
		before := u.count(contract.EventPolicyActivated, "t")
		u.opens()
		configure()
		if n := u.count(contract.EventPolicyActivated, contract.CellTenant); n != 0 || u.count(contract.EventPolicyActivated, "t") != before {
			t.Errorf("the unchanged configuration is activated again: %d", n)
		}
		reasons("DENY_TWO", "")
		readable := func() {
			t.Helper()
			for _, x := range u.m.states.Of(tenantA).InForce() {
				if len(x.Body) == 0 {
					t.Errorf("the content of %s %s is not found", x.Layer, x.Name)
				}
			}
		}
		readable()
		u.want("a retirement in the cell", u.do(ctx, contract.CellTenant, kindRetire, `{"layer":"p1","name":"mine"}`), "no document with this name")
		u.want("a configured bundle rolled back by the tenant", u.do(ctx, "t", kindRollback, `{"layer":"p1","name":"default"}`), "there is no earlier version")

		u.want("a rollback", u.do(ctx, "t", kindRollback, `{"layer":"p1","name":"mine"}`), `"changed":true`)
		reasons("DENY_ONE", "")
		overlay := contract.Bytes(&guard.Overlay{ID: "o", Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{{Kinds: []string{"tool.echo"}, Reason: "DENY_O", Verdict: contract.Deny}}})
		u.want("an overlay", u.do(ctx, "t", kindActivate, fmt.Sprintf(`{"layer":"p2","name":"o","document":%q}`, overlay)), `"changed":true`)
		u.want("retired", u.do(ctx, "t", kindRetire, `{"layer":"p1","name":"mine"}`), `"retired":true`)
		reasons("DENY_O", "")
		u.want("the overlay retired", u.do(ctx, "t", kindRetire, `{"layer":"p2","name":"o"}`), `"retired":true`)
		reasons("", "")

		write("p.rego", []byte(strings.Replace(allow, "\"ALLOW\", \"reason_code\": \"RULE_SCOPED_CALL\"", "\"DENY\", \"reason_code\": \"DENY_ALL\"", 1)))
		configure()
		configure()
		if n := u.count(contract.EventPolicyActivated, contract.CellTenant); n != 1 {
			t.Errorf("the changed configuration is activated %d times", n)
		}
		reasons("DENY_ALL", "DENY_ALL")
		u.want("a tenant's own", u.do(ctx, tenantA, kindRollback, `{"layer":"p1","name":"default"}`), "there is no earlier version")
		readable()
	})
}

// TestUnnamedOverOpening shows that the bundle of release 0.1, which was in force before
// cell_opened, is retired once, in the cell's own tenant, and is then in force for no
// tenant. Release 0.1 recorded no source of a bundle.
func TestUnnamedOverOpening(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		u := newUpgraded(ctx, t)
		b, err := defaultBundle()
		if err != nil {
			t.Fatal(err)
		}
		c, err := board{u.shelf, "t"}.Commit(ctx, b, "application/gzip")
		if err != nil {
			t.Fatal(err)
		}
		u.in("t", "policy", contract.EventPolicyActivated, keyUnnamed, &contract.Activated{Bundle: c, Digest: sign.Digest(b), Layer: "p1"})
		u.opens()
		for range 2 {
			if err := u.m.activator.retireUnnamed(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if n := u.count(contract.EventPolicyActivated, contract.CellTenant); n != 1 {
			t.Errorf("the unnamed bundle is retired %d times, want 1", n)
		}
		u.m.follow()
		for _, tenant := range []string{"t", tenantA} {
			for _, x := range u.m.states.Of(tenant).InForce() {
				if x.Layer == "p1" && x.Name == "" {
					t.Errorf("the unnamed bundle is in force for %s", tenant)
				}
			}
		}
	})
}

// persons returns the names of the registered persons of a tenant.
func (m *member) persons(tenant string) string {
	var names []string
	m.states.Of(tenant).Read(func(v *state.View) {
		for _, i := range v.People.Identities() {
			if i.Kind == "principal" && i.Type == govern.Person {
				names = append(names, i.Principal)
			}
		}
	})
	return strings.Join(names, " ")
}

// TestPersonsOverOpening shows that bootstrap, which may run again, registers the
// administrator of the original tenant there and the first operator in the cell's own tenant,
// on an old and on a new ledger. On the old ledger, a person of the original tenant cannot
// vote in the cell's own tenant.
func TestPersonsOverOpening(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		u := newUpgraded(ctx, t)
		go u.m.bootstrapOpened(ctx)
		u.want("before", u.do(ctx, "t", "policy.register_principal", `{"principal":"bob","type":"person"}`), `"principal":"bob"`)
		u.opens()
		for range 2 {
			sleep(ctx, time.Second)
			if err := u.m.activator.bootstrap(ctx); err != nil {
				t.Fatal(err)
			}
			u.m.follow()
		}
		if got := u.m.persons("t") + " | " + u.m.persons(contract.CellTenant); got != "admin bob | operator" {
			t.Error(got)
		}
		u.want("a vote in the cell", fmt.Sprint(u.m.states.Of(contract.CellTenant).MayVote("bob")), "is not registered")

		fresh := newLedger(t)
		fresh.published(contract.CellTenant)
		m := fresh.join("policy-1")
		if err := m.activator.bootstrap(ctx); err != nil || len(fresh.of(events.PrincipalRegisteredName)) != 0 {
			t.Error("before the cell of a new ledger is opened, a person is registered", err)
		}
		fresh.open(contract.CellTenant)
		for range 2 {
			if err := m.activator.bootstrap(ctx); err != nil {
				t.Fatal(err)
			}
		}
		m.follow()
		if got := m.persons("t") + " | " + m.persons(contract.CellTenant); got != "admin | operator" {
			t.Error(got)
		}
	})
}

// TestFreezeWhileOpening shows that, if the cell is opened before a freeze of the original
// tenant is stored, the call of the freeze fails and the stored event has no effect.
func TestFreezeWhileOpening(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		u := newUpgraded(ctx, t)
		u.m.faults.failBefore(func(subject string) error {
			if strings.Contains(subject, events.MeshFrozenName) && u.count(contract.EventCellOpened, "t") == 0 {
				u.open("t")
			}
			return nil
		})
		u.want("the freeze", u.do(ctx, "t", govern.KindFreeze, `{"reason":"fire"}`), "tenant t cannot govern the whole mesh")
		if n := u.count(events.MeshFrozenName, "t"); n != 1 {
			t.Errorf("%d freezes are stored", n)
		}
		if _, reason := u.decided(ctx, u.m, "t", "tool.echo", nil); reason != "" {
			t.Error("a call is denied:", reason)
		}
		u.want("an operator", u.do(ctx, contract.CellTenant, govern.KindFreeze, `{"reason":"smoke"}`), `"reason":"smoke"`)
	})
}

// TestAllowedWhileOpening shows that no freeze of the original tenant is allowed after
// cell_opened, although the instance that decides has not applied the opening: the append
// of the decision fails, and the call is then denied. This is necessary because the verifiers
// accept a freeze that was allowed after the opening only if it had no effect.
func TestAllowedWhileOpening(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		u := newUpgraded(ctx, t)
		if err := catalog.Register(ctx, u.m.emit, u.cell, "policy", tools); err != nil {
			t.Fatal(err)
		}
		u.m.follow()
		propose := func() delivery {
			return u.propose("freeze", func(e *contract.Event, c *contract.Call) {
				c.Kind, c.Tool, c.Scopes = govern.KindFreeze, govern.KindFreeze, []string{"policy:admin"}
				c.Args = contract.NewContent(make([]byte, contract.SaltSize), []byte(`{"reason":"fire"}`), "application/json")
			})
		}
		take := func(d delivery) {
			t.Helper()
			for {
				err := u.m.decider.take(ctx, d)
				if err == nil {
					return
				}
				if d.tries++; !errors.Is(err, errMoved) || d.tries > 9 {
					t.Fatal(err)
				}
			}
		}
		first := propose()
		take(first)
		if n := u.count(contract.EventAllowed, "t"); n != 1 {
			_, reason := u.outcome(u.callOf(first))
			t.Fatalf("before the opening, %d freezes are allowed, want 1: %s", n, reason)
		}
		u.m.faults.failBefore(func(subject string) error {
			if strings.Contains(subject, "."+contract.EventAllowed) && u.count(contract.EventCellOpened, "t") == 0 {
				u.open("t")
			}
			return nil
		})
		d := propose()
		take(d)
		status, reason := u.outcome(u.callOf(d))
		if n := u.count(contract.EventAllowed, "t"); n != 1 || status != contract.Denied || reason != contract.ReasonTenantIsolation || u.count(contract.EventCellOpened, "t") != 1 {
			t.Errorf("%d freezes are allowed, and the second is %s %s", n, status, reason)
		}
	})
}

// TestNoTenantsBeforeOpening shows that calls that create or change tenants are denied
// with ReasonTenantIsolation before the cell is opened, and that a freeze is not denied
// for that reason.
func TestNoTenantsBeforeOpening(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		u := newUpgraded(ctx, t)
		for kind, want := range map[string]string{tenant.KindCreate: contract.ReasonTenantIsolation, tenant.KindSuspend: contract.ReasonTenantIsolation,
			tenant.KindResume: contract.ReasonTenantIsolation, tenant.KindSetQuota: contract.ReasonTenantIsolation, govern.KindFreeze: contract.ReasonUnknownTool} {
			if _, reason := u.decided(ctx, u.m, "t", kind, nil); reason != want {
				t.Errorf("%s: %q, want %q", kind, reason, want)
			}
		}
	})
}

// lagging is a registry of keys that has no key until await was called with a sequence of
// at least want.
type lagging struct {
	keyring
	read uint64 // greatest sequence for which await was called
	want uint64 // the registry has its keys if read is at least this sequence
}

func (l *lagging) await(seq uint64) error {
	l.read = max(l.read, seq)
	return nil
}

func (l *lagging) At(kid, owner, use string, lamport uint64) ([]byte, error) {
	if l.read < l.want {
		return nil, errors.New("not read yet")
	}
	return l.keyring.At(kid, owner, use, lamport)
}

// TestLaggingKeys shows that the state applies cell_opened, documents for operators,
// openings of log epochs and activations although the registry of keys, which another
// reader updates, has not read the root key when the state reads these events; and that
// the state is not changed if the registry cannot be waited for.
func TestLaggingKeys(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		l.published("t")
		l.open("t")
		root := key(t, "root")
		o := &contract.Operator{Issued: contract.Time(time.Now()), Principal: "op", SignerKID: root.KID}
		o.Sig = root.Sign(sign.DomainOperator, contract.Bytes(o))
		l.in(contract.CellTenant, "provision", contract.EventOperatorDelegated, "operators", o)
		l.in(contract.CellTenant, "audit", contract.EventLedgerTruncated, "log", &audit.LedgerTruncated{Checkpoint: "sha256:x", Reason: "x"})
		lost := trust.SignEpoch(root, contract.LogEpoch{Checkpoint: "sha256:x", Epoch: 2, Reason: "x", Tenant: contract.CellTenant})
		l.in(contract.CellTenant, "provision", contract.EventLogEpochOpened, "log", &lost)
		whole := l.join("policy-1").states.Dump()

		m := l.join("policy-2")
		m.states, m.read = state.States{Configured: "t"}, 0
		keys := &lagging{keyring: l.ring(), want: 1}
		m.states.Open, m.states.Keys = func(tenant string, c *contract.Content) ([]byte, error) { return m.contents(tenant).Open(ctx, c) }, keys.At
		m.await = func(uint64) error { return errDown }
		en := func() eventlog.Entry {
			for seq := uint64(1); ; seq++ {
				en, err := l.log.Get(ctx, seq)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(en.Subject, contract.EventCellOpened) {
					return en
				}
			}
		}()
		if err := m.apply(en); !errors.Is(err, errDown) || m.states.Opened() {
			t.Error("applied without the keys:", err)
		}
		m.await = func(seq uint64) error { keys.want = seq; return keys.await(seq) }
		m.follow()
		if got := m.states.Dump(); string(got) != string(whole) || !m.states.Opened() || !strings.Contains(string(got), `"principal":"op"`) {
			t.Errorf("the state is\n%s\nwant\n%s", got, whole)
		}
		m.states.Of("t").Read(func(v *state.View) {
			f := guard.Facts{Now: contract.Time(time.Now())}
			if v.AddFacts(&f, time.Now()); f.Truncated {
				t.Error("the opening of the log epoch was ignored")
			}
		})
	})
}
