package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth/authtest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/quota"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestEventsOfAnotherTenant checks that no event of a tenant changes the state of another
// one whose principals, virtual keys, tokens and sessions have the same names, and that
// no such event closes the channel that nextChange returned for the other tenant.
func TestEventsOfAnotherTenant(t *testing.T) {
	hour := contract.Time(time.Now().Add(time.Hour))
	session := contract.SessionID("t", "alice", "s-x")
	docs := map[string]canon.Document{
		contract.EventVirtualKeyCreated:          aKey(""),
		contract.EventVirtualKeyRevoked:          &events.VirtualKeyRevoked{ID: "k1"},
		contract.EventVirtualKeyConsentWithdrawn: &events.VirtualKeyConsentWithdrawn{ID: "k1", Principal: "alice"},
		contract.EventPrincipalRegistered:        &events.PrincipalRegistered{Principal: "mallory"},
		contract.EventPrincipalSuspended:         &events.PrincipalSuspended{Principal: "alice"},
		contract.EventPrincipalResumed:           &events.PrincipalResumed{Principal: "mallory"},
		contract.EventPolicyActivated:            &contract.Activated{Layer: "p2", Name: "o", Digest: "d"},
		contract.EventLoginEnded:                 &events.LoginEnded{ID: "l-1", Principal: "alice", Reason: "x"},
		contract.EventRoleRevoked:                &events.RoleRevoked{Principal: "alice", Role: contract.RoleAdmin},
		contract.EventTokenRevoked:               &events.TokenRevoked{ID: "j1", Principal: "alice", Before: hour},
		contract.EventMemberInvited:              &events.MemberInvited{ID: "iv-1", Code: "d", Principal: "alice", Expires: hour},
		contract.EventInvitationWithdrawn:        &events.InvitationWithdrawn{ID: "iv-1", Reason: "x"},
		contract.EventIdentityLinked:             &events.IdentityLinked{Identity: "i", Invitation: "iv-1", Principal: "alice"},
		contract.EventIdentityUnlinked:           &events.IdentityUnlinked{Identity: "i", Principal: "alice", Reason: "x"},
		contract.EventGroupMapped:                &events.GroupMapped{Group: "g", Role: contract.RoleAdmin},
		contract.EventGroupUnmapped:              &events.GroupUnmapped{Group: "g", Role: contract.RoleAdmin},
		contract.EventGroupsReported:             &events.GroupsReported{Identity: "i", Principal: "alice", Groups: []string{"g"}, Expires: hour},
		contract.EventSessionGranted:             &events.SessionGranted{Session: session, Principal: "eve", Owner: "alice", Expires: hour},
		contract.EventSessionGrantRevoked:        &events.SessionGrantRevoked{Session: session, Principal: "bob"},
	}
	for name := range folds {
		t.Run(name, func(t *testing.T) {
			a := &Authority{}
			apply(t, a, contract.EventVirtualKeyCreated, aKey(""))
			apply(t, a, contract.EventSessionGranted, &events.SessionGranted{Session: session, Principal: "bob", Owner: "alice", Expires: hour})
			apply(t, a, contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "mallory"})
			apply(t, a, contract.EventMemberInvited, docs[contract.EventMemberInvited])
			apply(t, a, contract.EventIdentityLinked, &events.IdentityLinked{Identity: "i", Invitation: "iv-2", Principal: "alice"})
			apply(t, a, contract.EventGroupMapped, docs[contract.EventGroupMapped])
			apply(t, a, contract.EventGroupsReported, docs[contract.EventGroupsReported])
			before, changed := string(a.Dump()), a.ensure("t").nextChange()
			if docs[name] == nil {
				t.Fatal("the test has no event of this name")
			}
			applyIn(t, a, "u", name, docs[name])
			select {
			case <-changed:
				t.Error("the event wakes who waits in the other tenant")
			default:
			}
			own := slices.DeleteFunc(strings.SplitAfter(string(a.Dump()), "\n"), func(l string) bool { return strings.Contains(l, `"tenant":"u"`) })
			if after := strings.Join(own, ""); after != before {
				t.Errorf("the state of the other tenant is\n%swant\n%s", after, before)
			}
			if who, err := a.byKey(rawKey); err != nil || who.Tenant != "t" {
				t.Error("the virtual key of the other tenant:", who, err)
			}
		})
	}
}

