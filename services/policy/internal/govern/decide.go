package govern

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Command is a governed call of a policy.… kind. Members that a kind does not
// use are empty; its input schema has refused them before.
type Command struct {
	Kind      string                    `json:"-"`
	CallID    string                    `json:"-"`
	Actor     string                    `json:"-"`
	Tenant    string                    `json:"-"`
	Held      []string                  `json:"-"` // scopes of the caller's credential
	Owns      func(session string) bool `json:"-"` // whether a session of a release before 0.5 is the caller's
	View      View                      `json:"-"` // what other aggregates say; nil = the state itself
	Now       time.Time                 `json:"-"`
	Principal string                    `json:"principal"`
	Role      string                    `json:"role"`
	Type      string                    `json:"type"`
	Delegate  string                    `json:"delegate"`
	Kinds     []string                  `json:"kinds"`
	ToolKind  string                    `json:"kind"`
	Digest    string                    `json:"digest"`
	ID        string                    `json:"id"`
	Reason    string                    `json:"reason"`
	Verdict   string                    `json:"verdict"`
	TTLMS     int64                     `json:"ttl_ms"`
	Limits    []guard.Limit             `json:"limits"`

	Owner        string   `json:"actor"` // of a virtual key
	Scopes       []string `json:"scopes"`
	Models       []string `json:"models"`
	Tags         []string `json:"tags"`
	Budget       int64    `json:"budget_usd_micros"`
	BudgetWindow string   `json:"budget_window"`
	Rate         int64    `json:"rate_calls"`
	RateWindow   string   `json:"rate_window"`
	Concurrent   int64    `json:"concurrent"`
	Cache        bool     `json:"cache"`

	Maker   string `json:"maker"`   // of a virtual key that the caller consents to
	Session string `json:"session"` // id
}

// View answers for aggregates that the command's own history does not hold.
type View interface {
	MayVote(principal string) error
	EndedAt(principal string) string
}

// Longest lives.
const (
	MaxDelegation = 90 * 24 * time.Hour
	MaxBreakGlass = 4 * time.Hour
)

// Key is the aggregate that a kind's event belongs to.
func Key(kind string) string {
	switch kind {
	case "policy.register_principal", "policy.suspend_principal", "policy.grant_role", "policy.revoke_role", "policy.delegate", "policy.revoke_delegation",
		"policy.resume_principal", "policy.revoke_token", "policy.grant_session", "policy.revoke_session":
		return KeyIdentity
	case "policy.approve_tool":
		return KeyTools
	case "policy.freeze", guard.KindUnfreeze:
		return KeyFreeze
	case "policy.set_limits":
		return KeyLimits
	case "policy.create_key", "policy.revoke_key", "policy.consent_key", "policy.withdraw_consent":
		return KeyKeys
	case "policy.break_glass", guard.KindReview:
		return KeyBreakGlass
	}
	return ""
}

