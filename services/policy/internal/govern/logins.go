package govern

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// The kinds of the calls about logins. Those that open and renew a login are made by a
// gateway for the person that has authenticated there.
const (
	KindOpenLogin     = "policy.open_login"
	KindRenewLogin    = "policy.renew_login"
	KindEndLogin      = "policy.end_login"
	KindApproveDevice = "policy.approve_device"
)

// The maximum durations of a login, and of an approval of a device.
const (
	MaxLogin  = 30 * 24 * time.Hour
	MaxDevice = 15 * time.Minute
)

// login is a login of a person. Each login is an aggregate of its own. The state by which
// other calls are decided contains only the logins that have ended, as revoked tokens.
type login struct {
	events.LoginOpened
	at      string // time of the event that opened it
	refresh string // digest of the refresh token that is valid now
	before  string // digest of the refresh token that refresh replaced; empty if none
	renewed string // time of the event that replaced it
	ended   bool
}

// Logins holds logins by id. The zero value is empty.
type Logins struct {
	by map[string]*login
}

func (x *Logins) open(d *events.LoginOpened, at moment) {
	if x.by == nil {
		x.by = map[string]*login{}
	}
	x.by[d.ID] = &login{LoginOpened: *d, at: at.time, refresh: d.Refresh}
}

func (x *Logins) renew(d *events.LoginRenewed, at moment) {
	if l := x.by[d.ID]; l != nil {
		l.before, l.refresh, l.renewed = l.refresh, d.Refresh, at.time
	}
}

func (x *Logins) end(id string) {
	if l := x.by[id]; l != nil {
		l.ended = true
	}
}

// loginKey returns the key of the aggregate of a login or of an approved device. For an
// id without the prefix of logins, which the input schema requires, it is a key that no
// login has.
func loginKey(id string) string {
	if !strings.HasPrefix(id, contract.IDLogin) {
		return contract.IDLogin + "none"
	}
	return id
}

// authenticated returns an error unless the call was made by a gateway for a person that
// has authenticated there, and not with a credential.
func authenticated(c *Caller) error {
	if !strings.HasPrefix(c.Client, contract.LoginClient) {
		return errors.New("id: only a gateway opens and renews logins; see `binnacle login`")
	}
	return nil
}

// scopesOf returns the scopes of the roles of a registered person, limited to those in
// requested unless that is empty. The error states why the person cannot log in.
func scopesOf(c *Caller, principal string, requested []string) ([]string, error) {
	if c.View.MayVote(principal) != nil {
		return nil, fmt.Errorf("principal: %s is not a registered person, or is suspended", principal)
	}
	scopes := contract.MemberScopes(c.View.Roles(principal, c.now()))
	if len(requested) > 0 {
		scopes = slices.DeleteFunc(scopes, func(s string) bool { return !slices.Contains(requested, s) })
	}
	if len(scopes) == 0 {
		return nil, fmt.Errorf("principal: no role gives %s one of the scopes; `binnacle roles grant %s developer` gives a role", principal, principal)
	}
	return scopes, nil
}

type openLoginArgs struct {
	ID        string   `json:"id"`
	Method    string   `json:"method"`
	Refresh   string   `json:"refresh"`
	Requested []string `json:"requested"`
	TTLMS     int64    `json:"ttl_ms"`
}

// openLogin returns the event that opens a login of the caller. The login's scopes are
// those of the caller's roles, limited to the requested ones if any are requested.
func openLogin(s *State, c *Caller, a *openLoginArgs) (Fact, error) {
	if err := authenticated(c); err != nil {
		return none, err
	}
	if err := lasts(a.TTLMS, MaxLogin); err != nil {
		return none, err
	}
	if s.Logins.by[a.ID] != nil {
		return none, errors.New("id: a login with this id was opened before")
	}
	if err := stillLinked(c); err != nil {
		return none, err
	}
	scopes, err := scopesOf(c, c.Actor, a.Requested)
	if err != nil {
		return none, err
	}
	return Fact{events.LoginOpenedName, &events.LoginOpened{Expires: c.until(a.TTLMS), ID: a.ID, Method: a.Method, Principal: c.Actor, Refresh: a.Refresh, Requested: a.Requested, Scopes: scopes}}, nil
}