// TestDigestOfAnotherTenant checks that a virtual key keeps the tenant that made it
// first, even after its revocation, if another tenant makes a key with the same digest.
func TestDigestOfAnotherTenant(t *testing.T) {
	a := &Authority{}
	apply(t, a, contract.EventVirtualKeyCreated, aKey(""))
	theirs := aKey("")
	theirs.ID, theirs.Actor = "k9", "eve"
	applyIn(t, a, "u", contract.EventVirtualKeyCreated, theirs)
	if who, err := a.byKey(rawKey); err != nil || who.Tenant != "t" || who.Actor != "alice" {
		t.Error("while the key is valid:", who, err)
	}
	applyIn(t, a, "u", contract.EventVirtualKeyRevoked, &events.VirtualKeyRevoked{ID: "k9"})
	if _, err := a.byKey(rawKey); err != nil {
		t.Error("after the revocation in the other tenant:", err)
	}
	apply(t, a, contract.EventVirtualKeyRevoked, &events.VirtualKeyRevoked{ID: "k1"})
	applyIn(t, a, "u", contract.EventVirtualKeyCreated, theirs)
	if who, err := a.byKey(rawKey); !errors.Is(err, errKeyUnknown) {
		t.Error("after its revocation:", who, err)
	}
	again := aKey("")
	again.ID = "k2"
	apply(t, a, contract.EventVirtualKeyCreated, again)
	if who, err := a.byKey(rawKey); err != nil || who.Client != contract.KeyClient+"k2" {
		t.Error("made again by its tenant:", who, err)
	}
}

// TestTenantOfCredential checks that a token or virtual key of a tenant that does not
// exist is not valid (401), that Verify waits up to a second for a tenant that has just
// been created, and that the caller has the tenant of its credential.
func TestTenantOfCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, mint := gateOf(t, "u")
		apply(t, g.Authority, contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "alice"}) // of the tenant t
		applyIn(t, g.Authority, "u", contract.EventVirtualKeyCreated, aKey(""))
		raw := mint("alice", "-", token.Audit)
		for name, cred := range map[string]string{"token": raw, "virtual key": rawKey} {
			began := time.Now()
			_, err := g.Verify(t.Context(), cred)
			var e *apierr.Error
			if !errors.As(ended(err), &e) || e.Status != 401 || e.Code != contract.CodeTokenInvalid || time.Since(began) != tenantWait {
				t.Errorf("%s of an unknown tenant: %v after %s", name, err, time.Since(began))
			}
		}
		r := authtest.New("t")
		g.Tenants = r
		began := time.Now()
		if _, err := g.Verify(t.Context(), raw); !errors.Is(err, errTenant) || time.Since(began) != tenantWait {
			t.Error("a tenant that is not created:", err, time.Since(began))
		}
		go func() {
			time.Sleep(tenantWait / 2)
			r.Create("u")
		}()
		for name, cred := range map[string]string{"token": raw, "virtual key": rawKey} {
			who, err := g.Verify(t.Context(), cred)
			if err != nil || who.Tenant != "u" || who.Actor != "alice" {
				t.Errorf("%s after the creation of its tenant: %+v %v", name, who, err)
			}
			if err == nil && g.Suspended(who.Tenant, who.Actor) != nil {
				t.Errorf("%s: suspended with its namesake in another tenant", name)
			}
		}
	})
}

// TestMade checks that a caller has made only the calls of its own tenant, actor and
// client.
func TestMade(t *testing.T) {
	k := &Caller{Tenant: "t", Actor: "alice", Client: "cli"}
	for e, want := range map[*contract.Event]bool{{Tenant: "t", Actor: "alice", Client: "cli"}: true, {Tenant: "u", Actor: "alice", Client: "cli"}: false,
		{Tenant: "t", Actor: "bob", Client: "cli"}: false, {Tenant: "t", Actor: "alice", Client: "-"}: false} {
		if k.Made(e) != want {
			t.Errorf("%s of %s by %s: %t", e.Actor, e.Tenant, e.Client, !want)
		}
	}
}

// enter sends a request through Gate.Enter and returns the error, and whether the handler
// was called. The body of the request is text.
func enter(g *Gate, n Need, raw, text string) (called bool, err error) {
	r := httptest.NewRequest(http.MethodPost, "/x", strings.NewReader(text))
	r.Header.Set("Authorization", "Bearer "+raw)
	c := echo.New().NewContext(r, httptest.NewRecorder())
	err = g.Enter(n, func(echo.Context) error { called = true; return nil })(c)
	return called, err
}

