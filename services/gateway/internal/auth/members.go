package auth

import (
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// members is the part of a tenant's state that logins by the identity provider need.
type members struct {
	invited  map[string]events.MemberInvited // by the digest of the code
	codes    map[string]string               // digests of codes by id of the invitation
	links    map[string]string               // principals by identity
	roles    map[string]map[string]bool      // roles by group
	reported map[string][]string             // groups by principal, as they were reported last
	unmapped time.Time                       // tokens of logins issued at or before this time are not valid, because a group lost a role
}

func newMembers() members {
	return members{invited: map[string]events.MemberInvited{}, codes: map[string]string{}, links: map[string]string{}, roles: map[string]map[string]bool{}, reported: map[string][]string{}}
}

// memberFolds is the part of folds about members.
var memberFolds = map[string]func(a *Authority, t *standing, e *contract.Event) error{
	contract.EventMemberInvited: with(func(_ *Authority, t *standing, d *events.MemberInvited) {
		t.members.invited[d.Code], t.members.codes[d.ID] = *d, d.Code
	}),
	contract.EventInvitationWithdrawn: with(func(_ *Authority, t *standing, d *events.InvitationWithdrawn) { t.members.end(d.ID) }),
	contract.EventIdentityLinked: with(func(_ *Authority, t *standing, d *events.IdentityLinked) {
		t.members.end(d.Invitation)
		t.members.links[d.Identity] = d.Principal
	}),
	contract.EventIdentityUnlinked: (*Authority).identityUnlinked,
	contract.EventGroupMapped: with(func(_ *Authority, t *standing, d *events.GroupMapped) {
		if t.members.roles[d.Group] == nil {
			t.members.roles[d.Group] = map[string]bool{}
		}
		t.members.roles[d.Group][d.Role] = true
	}),
	contract.EventGroupUnmapped:  (*Authority).groupUnmapped,
	contract.EventGroupsReported: (*Authority).groupsReported,
}

func (m *members) end(invitation string) {
	delete(m.invited, m.codes[invitation])
	delete(m.codes, invitation)
}

// identityUnlinked applies the end of a link, which revokes the credentials of the person.
func (a *Authority) identityUnlinked(t *standing, e *contract.Event) error {
	var d events.IdentityUnlinked
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	before, err := contract.ParseTime(e.Time)
	if err != nil {
		return err
	}
	delete(t.members.links, d.Identity)
	delete(t.members.reported, d.Principal)
	a.revokeAll(t, d.Principal, before)
	return nil
}

// groupUnmapped applies the end of a mapping: access tokens of logins may hold scopes that the
// group gave, so only those that are issued afterwards are valid.
func (a *Authority) groupUnmapped(t *standing, e *contract.Event) error {
	var d events.GroupUnmapped
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	at, err := contract.ParseTime(e.Time)
	if err == nil {
		delete(t.members.roles[d.Group], d.Role)
		t.members.unmapped = at
	}
	return err
}

// groupsReported applies the groups of a person. If the person has left a group, access tokens
// of the person's logins are valid only if they are issued afterwards.
func (a *Authority) groupsReported(t *standing, e *contract.Event) error {
	var d events.GroupsReported
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	at, err := contract.ParseTime(e.Time)
	if err != nil {
		return err
	}
	left := slices.ContainsFunc(t.members.reported[d.Principal], func(g string) bool { return !slices.Contains(d.Groups, g) })
	if left && t.demoted[d.Principal].Before(at) {
		t.demoted[d.Principal] = at
	}
	if t.members.reported[d.Principal] = d.Groups; len(d.Groups) == 0 {
		delete(t.members.reported, d.Principal)
	}
	return nil
}

// Invited returns the principal of an invitation, or "" if there is no such invitation in force at
// now. code is the digest of the invitation's code.
func (a *Authority) Invited(tenant, code string, now time.Time) string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if d, ok := a.of(tenant).members.invited[code]; ok && contract.Time(now) < d.Expires {
		return d.Principal
	}
	return ""
}

// Linked returns the principal to whom an identity of the identity provider is linked, or "".
func (a *Authority) Linked(tenant, identity string) string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.of(tenant).members.links[identity]
}

// Groups returns those of the groups that are mapped to a role, and whether policy must record
// them for a principal: groups give roles for a limited time after each record, and the roles
// of groups that the principal has left must end.
func (a *Authority) Groups(tenant, principal string, groups []string) (mapped []string, report bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	m := &a.of(tenant).members
	mapped = slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return len(m.roles[g]) == 0 })
	return mapped, len(mapped) > 0 || len(m.reported[principal]) > 0
}

// lines writes the lines of the view's canonical form; see standing.lines.
func (m *members) lines(line func(members ...string)) {
	for code, d := range m.invited {
		line("code", code, "expires", d.Expires, "invitation", d.ID, "principal", d.Principal)
	}
	for identity, p := range m.links {
		line("identity", identity, "principal", p)
	}
	for group, roles := range m.roles {
		for role := range roles {
			line("group", group, "role", role)
		}
	}
	for p, groups := range m.reported {
		line("groups", strings.Join(groups, "\n"), "principal", p)
	}
	if !m.unmapped.IsZero() {
		line("unmapped", contract.Time(m.unmapped))
	}
}