type renewLoginArgs struct {
	ID   string `json:"id"`
	Used string `json:"used"`
	Next string `json:"next"`
}

// repeatWithin is the time after the renewal of a login within which the replaced refresh
// token is accepted once more. A program that did not receive the response, or received an
// error although the renewal was recorded later, thus keeps its login.
const repeatWithin = 30 * time.Second

// accepts reports whether a refresh token with the digest used renews the login at now.
// The token that the last renewal replaced renews the login once more, within
// repeatWithin; after that renewal, it is no longer the token that the last renewal
// replaced.
func (l *login) accepts(used string, now time.Time) bool {
	return used == l.refresh || used == l.before && contract.Time(now.Add(-repeatWithin)) < l.renewed
}

// renewLogin returns the event that replaces the refresh token of a login of the caller.
// If the login does not accept the token that was used, renewLogin returns the event that
// ends the login: if that token was replaced, either the program or a thief has used a
// copy of it.
func renewLogin(s *State, c *Caller, a *renewLoginArgs) (Fact, error) {
	if err := authenticated(c); err != nil {
		return none, err
	}
	l, err := s.Logins.inForce(c, a.ID)
	if err != nil {
		return none, err
	}
	if !l.accepts(a.Used, c.Now) {
		return Fact{events.LoginEndedName, &events.LoginEnded{ID: a.ID, Principal: l.Principal, Reason: "a refresh token was used twice"}}, nil
	}
	scopes, err := scopesOf(c, c.Actor, l.Requested)
	if err != nil {
		return none, err
	}
	return Fact{events.LoginRenewedName, &events.LoginRenewed{ID: a.ID, Refresh: a.Next, Scopes: scopes}}, nil
}

// inForce returns a login of the caller, or an error if there is none with this id, if it
// has ended or expired, or if it or the caller's credentials were revoked since it was
// opened.
func (x *Logins) inForce(c *Caller, id string) (*login, error) {
	l := x.by[id]
	if l == nil || l.Principal != c.Actor || l.ended || l.Expires <= c.now() || c.View.Revoked(id, l.Principal, l.at) {
		return nil, errors.New("id: login not found, ended, expired or revoked")
	}
	return l, nil
}

type endLoginArgs struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// endLogin returns the event that ends a login of the caller.
func endLogin(s *State, c *Caller, a *endLoginArgs) (Fact, error) {
	if l := s.Logins.by[a.ID]; l == nil || l.Principal != c.Actor || l.ended {
		return none, errors.New("id: login not found among the caller's, or ended")
	}
	return explained(a.Reason, events.LoginEndedName, &events.LoginEnded{ID: a.ID, Principal: c.Actor, Reason: a.Reason})
}

type approveDeviceArgs struct {
	ID        string   `json:"id"`
	Code      string   `json:"code"`
	Requested []string `json:"requested"`
	TTLMS     int64    `json:"ttl_ms"`
}

// approveDevice returns the event that permits the program that shows a code to open one
// login of the caller. The caller must be a registered person. The event states the
// scopes that the login is limited to: those of the caller's roles that its credential
// holds and, unless requested is empty, that are requested. A credential thus cannot
// approve a login with more scopes than its own.
func approveDevice(_ *State, c *Caller, a *approveDeviceArgs) (Fact, error) {
	if err := lasts(a.TTLMS, MaxDevice); err != nil {
		return none, err
	}
	scopes, err := scopesOf(c, c.Actor, a.Requested)
	if err != nil {
		return none, err
	}
	scopes = slices.DeleteFunc(scopes, func(s string) bool { return !slices.Contains(c.Held, s) })
	if len(scopes) == 0 {
		return none, errors.New("requested: the caller's credential holds none of the scopes; approve with one that does, see `binnacle login`")
	}
	return Fact{events.DeviceApprovedName, &events.DeviceApproved{Code: a.Code, Expires: c.until(a.TTLMS), Principal: c.Actor, Scopes: scopes}}, nil
}
