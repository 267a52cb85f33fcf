package govern

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// byGateway decides a call about a login that a gateway makes for a person, and applies the
// resulting event.
func (d *desk) byGateway(actor, client, kind string, at time.Duration, args any) (Fact, error) {
	d.t.Helper()
	return d.with(actor, client, nil, kind, at, args)
}

// with decides a call that a client makes with a credential that holds the given scopes, and
// applies the resulting event.
func (d *desk) with(actor, client string, held []string, kind string, at time.Duration, args any) (Fact, error) {
	d.t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		d.t.Fatal(err)
	}
	c, err := Parse(kind, raw)
	if err != nil {
		d.t.Fatal(err)
	}
	f, err := c.Decide(&d.st, Caller{CallID: "c-1", Actor: actor, Client: client, Held: held, Now: noon.Add(at)})
	if err == nil {
		d.lamport += 10
		d.fold(at, f.Name, f.Data)
	}
	return f, err
}

// TestLogins shows who may open a login, that its scopes are those of the person's roles,
// limited to the requested ones, that a refresh token that was replaced ends the login if
// it is used after repeatWithin, that a login can be ended by its person only, and only once,
// and that no ended, expired or revoked login is renewed, nor one of a person that is
// suspended or has lost its role.
func TestLogins(t *testing.T) {
	d := &desk{t: t, lamport: 1}
	for _, p := range []struct{ name, kind string }{{"ann", Person}, {"robot", Agent}} {
		d.fold(0, events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: p.name, Type: p.kind})
		d.fold(0, events.RoleGrantedName, &events.RoleGranted{Principal: p.name, Role: contract.RoleDeveloper})
	}
	d.fold(0, events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: "norole", Type: Person})
	open := func(actor, client, id string, requested ...string) (Fact, error) {
		return d.byGateway(actor, client, KindOpenLogin, 0, openLoginArgs{ID: id, Method: "password", Refresh: "r0", Requested: requested, TTLMS: 60_000})
	}
	for _, c := range []struct{ actor, client, word string }{
		{"ann", "-", "only a gateway"}, {"ann", "cli", "only a gateway"}, {"ann", "key/login/x", "only a gateway"},
		{"robot", "login/password", "not a registered person"}, {"eve", "login/password", "not a registered person"}, {"norole", "login/password", "no role"},
	} {
		_, err := open(c.actor, c.client, "l-1")
		d.refused(err, c.word)
	}
	_, err := open("ann", "login/password", "l-1", "policy:admin")
	d.refused(err, "no role")
	f, err := open("ann", "login/password", "l-1", "llm:call", "policy:admin")
	d.ok(err)
	if got := f.Data.(*events.LoginOpened); !slices.Equal(got.Scopes, []string{"llm:call"}) || got.Expires != at(time.Minute) {
		t.Errorf("%+v", got)
	}
	_, err = open("ann", "login/device", "l-1")
	d.refused(err, "opened before")
	renew := func(actor, id, used, next string, at time.Duration) (Fact, error) {
		return d.byGateway(actor, "login/refresh", KindRenewLogin, at, renewLoginArgs{id, used, next})
	}
	_, err = renew("robot", "l-1", "r0", "r1", time.Second)
	d.refused(err, "not found")
	f, err = renew("ann", "l-1", "r0", "r1", time.Second)
	d.ok(err)
	if got := f.Data.(*events.LoginRenewed); !slices.Equal(got.Scopes, []string{"llm:call"}) || got.Refresh != "r1" {
		t.Errorf("%+v", got)
	}
	_, err = renew("ann", "l-1", "r1", "r2", time.Minute)
	d.refused(err, "expired")
	f, err = renew("ann", "l-1", "r0", "rx", time.Second+repeatWithin)
	d.ok(err)
	if e, ended := f.Data.(*events.LoginEnded); !ended || !strings.Contains(e.Reason, "twice") {
		t.Fatalf("a refresh token was used twice: %+v", f)
	}
	if _, err = renew("ann", "l-1", "r1", "r2", 2*time.Second+repeatWithin); err == nil || !d.st.Revoked("l-1", "ann", at(0)) {
		t.Error("the login has not ended", err)
	}
	for id, end := range map[string]func(){
		"l-2": func() {
			_, err = d.byGateway("eve", "cli", KindEndLogin, time.Second, endLoginArgs{"l-2", "x"})
			d.refused(err, "not found among the caller's")
			_, err = d.byGateway("ann", "cli", KindEndLogin, time.Second, endLoginArgs{"l-9", "x"})
			d.refused(err, "not found among the caller's")
			_, err = d.byGateway("ann", "cli", KindEndLogin, time.Second, endLoginArgs{"l-2", "over"})
			d.ok(err)
			_, err = d.byGateway("ann", "cli", KindEndLogin, time.Second, endLoginArgs{"l-2", "again"})
			d.refused(err, "or ended")
		},
		"l-3": func() { d.fold(time.Second, events.TokenRevokedName, &events.TokenRevoked{ID: "l-3"}) },
		"l-4": func() {
			d.fold(time.Second, events.PrincipalSuspendedName, &events.PrincipalSuspended{Principal: "ann"})
		},
		"l-5": func() {
			d.fold(time.Second, events.RoleRevokedName, &events.RoleRevoked{Principal: "ann", Role: contract.RoleDeveloper})
		},
	} {
		e := &desk{t: t, lamport: 1}
		e.fold(0, events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: "ann", Type: Person})
		e.fold(0, events.RoleGrantedName, &events.RoleGranted{Principal: "ann", Role: contract.RoleDeveloper})
		d = e
		_, err = open("ann", "login/password", id)
		d.ok(err)
		end()
		if _, err = renew("ann", id, "r0", "r1", 2*time.Second); err == nil {
			t.Errorf("%s is renewed", id)
		}
	}
	_, err = d.byGateway("eve", "cli", KindApproveDevice, 0, approveDeviceArgs{ID: "l-9", Code: "c", TTLMS: 1000})
	d.refused(err, "not a registered person")
}