// Decide returns the event that a command comes to.
func Decide(s *State, c Command) (name string, data canon.Document, err error) {
	if c.View == nil {
		c.View = s
	}
	now := contract.Time(c.Now)
	until := contract.Time(c.Now.Add(time.Duration(c.TTLMS) * time.Millisecond))
	switch c.Kind {
	case KindRegister:
		if s.DualControl(c) && s.MayVote(c.Actor) != nil {
			return "", nil, errors.New("principal: who is a person is said by registered persons")
		}
		return events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: c.Principal, Type: c.Type}, nil
	case "policy.suspend_principal":
		if c.Principal == c.Actor {
			return "", nil, errors.New("principal: nobody suspends themselves")
		}
		return events.PrincipalSuspendedName, &events.PrincipalSuspended{Principal: c.Principal, Reason: c.Reason}, reason(c)
	case "policy.resume_principal":
		if !s.Suspended(c.Principal) {
			return "", nil, fmt.Errorf("principal: %s is not suspended", c.Principal)
		}
		return events.PrincipalResumedName, &events.PrincipalResumed{Principal: c.Principal, Reason: c.Reason}, reason(c)
	case "policy.revoke_token":
		if (c.ID == "") == (c.Principal == "") {
			return "", nil, errors.New("id: name one token by its id, or a principal")
		}
		d := &events.TokenRevoked{ID: c.ID, Principal: c.Principal, Reason: c.Reason}
		if c.Principal != "" {
			d.Before = now
		}
		return events.TokenRevokedName, d, reason(c)
	case "policy.grant_session":
		switch {
		case c.TTLMS <= 0 || time.Duration(c.TTLMS)*time.Millisecond > MaxDelegation:
			return "", nil, fmt.Errorf("ttl_ms: want 1 to %d", MaxDelegation.Milliseconds())
		case !s.owns(c):
			return "", nil, errors.New("session: not found among the caller's")
		case c.Principal == c.Actor:
			return "", nil, errors.New("principal: is the caller itself")
		}
		return events.SessionGrantedName, &events.SessionGranted{Expires: until, Owner: c.Actor, Principal: c.Principal, Session: c.Session}, nil
	case "policy.revoke_session":
		if g, ok := s.sessions[c.Session][c.Principal]; !ok || g.owner != c.Actor {
			return "", nil, errors.New("session: not granted to that principal by the caller")
		}
		return events.SessionGrantRevokedName, &events.SessionGrantRevoked{Principal: c.Principal, Session: c.Session}, nil
	case "policy.grant_role":
		d := &events.RoleGranted{Principal: c.Principal, Role: c.Role}
		if c.TTLMS > 0 {
			d.Expires = until
		}
		return events.RoleGrantedName, d, token("role", c.Role)
	case "policy.revoke_role":
		if !s.holds(c.Principal, c.Role, now) {
			return "", nil, fmt.Errorf("role: %s does not hold %s", c.Principal, c.Role)
		}
		return events.RoleRevokedName, &events.RoleRevoked{Principal: c.Principal, Role: c.Role}, nil
	case "policy.delegate":
		if d := time.Duration(c.TTLMS) * time.Millisecond; d <= 0 || d > MaxDelegation {
			return "", nil, fmt.Errorf("ttl_ms: want 1 to %d", MaxDelegation.Milliseconds())
		}
		if c.Delegate == c.Actor {
			return "", nil, errors.New("delegate: is the caller itself")
		}
		// The delegator is who calls: nobody gives away another's authority.
		return events.DelegationGrantedName, &events.DelegationGranted{Delegate: c.Delegate, Delegator: c.Actor, Expires: until, ID: "g-" + c.CallID, Kinds: c.Kinds, Scopes: c.Held}, nil
	case "policy.revoke_delegation":
		if d := s.delegations[c.ID]; d == nil || !d.holds(now) {
			return "", nil, errors.New("id: no such delegation stands")
		}
		return events.DelegationRevokedName, &events.DelegationRevoked{ID: c.ID}, nil
	case "policy.approve_tool":
		if !strings.HasPrefix(c.Digest, "sha256:") {
			return "", nil, errors.New("digest: want the tool document's, sha256:…")
		}
		return "tool_approved", &contract.ToolApproved{Digest: c.Digest, Kind: c.ToolKind}, nil
	case "policy.freeze":
		if s.frozen != nil {
			return "", nil, fmt.Errorf("the mesh is already frozen (%s: %s)", s.frozen.ID, s.frozen.Reason)
		}
		return events.MeshFrozenName, &events.MeshFrozen{ID: "f-" + c.CallID, Reason: c.Reason}, reason(c)
	case guard.KindUnfreeze:
		if s.frozen == nil {
			return "", nil, errors.New("the mesh is not frozen")
		}
		return events.MeshUnfrozenName, &events.MeshUnfrozen{ID: s.frozen.ID, Reason: c.Reason}, reason(c)
	case "policy.set_limits":
		if err := guard.CheckLimits(c.Limits); err != nil {
			return "", nil, err
		}
		return events.LimitsSetName, &events.LimitsSet{Limits: contract.Bytes(&guard.Limits{Limits: c.Limits})}, nil
	case "policy.create_key":
		if err := s.mayMake(c, now); err != nil {
			return "", nil, err
		}
		k := &events.VirtualKeyCreated{Actor: c.Owner, BudgetUSDMicros: c.Budget, BudgetWindow: c.BudgetWindow, Cache: c.Cache, Concurrent: c.Concurrent, Digest: c.Digest,
			ID: c.ID, Maker: c.Actor, Models: c.Models, RateCalls: c.Rate, RateWindow: c.RateWindow, Scopes: c.Scopes, Tags: c.Tags}
		if c.TTLMS > 0 {
			k.Expires = until
		}
		return events.VirtualKeyCreatedName, k, nil
	case "policy.consent_key":
		if err := s.mayConsent(c); err != nil {
			return "", nil, err
		}
		return events.VirtualKeyConsentedName, &events.VirtualKeyConsented{Expires: until, ID: c.ID, Maker: c.Maker, Principal: c.Actor, Scopes: c.Scopes}, nil
	case "policy.withdraw_consent":
		k, waits := s.keys[c.ID], s.consents[c.ID]
		if (waits == nil || waits.Principal != c.Actor) && (k == nil || k.Actor != c.Actor || k.revoked != "") {
			return "", nil, errors.New("id: no key and no consent of the caller's has this id")
		}
		return events.VirtualKeyConsentWithdrawnName, &events.VirtualKeyConsentWithdrawn{ID: c.ID, Principal: c.Actor}, nil
	case "policy.revoke_key":
		if k := s.keys[c.ID]; k == nil || k.revoked != "" {
			return "", nil, errors.New("id: no such key stands")
		}
		return events.VirtualKeyRevokedName, &events.VirtualKeyRevoked{ID: c.ID, Reason: c.Reason}, reason(c)
	case "policy.break_glass":
		if d := time.Duration(c.TTLMS) * time.Millisecond; d <= 0 || d > MaxBreakGlass {
			return "", nil, fmt.Errorf("ttl_ms: want 1 to %d", MaxBreakGlass.Milliseconds())
		}
		for _, g := range s.grants {
			if g.Actor == c.Actor && g.reviewed == nil {
				return "", nil, fmt.Errorf("%s still waits for its review", g.ID)
			}
		}
		return events.BreakGlassOpenedName, &events.BreakGlassOpened{Actor: c.Actor, Expires: until, ID: "b-" + c.CallID, Reason: c.Reason}, reason(c)
	case guard.KindReview:
		g := s.grants[c.ID]
		switch {
		case g == nil || g.reviewed != nil:
			return "", nil, errors.New("id: no such break-glass grant waits for review")
		case g.Actor == c.Actor:
			return "", nil, errors.New("reviewer: nobody reviews what they did themselves")
		case c.View.MayVote(c.Actor) != nil:
			return "", nil, errors.New("reviewer: only registered persons review")
		}
		return events.BreakGlassReviewedName, &events.BreakGlassReviewed{ID: c.ID, Reason: c.Reason, Reviewer: c.Actor, Verdict: c.Verdict}, reason(c)
	}
	return "", nil, fmt.Errorf("kind %s is not one of govern's", c.Kind)
}

