package govern

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestMembers shows who may invite whom, that only a gateway accepts an invitation, once, for
// the person that it names and before it expires or is withdrawn, that an identity and a person
// have one link at most, and that the end of a link revokes the person's credentials.
func TestMembers(t *testing.T) {
	d := &desk{t: t, lamport: 1}
	all := contract.MemberScopes([]string{contract.RoleOwner})
	for _, p := range []struct{ name, kind, role string }{{"dana", Person, contract.RoleOwner}, {"ann", Person, contract.RoleDeveloper}, {"robot", Agent, contract.RoleDeveloper}} {
		d.fold(0, events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: p.name, Type: p.kind})
		d.fold(0, events.RoleGrantedName, &events.RoleGranted{Principal: p.name, Role: p.role})
	}
	invite := func(actor string, held []string, id, who string) error {
		_, err := d.with(actor, "-", held, KindInvite, 0, inviteArgs{ID: id, Principal: who, Code: "sha256:" + id, TTLMS: 60_000})
		return err
	}
	accept := func(actor, client, id, identity string, at time.Duration) error {
		_, err := d.with(actor, client, nil, KindAccept, at, acceptArgs{Code: "sha256:" + id, Identity: identity, Issuer: "https://idp"})
		return err
	}
	d.refused(invite("dana", all, "iv-1", "robot"), "another type")
	d.refused(invite("robot", all, "iv-1", "ann"), "only registered persons invite")
	d.refused(invite("dana", []string{"policy:admin"}, "iv-1", "ann"), "lacks")
	d.refused(invite("ann", all, "iv-1", "dana"), "only owners")
	for _, id := range []string{"iv-1", "iv-2", "iv-3"} {
		d.ok(invite("dana", all, id, "ann"))
	}
	d.refused(invite("dana", all, "iv-1", "ann"), "made before")
	_, err := d.with("dana", "-", all, KindWithdraw, 0, withdrawArgs{"iv-3", "sent to another address"})
	d.ok(err)
	for _, id := range []string{"iv-3", "iv-9"} {
		_, err = d.with("dana", "-", all, KindWithdraw, 0, withdrawArgs{id, "x"})
		d.refused(err, "id: invitation not found")
	}
	d.refused(accept("ann", "login/password", "iv-1", "x", 0), "only a gateway")
	d.refused(accept("ann", "cli", "iv-1", "x", 0), "only a gateway")
	d.refused(accept("dana", byProvider, "iv-1", "x", 0), "not found")
	d.refused(accept("ann", byProvider, "iv-3", "x", 0), "withdrawn")
	d.refused(accept("ann", byProvider, "iv-1", "x", time.Minute), "expired")
	d.ok(accept("ann", byProvider, "iv-1", "x", time.Second))
	d.refused(accept("ann", byProvider, "iv-1", "y", time.Second), "accepted before")
	d.refused(accept("ann", byProvider, "iv-2", "y", time.Second), "linked to another identity")
	d.refused(invite("dana", all, "iv-4", "ann"), "is linked")
	d.ok(invite("dana", all, "iv-5", "dana"))
	d.refused(accept("dana", byProvider, "iv-5", "x", time.Second), "linked to a person already")

	_, err = d.with("dana", "-", all, KindUnlink, 2*time.Second, principalArgs{"robot", "x"})
	d.refused(err, "linked to no identity")
	_, err = d.with("dana", "-", all, KindUnlink, 2*time.Second, principalArgs{"ann", "left"})
	d.ok(err)
	if !d.st.Revoked("", "ann", at(2*time.Second)) || d.st.Revoked("", "ann", at(3*time.Second)) {
		t.Error("the end of a link does not revoke the credentials that were issued before")
	}
	d.ok(accept("ann", byProvider, "iv-2", "x", 3*time.Second))
	d.ok(invite("dana", all, "iv-6", "new"))
	if d.st.MayVote("new") == nil {
		t.Error("an invited person votes before accepting")
	}
	d.ok(accept("new", byProvider, "iv-6", "z", 3*time.Second))
	if err := d.st.MayVote("new"); err != nil {
		t.Error(err)
	}
	if !slices.ContainsFunc(d.st.Identities(), func(i Identity) bool { return i.Kind == "link" && i.To != 0 }) {
		t.Error("the link that ended is not listed")
	}
}

