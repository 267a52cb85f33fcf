package govern

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// The kinds of the calls about members who authenticate at an identity provider. A gateway
// makes those that accept an invitation and report groups, for a person that has
// authenticated there.
const (
	KindInvite       = "policy.invite_member"
	KindWithdraw     = "policy.withdraw_invitation"
	KindAccept       = "policy.accept_invitation"
	KindUnlink       = "policy.unlink_identity"
	KindMapGroup     = "policy.map_group"
	KindUnmapGroup   = "policy.unmap_group"
	KindReportGroups = "policy.report_groups"
)

// MaxInvitation is the maximum duration of an invitation.
const MaxInvitation = 30 * 24 * time.Hour

// groupsTTL is the time for which the groups that were reported at a login give roles. A
// person must then authenticate again, because the identity provider reports groups only
// at a login.
const groupsTTL = 24 * time.Hour

// byProvider is the client of the calls that a gateway makes for a person that has
// authenticated at the identity provider.
const byProvider = contract.LoginClient + "oidc"

// Members holds the invitations of persons, the identities of the identity provider that
// are linked to them, and the roles of the provider's groups. The zero value is empty.
type Members struct {
	invited  map[string]*invitation // by id
	links    map[string]*link       // by identity; those in force
	past     []Identity             // links that have ended
	groups   map[string]map[string][]span
	reported map[string]groups // by principal: the groups that were reported last
}

type invitation struct {
	events.MemberInvited
	span
}

type link struct {
	events.IdentityLinked
	from uint64
}

type groups struct {
	names []string
	span
}

func (x *Members) invite(d *events.MemberInvited, at moment) {
	if x.invited == nil {
		x.invited = map[string]*invitation{}
	}
	x.invited[d.ID] = &invitation{*d, span{from: at.lamport, expires: d.Expires}}
}

func (x *Members) end(invitation string, at moment) {
	if i := x.invited[invitation]; i != nil && i.to == 0 {
		i.to = at.lamport
	}
}

func (x *Members) link(d *events.IdentityLinked, at moment) {
	x.end(d.Invitation, at)
	if x.links == nil {
		x.links = map[string]*link{}
	}
	x.links[d.Identity] = &link{*d, at.lamport}
}

func (x *Members) unlink(d *events.IdentityUnlinked, at moment) {
	if l := x.links[d.Identity]; l != nil {
		x.past = append(x.past, l.identity(at.lamport))
		delete(x.links, d.Identity)
	}
	delete(x.reported, d.Principal)
}

func (x *Members) mapped(d *events.GroupMapped, at moment) {
	if x.groups == nil {
		x.groups = map[string]map[string][]span{}
	}
	if x.groups[d.Group] == nil {
		x.groups[d.Group] = map[string][]span{}
	}
	x.groups[d.Group][d.Role] = append(x.groups[d.Group][d.Role], span{from: at.lamport})
}

func (x *Members) unmapped(d *events.GroupUnmapped, at moment) {
	if s := x.groups[d.Group][d.Role]; len(s) > 0 && s[len(s)-1].to == 0 {
		s[len(s)-1].to = at.lamport
	}
}

func (x *Members) report(d *events.GroupsReported, at moment) {
	if x.reported == nil {
		x.reported = map[string]groups{}
	}
	x.reported[d.Principal] = groups{d.Groups, span{from: at.lamport, expires: d.Expires}}
}

// gives reports whether a group is mapped to a role at now.
func (x *Members) gives(group, role, now string) bool {
	s := x.groups[group][role]
	return len(s) > 0 && s[len(s)-1].holds(now)
}

// Roles returns the roles that the groups of a principal give at now (contract.TimeFormat),
// in no particular order and with repetitions.
func (x *Members) Roles(principal, now string) (out []string) {
	g := x.reported[principal]
	if !g.holds(now) {
		return nil
	}
	for _, name := range g.names {
		for role := range x.groups[name] {
			if x.gives(name, role, now) {
				out = append(out, role)
			}
		}
	}
	return out
}

func (l *link) identity(to uint64) Identity {
	return Identity{Kind: "link", ID: l.Identity, Principal: l.Principal, From: l.from, To: to}
}