// TestOfMesh checks which callers a route about the mesh as a whole admits: before the
// cell is opened, those of the original tenant with the scope cell:audit or audit:read;
// after it, operators with cell:audit. For a route with another scope, that scope is
// required in both cases. On routes that are not about the mesh, callers of
// contract.CellTenant must be operators too.
func TestOfMesh(t *testing.T) {
	g, _ := gate(t)
	r := authtest.New("t", "u")
	g.Tenants = r
	ledger, cosign := Holds(token.CellAudit).OfMesh(), Holds(token.Cosign).OfMesh()
	mint := func(tenant, actor string, scopes ...string) string {
		_, m := gateOf(t, tenant)
		return m(actor, "-", scopes...)
	}
	for _, c := range []struct {
		opened        bool
		tenant, actor string
		scope         string
		need          Need
		admitted      bool
	}{
		{false, "t", "alice", token.Audit, ledger, true},
		{false, "t", "alice", token.CellAudit, ledger, true},
		{false, "t", "alice", token.Tools, ledger, false},
		{false, "u", "alice", token.CellAudit, ledger, false},
		{false, "t", "alice", token.Cosign, cosign, true},
		{false, "t", "alice", token.Audit, cosign, false},
		{true, "t", "alice", token.CellAudit, ledger, false},
		{true, "t", "operator", token.CellAudit, ledger, false},
		{true, contract.CellTenant, "operator", token.CellAudit, ledger, true},
		{true, contract.CellTenant, "operator", token.Audit, ledger, false},
		{true, contract.CellTenant, "alice", token.CellAudit, ledger, false},
		{true, contract.CellTenant, "operator", token.Cosign, cosign, true},
		{true, contract.CellTenant, "operator", token.CellAudit, cosign, false},
		{true, contract.CellTenant, "operator", token.Audit, Holds(token.Audit), true},
		{true, contract.CellTenant, "alice", token.Audit, Holds(token.Audit), false}, // not an operator
		{true, "u", "alice", token.Audit, Holds(token.Audit), true},
	} {
		if _, exists := r.Check(contract.CellTenant); c.opened && !exists {
			r.Open("operator")
		}
		called, err := enter(g, c.need, mint(c.tenant, c.actor, c.scope), "")
		var e *apierr.Error
		if called != c.admitted || !called && (!errors.As(err, &e) || e.Status != 403 || e.Code != contract.CodeScopeMissing) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestQuotas checks that requests that exceed a quota of their tenant are rejected before
// their body is read, and that Exceeded is called with the name of the quota. Only
// requests to routes whose Need is metered count as calls, and they count as calls in
// flight only while they are in progress.
func TestQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, mint := gate(t)
		r := authtest.New("t", "u")
		g.Tenants = r
		var exceeded []string
		g.Exceeded = func(name string) { exceeded = append(exceeded, name) }
		raw, calling := mint("alice", "-", token.Tools), Calling.WithRecord()
		refused := func(what, name string, n Need, text string) {
			t.Helper()
			exceeded = nil
			called, err := enter(g, n, raw, text)
			var e *apierr.Error
			if called || !errors.As(err, &e) || e.Status != 429 || e.Code != contract.CodeQuotaExceeded || e.RetryAfter == "" || !slices.Equal(exceeded, []string{name}) {
				t.Errorf("%s: called %t, %v, exceeded %v", what, called, err, exceeded)
			}
		}
		admitted := func(what string, n Need) {
			t.Helper()
			if called, err := enter(g, n, raw, "{}"); !called || err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		r.SetQuota("t", contract.Quota{InFlight: 1})
		leave, err := g.Meter(t.Context(), &Caller{Tenant: "t"})
		if err != nil {
			t.Fatal(err)
		}
		refused("a second call in flight", "in_flight", calling, "not JSON, which is not read")
		admitted("a read", Known)
		admitted("a report", Calling.WithReport())
		leave()
		admitted("after the call", calling)
		admitted("after a request", calling)

		r.SetQuota("t", contract.Quota{CallsPerSecond: 2})
		admitted("the first in a second", calling)
		admitted("the second in a second", calling)
		refused("the third in a second", "calls_per_second", calling, "not JSON, which is not read")
		time.Sleep(time.Second)
		admitted("after a second", calling)

		r.SetQuota("t", contract.Quota{BodyBytes: 10})
		release, err := g.Bodies.Read(echo.New().NewContext(httptest.NewRequest(http.MethodPost, "/x", strings.NewReader(`"1234567"`)), httptest.NewRecorder()),
			body.Limits{}, body.Owner{Tenant: "t", Actor: "bob"}, false)
		if err != nil {
			t.Fatal(err)
		}
		refused("a body", "body_bytes", Known, "{}")
		release()
		admitted("after the other body", Known)
		r.SetQuota("t", contract.Quota{})
		r.SetQuota("u", contract.Quota{InFlight: 1, CallsPerSecond: 1, BodyBytes: 1})
		for range 3 {
			admitted("the quota of another tenant", calling)
		}
	})
}