// TestUnlinkedMeanwhile shows that the end of a link also ends a login that a gateway has begun: the
// person gets neither a login nor the roles of groups from an identity that is no longer linked.
func TestUnlinkedMeanwhile(t *testing.T) {
	d := &desk{t: t, lamport: 1}
	for _, who := range []string{"ann", "bea"} {
		d.fold(0, events.RoleGrantedName, &events.RoleGranted{Principal: who, Role: contract.RoleDeveloper})
		d.fold(0, events.IdentityLinkedName, &events.IdentityLinked{Identity: "id-" + who, Issuer: "https://idp", Principal: who})
	}
	d.fold(0, events.GroupMappedName, &events.GroupMapped{Group: "eng", Role: contract.RoleAuditor})
	// The state of a login and that of the groups of an identity do not include the links.
	do := func(who, client, kind string, args any) error {
		raw, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Parse(kind, raw)
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.Decide(&State{}, Caller{CallID: "c-1", Actor: who, Client: client, Now: noon.Add(time.Second), View: &d.st})
		if err == nil {
			d.fold(time.Second, f.Name, f.Data)
		}
		return err
	}
	enter := func(who, id string) (report, open error) {
		report = do(who, byProvider, KindReportGroups, reportGroupsArgs{[]string{"eng"}, "id-" + who})
		open = do(who, byProvider, KindOpenLogin, openLoginArgs{ID: id, Method: "oidc", Refresh: "r", TTLMS: 60_000})
		return report, open
	}
	report, open := enter("ann", "l-1")
	d.ok(report)
	d.ok(open)
	_, err := d.with("dana", "-", contract.MemberScopes([]string{contract.RoleOwner}), KindUnlink, time.Second, principalArgs{"ann", "left"})
	d.ok(err)
	report, open = enter("ann", "l-3")
	d.refused(report, "not linked to ann")
	d.refused(open, "linked to no identity")
	if got := d.st.Roles("ann", at(2*time.Second)); !slices.Equal(got, []string{contract.RoleDeveloper}) {
		t.Errorf("roles without a link: %v", got)
	}
	d.refused(do("ann", byProvider, KindReportGroups, reportGroupsArgs{[]string{"eng"}, "id-bea"}), "not linked to ann")
	d.ok(do("ann", "login/password", KindOpenLogin, openLoginArgs{ID: "l-4", Method: "password", Refresh: "r", TTLMS: 60_000})) // has authenticated without the identity provider
}

// TestGroups shows that a mapped group gives a role while the identity provider's last report
// is recent, that only a gateway reports groups, and that a group cannot be mapped to a role with a
// scope that the credential lacks, or to that of owners.
func TestGroups(t *testing.T) {
	d := &desk{t: t, lamport: 1}
	d.fold(0, events.IdentityLinkedName, &events.IdentityLinked{Identity: "x", Issuer: "https://idp", Principal: "ann"})
	all := contract.MemberScopes([]string{contract.RoleOwner})
	change := func(kind string, held []string, group, role string) error {
		_, err := d.with("dana", "-", held, kind, 0, groupArgs{group, role})
		return err
	}
	d.refused(change(KindMapGroup, all, "eng", contract.RoleOwner), "role: want")
	d.refused(change(KindMapGroup, all, "eng", "poet"), "role: want")
	d.refused(change(KindMapGroup, []string{"policy:admin"}, "eng", contract.RoleDeveloper), "lacks")
	d.ok(change(KindMapGroup, all, "eng", contract.RoleDeveloper))
	d.ok(change(KindMapGroup, all, "eng", contract.RoleAuditor))
	d.refused(change(KindMapGroup, all, "eng", contract.RoleAuditor), "already")
	report := func(client string, at time.Duration, groups ...string) error {
		_, err := d.with("ann", client, nil, KindReportGroups, at, reportGroupsArgs{groups, "x"})
		return err
	}
	d.refused(report("cli", 0, "eng"), "only a gateway")
	want := func(at time.Duration, roles ...string) {
		t.Helper()
		if got := d.st.Roles("ann", contract.Time(noon.Add(at))); !slices.Equal(got, roles) {
			t.Errorf("after %s: %v, want %v", at, got, roles)
		}
	}
	want(0)
	d.ok(report(byProvider, 0, "sales", "eng", "eng"))
	want(0, contract.RoleAuditor, contract.RoleDeveloper)
	d.fold(0, events.RoleGrantedName, &events.RoleGranted{Principal: "ann", Role: contract.RoleDeveloper})
	want(groupsTTL-time.Second, contract.RoleAuditor, contract.RoleDeveloper)
	want(groupsTTL, contract.RoleDeveloper)
	d.ok(change(KindUnmapGroup, all, "eng", contract.RoleAuditor))
	want(0, contract.RoleDeveloper)
	d.refused(change(KindUnmapGroup, all, "eng", contract.RoleAuditor), "not mapped")
	d.fold(0, events.GroupUnmappedName, &events.GroupUnmapped{Group: "never", Role: contract.RoleAuditor}) // has no effect
	want(0, contract.RoleDeveloper)
	d.ok(report(byProvider, time.Second))
	d.fold(0, events.RoleRevokedName, &events.RoleRevoked{Principal: "ann", Role: contract.RoleDeveloper})
	want(time.Second)
}