func (x *Members) identities() []Identity {
	out := slices.Clone(x.past)
	for _, l := range x.links {
		out = append(out, l.identity(0))
	}
	for id, i := range x.invited {
		out = append(out, Identity{Kind: "invitation", ID: id, Principal: i.Principal, Expires: i.Expires, From: i.from, To: i.to})
	}
	for group, roles := range x.groups {
		for role, spans := range roles {
			for _, s := range spans {
				out = append(out, Identity{Kind: "group", ID: group, Role: role, From: s.from, To: s.to})
			}
		}
	}
	for principal, g := range x.reported {
		out = append(out, Identity{Kind: "groups", Principal: principal, Kinds: g.names, Expires: g.expires, From: g.from})
	}
	return out
}

// stillLinked returns an error if a gateway makes the call for a person that has authenticated at
// the identity provider, and whose link to an identity has ended since.
func stillLinked(c *Caller) error {
	if c.Client == byProvider && c.View.Linked(c.Actor) == "" {
		return fmt.Errorf("principal: %s is linked to no identity", c.Actor)
	}
	return nil
}

// linked returns the identity that is linked to a principal, or "".
func (x *Members) linked(principal string) string {
	for id, l := range x.links {
		if l.Principal == principal {
			return id
		}
	}
	return ""
}

type inviteArgs struct {
	ID        string `json:"id"`
	Principal string `json:"principal"`
	Code      string `json:"code"`
	TTLMS     int64  `json:"ttl_ms"`
}

// invitable returns the reason why a principal cannot be invited or accept an invitation, or
// nil. A principal that is not registered becomes a person when it accepts.
func (p *People) invitable(principal string) error {
	if t := p.TypeOf(principal); p.Suspended(principal) || t != "" && t != Person {
		return fmt.Errorf("principal: %s is registered as another type than person, or is suspended", principal)
	}
	return nil
}

// SecondPerson reports whether an invitation by actor needs the approval of a second person:
// that is the case if a person other than actor is registered (see others), because actor,
// which knows the code, could accept the invitation and act as the invited person.
func (p *People) SecondPerson(actor string, now time.Time) bool { return p.others(actor, now) }

// inviteMember returns the event that invites a person who is linked to no identity. The
// caller must hold the scopes of the person's roles; see mayChange. If the invitation needs
// the approval of a second person, the caller must be a registered person too.
func inviteMember(s *State, c *Caller, a *inviteArgs) (Fact, error) {
	if err := lasts(a.TTLMS, MaxInvitation); err != nil {
		return none, err
	}
	if err := s.People.invitable(a.Principal); err != nil {
		return none, err
	}
	if s.People.SecondPerson(c.Actor, c.Now) && s.MayVote(c.Actor) != nil {
		return none, errors.New("principal: only registered persons invite others")
	}
	if s.Members.linked(a.Principal) != "" {
		return none, fmt.Errorf("principal: %s is linked to an identity; `binnacle members unlink %s` ends the link", a.Principal, a.Principal)
	}
	for _, role := range c.View.Roles(a.Principal, c.now()) {
		if err := s.People.mayChange(c, role); err != nil {
			return none, err
		}
	}
	if s.Members.invited[a.ID] != nil {
		return none, errors.New("id: an invitation with this id was made before")
	}
	return Fact{events.MemberInvitedName, &events.MemberInvited{Code: a.Code, Expires: c.until(a.TTLMS), ID: a.ID, Principal: a.Principal}}, nil
}

type withdrawArgs struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// withdrawInvitation returns the event that ends an invitation that was not accepted.
func withdrawInvitation(s *State, c *Caller, a *withdrawArgs) (Fact, error) {
	if i := s.Members.invited[a.ID]; i == nil || !i.holds(c.now()) {
		return none, errors.New("id: invitation not found, accepted, withdrawn or expired")
	}
	return explained(a.Reason, events.InvitationWithdrawnName, &events.InvitationWithdrawn{ID: a.ID, Reason: a.Reason})
}

type acceptArgs struct {
	Code     string `json:"code"`
	Identity string `json:"identity"`
	Issuer   string `json:"issuer"`
}