// TestRepeatedRefresh shows that the refresh token which the last renewal replaced renews
// the login once more within repeatWithin. If it is then used a third time, or the token
// of the first renewal is used after repeatWithin, the login ends. The token of the
// second renewal renews the login.
func TestRepeatedRefresh(t *testing.T) {
	for last, c := range map[string]struct {
		used string
		at   time.Duration
		ends bool
	}{
		"the token that was replaced, a third time": {"r0", 3 * time.Second, true},
		"what it was exchanged for, much later":     {"r1", 2*time.Second + repeatWithin, true},
		"what the repetition returned":              {"r2", 3 * time.Second, false},
	} {
		d := &desk{t: t, lamport: 1}
		d.fold(0, events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: "ann", Type: Person})
		d.fold(0, events.RoleGrantedName, &events.RoleGranted{Principal: "ann", Role: contract.RoleDeveloper})
		_, err := d.byGateway("ann", "login/password", KindOpenLogin, 0, openLoginArgs{ID: "l-1", Method: "password", Refresh: "r0", TTLMS: 3_600_000})
		d.ok(err)
		for i, x := range []struct {
			used, next string
			at         time.Duration
			ends       bool
		}{{"r0", "r1", time.Second, false}, {"r0", "r2", 2 * time.Second, false}, {c.used, "r3", c.at, c.ends}} {
			f, err := d.byGateway("ann", "login/refresh", KindRenewLogin, x.at, renewLoginArgs{"l-1", x.used, x.next})
			d.ok(err)
			if _, ended := f.Data.(*events.LoginEnded); ended != x.ends {
				t.Errorf("%s: renewal %d ends the login: %t", last, i+1, ended)
			}
		}
	}
}

// TestDeviceScopes shows that a credential cannot approve a device for more than its own
// scopes, nor for more than the requested ones or those of the person's roles, and that the
// event always names the scopes.
func TestDeviceScopes(t *testing.T) {
	d := &desk{t: t, lamport: 1}
	d.fold(0, events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: "ann", Type: Person})
	d.fold(0, events.RoleGrantedName, &events.RoleGranted{Principal: "ann", Role: contract.RoleDeveloper})
	all := contract.MemberScopes([]string{contract.RoleDeveloper})
	for _, c := range []struct{ held, requested, want []string }{
		{all, nil, all},
		{[]string{"tools:call"}, nil, []string{"tools:call"}},
		{[]string{"tools:call"}, all, []string{"tools:call"}},
		{all, []string{"llm:call"}, []string{"llm:call"}},
		{append(all, "policy:admin"), []string{"policy:admin", "llm:call"}, []string{"llm:call"}},
		{[]string{"tools:call"}, []string{"llm:call"}, nil},
		{[]string{"policy:admin"}, nil, nil},
		{nil, nil, nil},
	} {
		f, err := approveDevice(&d.st, &Caller{Actor: "ann", Client: "cli", Held: c.held, Now: noon, View: &d.st}, &approveDeviceArgs{ID: "l-9", Code: "c", Requested: c.requested, TTLMS: 1000})
		if c.want == nil {
			d.refused(err, "credential holds none")
			continue
		}
		d.ok(err)
		if got := f.Data.(*events.DeviceApproved); !slices.Equal(got.Scopes, c.want) {
			t.Errorf("held %v, requested %v: %v", c.held, c.requested, got.Scopes)
		}
	}
}

// TestMemberRoles shows that only owners grant and revoke the role of owners once there
// is one, that the last owner keeps it, and that a caller cannot grant or revoke a role
// with scopes that its credential lacks.
func TestMemberRoles(t *testing.T) {
	d := &desk{t: t}
	all := contract.MemberScopes([]string{contract.RoleOwner})
	role := func(verb, actor, principal, role string, held ...string) error {
		return d.do(actor, 0, verb, call{Principal: principal, Role: role, Held: held})
	}
	d.refused(role("grant_role", "ann", "ann", "owner", "policy:admin"), "credential lacks")
	d.ok(role("grant_role", "ann", "ann", "owner", all...))
	d.refused(role("grant_role", "bob", "bob", "owner", all...), "only owners")
	d.ok(role("grant_role", "bob", "bob", "admin", all...))
	d.refused(role("revoke_role", "bob", "ann", "owner", all...), "only owners")
	d.refused(role("revoke_role", "ann", "ann", "owner", all...), "last owner")
	d.ok(role("grant_role", "ann", "bob", "owner", all...))
	d.ok(role("revoke_role", "bob", "ann", "owner", all...))
	d.ok(role("grant_role", "eve", "eve", "finance", "policy:admin"))
	d.refused(role("grant_role", "eve", "eve", "approver", "policy:admin"), "approvals:vote, which the caller's credential lacks")
	d.ok(role("grant_role", "bob", "eve", "approver", all...))
	d.refused(role("revoke_role", "eve", "eve", "approver", "policy:admin"), "credential lacks")
	for _, r := range []string{"owner", "admin", "developer", "viewer", "auditor"} {
		if len(contract.MemberScopes([]string{r})) == 0 {
			t.Error(r)
		}
	}
}
