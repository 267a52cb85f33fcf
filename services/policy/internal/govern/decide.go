package govern

import (
	"errors"
	"fmt"
	"path"
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
	Kind      string        `json:"-"`
	CallID    string        `json:"-"`
	Actor     string        `json:"-"`
	Now       time.Time     `json:"-"`
	Principal string        `json:"principal"`
	Role      string        `json:"role"`
	Type      string        `json:"type"`
	Delegate  string        `json:"delegate"`
	Kinds     []string      `json:"kinds"`
	ToolKind  string        `json:"kind"`
	Digest    string        `json:"digest"`
	ID        string        `json:"id"`
	Reason    string        `json:"reason"`
	Verdict   string        `json:"verdict"`
	TTLMS     int64         `json:"ttl_ms"`
	Limits    []guard.Limit `json:"limits"`

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
}

// Longest lives.
const (
	MaxDelegation = 90 * 24 * time.Hour
	MaxBreakGlass = 4 * time.Hour
)

// Key is the aggregate that a kind's event belongs to.
func Key(kind string) string {
	switch kind {
	case "policy.register_principal", "policy.suspend_principal", "policy.grant_role", "policy.revoke_role", "policy.delegate", "policy.revoke_delegation":
		return KeyIdentity
	case "policy.approve_tool":
		return KeyTools
	case "policy.freeze", guard.KindUnfreeze:
		return KeyFreeze
	case "policy.set_limits":
		return KeyLimits
	case "policy.create_key", "policy.revoke_key":
		return KeyKeys
	case "policy.break_glass", guard.KindReview:
		return KeyBreakGlass
	}
	return ""
}

// Decide returns the event that a command comes to.
func Decide(s *State, c Command) (name string, data canon.Document, err error) {
	now := contract.Time(c.Now)
	until := contract.Time(c.Now.Add(time.Duration(c.TTLMS) * time.Millisecond))
	switch c.Kind {
	case "policy.register_principal":
		return events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: c.Principal, Type: c.Type}, nil
	case "policy.suspend_principal":
		if c.Principal == c.Actor {
			return "", nil, errors.New("principal: nobody suspends themselves")
		}
		return events.PrincipalSuspendedName, &events.PrincipalSuspended{Principal: c.Principal, Reason: c.Reason}, reason(c)
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
		return events.DelegationGrantedName, &events.DelegationGranted{Delegate: c.Delegate, Delegator: c.Actor, Expires: until, ID: "g-" + c.CallID, Kinds: c.Kinds}, nil
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
		if s.keys[c.ID] != nil {
			return "", nil, fmt.Errorf("id: there is a key %s already, or was", c.ID)
		}
		for _, p := range c.Models {
			if _, err := path.Match(p, ""); err != nil {
				return "", nil, fmt.Errorf("models: %q is no pattern", p)
			}
		}
		k := &events.VirtualKeyCreated{Actor: c.Owner, BudgetUSDMicros: c.Budget, BudgetWindow: c.BudgetWindow, Cache: c.Cache, Concurrent: c.Concurrent, Digest: c.Digest,
			ID: c.ID, Models: c.Models, RateCalls: c.Rate, RateWindow: c.RateWindow, Scopes: c.Scopes, Tags: c.Tags}
		if c.TTLMS > 0 {
			k.Expires = until
		}
		return events.VirtualKeyCreatedName, k, nil
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
		}
		return events.BreakGlassReviewedName, &events.BreakGlassReviewed{ID: c.ID, Reason: c.Reason, Reviewer: c.Actor, Verdict: c.Verdict}, reason(c)
	}
	return "", nil, fmt.Errorf("kind %s is not one of govern's", c.Kind)
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