// acceptInvitation returns the event that links an identity of the identity provider to the
// caller, whom the invitation with the code names.
func acceptInvitation(s *State, c *Caller, a *acceptArgs) (Fact, error) {
	if c.Client != byProvider {
		return none, errors.New("code: only a gateway accepts invitations, at a login by the identity provider")
	}
	for id, i := range s.Members.invited {
		if i.Code != a.Code || i.Principal != c.Actor || !i.holds(c.now()) {
			continue
		}
		err := s.People.invitable(c.Actor)
		switch {
		case err != nil:
			return none, err
		case s.Members.links[a.Identity] != nil:
			return none, errors.New("identity: is linked to a person already; log in without an invitation")
		case s.Members.linked(c.Actor) != "":
			return none, fmt.Errorf("principal: %s is linked to another identity", c.Actor)
		}
		return Fact{events.IdentityLinkedName, &events.IdentityLinked{Identity: a.Identity, Invitation: id, Issuer: a.Issuer, Principal: c.Actor}}, nil
	}
	return none, errors.New("code: invitation not found, accepted before, withdrawn or expired")
}

// unlinkIdentity returns the event that ends the link of a person to an identity, and with
// it all credentials of the person.
func unlinkIdentity(s *State, _ *Caller, a *principalArgs) (Fact, error) {
	id := s.Members.linked(a.Principal)
	if id == "" {
		return none, fmt.Errorf("principal: %s is linked to no identity", a.Principal)
	}
	return explained(a.Reason, events.IdentityUnlinkedName, &events.IdentityUnlinked{Identity: id, Principal: a.Principal, Reason: a.Reason})
}

type groupArgs struct {
	Group string `json:"group"`
	Role  string `json:"role"`
}

// mapGroup returns the event that maps a group to a role. A group cannot give the role of
// owners, which only owners grant.
func mapGroup(s *State, c *Caller, a *groupArgs) (Fact, error) {
	if a.Role == contract.RoleOwner || len(contract.MemberScopes([]string{a.Role})) == 0 {
		return none, fmt.Errorf("role: want a role of members that gives scopes, other than %s", contract.RoleOwner)
	}
	if err := s.People.mayChange(c, a.Role); err != nil {
		return none, err
	}
	if s.Members.gives(a.Group, a.Role, c.now()) {
		return none, fmt.Errorf("group: %s is mapped to %s already", a.Group, a.Role)
	}
	return Fact{events.GroupMappedName, &events.GroupMapped{Group: a.Group, Role: a.Role}}, nil
}

// unmapGroup returns the event that ends the mapping of a group to a role.
func unmapGroup(s *State, c *Caller, a *groupArgs) (Fact, error) {
	if !s.Members.gives(a.Group, a.Role, c.now()) {
		return none, fmt.Errorf("group: %s is not mapped to %s", a.Group, a.Role)
	}
	if err := s.People.mayChange(c, a.Role); err != nil {
		return none, err
	}
	return Fact{events.GroupUnmappedName, &events.GroupUnmapped{Group: a.Group, Role: a.Role}}, nil
}

// memberKey returns the key of the aggregate of the groups of an identity. The groups are
// reported at each login, so they are not part of KeyIdentity.
func memberKey(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return contract.IDMember + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16])
}

type reportGroupsArgs struct {
	Groups   []string `json:"groups"`
	Identity string   `json:"identity"`
}

// reportGroups returns the event that records the groups of the caller for groupsTTL. The identity
// must still be linked to the caller. It does not check that the groups are mapped to roles.
func reportGroups(_ *State, c *Caller, a *reportGroupsArgs) (Fact, error) {
	if c.Client != byProvider {
		return none, errors.New("groups: only a gateway reports groups, at a login by the identity provider")
	}
	if c.View.Linked(c.Actor) != a.Identity {
		return none, fmt.Errorf("identity: is not linked to %s", c.Actor)
	}
	d := &events.GroupsReported{Expires: contract.Time(c.Now.Add(groupsTTL)), Groups: slices.Clone(a.Groups), Identity: a.Identity, Principal: c.Actor}
	slices.Sort(d.Groups)
	d.Groups = slices.Compact(d.Groups)
	return Fact{events.GroupsReportedName, d}, nil
}