// TestRefusals checks that the refusals of a tenant over its quota are spaced, that none
// waits longer than a second or longer than its request, and that the calls of another
// tenant do not wait for them.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := gate(t)
		r := authtest.New("t", "u")
		g.Tenants = r
		r.SetQuota("t", contract.Quota{InFlight: 1})
		leave, err := g.Meter(t.Context(), &Caller{Tenant: "t"})
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		began := time.Now()
		ended := make(chan time.Duration, 200)
		for range cap(ended) {
			go func() {
				if _, err := g.Meter(t.Context(), &Caller{Tenant: "t"}); err == nil {
					t.Error("a call over the quota is admitted")
				}
				ended <- time.Since(began)
			}()
		}
		synctest.Wait()
		if n := len(ended); n != 1 {
			t.Errorf("%d refusals are answered at once, want 1", n)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.Meter(cancelled, &Caller{Tenant: "t"}); err == nil || time.Since(began) != 0 {
			t.Errorf("a request that has ended is refused after %s: %v", time.Since(began), err)
		}
		if other, err := g.Meter(t.Context(), &Caller{Tenant: "u"}); err != nil || time.Since(began) != 0 {
			t.Errorf("a call of another tenant is admitted after %s: %v", time.Since(began), err)
		} else {
			other()
		}
		var last time.Duration
		for i := range cap(ended) {
			if last = <-ended; i < 100 && last != time.Duration(i)*10*time.Millisecond {
				t.Errorf("refusal %d after %s", i, last)
			}
		}
		if last != time.Second {
			t.Errorf("the last refusal is answered after %s, want 1s", last)
		}
	})
}

// TestSuspendedCalls checks that calls of a suspended tenant, which policy denies, are
// admitted quota.DenialsPerMinute times within a minute and then rejected as suspended
// before their body is read, and that Exceeded is called for each of those. Reports, and
// the calls of the tenant after its resumption, are not limited.
func TestSuspendedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, mint := gate(t)
		r := authtest.New("t", "u")
		g.Tenants = r
		var exceeded []string
		g.Exceeded = func(name string) { exceeded = append(exceeded, name) }
		raw, calling := mint("alice", "-", token.Tools), Calling.WithRecord()
		admitted := func(what string, n Need, want bool) {
			t.Helper()
			called, err := enter(g, n, raw, map[bool]string{true: "{}", false: "not JSON, which is not read"}[want])
			var e *apierr.Error
			if called != want || !want && (!errors.As(err, &e) || e.Status != 403 || e.Code != contract.CodeTenantSuspended) {
				t.Fatalf("%s: called %t, %v", what, called, err)
			}
		}
		r.Suspend("t", true)
		for range 2 {
			for i := range quota.DenialsPerMinute {
				admitted(fmt.Sprint("call ", i), calling, true)
			}
			exceeded = nil
			admitted("one more", calling, false)
			admitted("and one more", calling, false)
			admitted("a report", Calling.WithReport(), true)
			if !slices.Equal(exceeded, []string{quota.Suspended, quota.Suspended}) {
				t.Errorf("exceeded %v", exceeded)
			}
			time.Sleep(time.Minute)
		}
		for i := range quota.DenialsPerMinute {
			admitted(fmt.Sprint("call ", i), calling, true)
		}
		r.Suspend("t", false)
		admitted("after the resumption", calling, true)
	})
}