// owns reports whether a session is the caller's.
func (s *State) owns(c Command) bool {
	if contract.DerivedSession(c.Session) {
		return contract.OwnsSession(c.Tenant, c.Actor, c.Session)
	}
	return c.Owns != nil && c.Owns(c.Session)
}

// mayMake reports why the caller may not make a virtual key: nobody gives away
// more than they hold, nor speaks for somebody who has not agreed.
func (s *State) mayMake(c Command, now string) error {
	if s.keys[c.ID] != nil {
		return fmt.Errorf("id: there is a key %s already, or was", c.ID)
	}
	if err := within(c.Scopes, c.Held, "the caller's credential lacks it"); err != nil {
		return err
	}
	for i, p := range c.Models {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("models/%d: %q is no pattern", i, p)
		}
	}
	if c.Owner == c.Actor {
		return nil
	}
	agreed := s.consents[c.ID]
	if agreed == nil || agreed.Principal != c.Owner || agreed.Maker != c.Actor || agreed.Expires <= now ||
		agreed.at <= c.View.EndedAt(c.Owner) || agreed.at <= c.View.EndedAt(c.Actor) {
		return fmt.Errorf("actor: %s has not agreed to a key %s of %s's; they do by `binnacle key consent %s --maker %s`, with a token of their own", c.Owner, c.ID, c.Actor, c.ID, c.Actor)
	}
	return within(c.Scopes, agreed.Scopes, c.Owner+" has not agreed to it")
}

func (s *State) mayConsent(c Command) error {
	switch d := time.Duration(c.TTLMS) * time.Millisecond; {
	case d <= 0 || d > MaxDelegation:
		return fmt.Errorf("ttl_ms: want 1 to %d", MaxDelegation.Milliseconds())
	case c.Maker == c.Actor:
		return errors.New("maker: is the caller, who needs no consent")
	case s.keys[c.ID] != nil:
		return fmt.Errorf("id: there is a key %s already, or was", c.ID)
	}
	if x := s.consents[c.ID]; x != nil && x.Principal != c.Actor && x.Expires > contract.Time(c.Now) {
		return fmt.Errorf("id: %s has agreed to a key of this id; choose another", x.Principal)
	}
	return within(c.Scopes, c.Held, "the caller's credential lacks it")
}

func within(scopes, held []string, why string) error {
	for i, sc := range scopes {
		if !slices.Contains(held, sc) {
			return fmt.Errorf("scopes/%d: %s: %s", i, sc, why)
		}
	}
	return nil
}

func reason(c Command) error {
	if strings.TrimSpace(c.Reason) == "" {
		return errors.New("reason: say why")
	}
	return nil
}

func token(field, v string) error {
	if !contract.Token(v) {
		return fmt.Errorf("%s: want 1 to 128 of [A-Za-z0-9_-]", field)
	}
	return nil
}
