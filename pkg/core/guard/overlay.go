package guard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// Overlay is a P2 document: rules for one tenant, session or agent until the overlay
// expires. A valid overlay permits nothing that other layers do not permit, because its
// rules deny or escalate.
type Overlay struct {
	Egress  []contract.EgressRule `json:"egress,omitempty"`  // requests that tools may make at most; empty = no limit
	Expires string                `json:"expires,omitempty"` // time in contract.TimeFormat; empty = in force until retired
	ID      string                `json:"id"`
	Only    []string              `json:"only_kinds,omitempty"` // patterns of kinds; if not empty, calls of other kinds are denied
	Rules   []OverlayRule         `json:"rules,omitempty"`      // the first rule that matches counts
	Sandbox *contract.Sandbox     `json:"sandbox,omitempty"`    // upper limits; a zero limit is no limit
	Scope   string                `json:"scope"`                // tenant, session or agent
	Subject string                `json:"subject"`
}

// Canonical implements canon.Document. It lists the members in the order of their
// JSON names, in which they are stored, hashed and signed.
func (o *Overlay) Canonical(c *canon.Codec) {
	canon.List(c, "egress", &o.Egress)
	c.OptStr("expires", &o.Expires)
	c.Str("id", &o.ID)
	c.OptStrs("only_kinds", &o.Only)
	canon.List(c, "rules", &o.Rules)
	canon.OptDoc(c, "sandbox", &o.Sandbox)
	c.Str("scope", &o.Scope)
	c.Str("subject", &o.Subject)
}

// OverlayRule is a verdict on the calls that match its kinds, classes and labels.
type OverlayRule struct {
	Approval *contract.ApprovalRule `json:"approval,omitempty"` // approval rule of an ESCALATE; nil = the default rule
	Classes  []string               `json:"classes,omitempty"`  // effect classes, any of which matches; empty = every class
	Kinds    []string               `json:"kinds"`
	Labels   []string               `json:"labels,omitempty"` // data labels, all of which must be present; empty = no condition
	Reason   string                 `json:"reason_code"`
	Verdict  string                 `json:"verdict"` // DENY or ESCALATE
}

// Canonical implements canon.Document. It lists the members in the order of their
// JSON names, in which they are stored, hashed and signed.
func (r *OverlayRule) Canonical(c *canon.Codec) {
	canon.OptDoc(c, "approval", &r.Approval)
	c.OptStrs("classes", &r.Classes)
	c.Strs("kinds", &r.Kinds)
	c.OptStrs("labels", &r.Labels)
	c.Str("reason_code", &r.Reason)
	c.Str("verdict", &r.Verdict)
}

// ErrWidens is wrapped by the error of Validate for a rule with another verdict than DENY or
// ESCALATE.
var ErrWidens = errors.New("an overlay may only narrow")

// Validate returns an error for an overlay that has an invalid field, or none of Rules, Only,
// Egress and Sandbox. For a rule with another verdict than DENY or ESCALATE, the error
// wraps ErrWidens. The error begins with the name of the JSON field.
func (o *Overlay) Validate() error {
	if err := o.checkScope(); err != nil {
		return err
	}
	if o.Sandbox != nil {
		if err := checkIsolation(o.Sandbox); err != nil {
			return err
		}
	}
	if err := netrule.CheckCeiling(o.Egress); err != nil {
		return err
	}
	if o.Expires != "" {
		if _, err := contract.ParseTime(o.Expires); err != nil {
			return fmt.Errorf("expires: %w", err)
		}
	}
	for i := range o.Rules {
		if err := o.Rules[i].validate(); err != nil {
			return fmt.Errorf("rules[%d].%w", i, err)
		}
	}
	return nil
}

// checkScope returns an error unless the overlay has an id, a scope with a
// subject, and at least one restriction.
func (o *Overlay) checkScope() error {
	switch {
	case !contract.Token(o.ID):
		return errors.New("id: want 1 to 128 of [A-Za-z0-9_-]")
	case !slices.Contains([]string{"tenant", "session", "agent"}, o.Scope):
		return errors.New("scope: want tenant, session or agent")
	case o.Subject == "":
		return errors.New("subject: name whom the overlay is for")
	case len(o.Only) == 0 && len(o.Rules) == 0 && len(o.Egress) == 0 && o.Sandbox == nil:
		return errors.New("rules: want at least one of rules, only_kinds, egress and sandbox")
	}
	return nil
}

func (r *OverlayRule) validate() error {
	switch {
	case r.Verdict != contract.Deny && r.Verdict != contract.Escalate:
		return fmt.Errorf("verdict %q: %w; want DENY or ESCALATE", r.Verdict, ErrWidens)
	case len(r.Kinds) == 0:
		return errors.New("kinds: name at least one")
	case r.Reason == "":
		return errors.New("reason_code: name one")
	case r.Approval == nil:
		return nil
	case r.Verdict != contract.Escalate:
		return errors.New("approval: belongs to ESCALATE")
	}
	if err := CheckRule(r.Approval); err != nil {
		return fmt.Errorf("approval.%w", err)
	}
	return nil
}

// checkIsolation returns an error for a sandbox with a tier or user id that no
// runner provides.
func checkIsolation(s *contract.Sandbox) error {
	switch {
	case tierRank(s.Tier) < 0:
		return fmt.Errorf("sandbox.tier %q: want process, wasi, container or microvm", s.Tier)
	case !knownUID(s.UID):
		return fmt.Errorf("sandbox.uid %q: want per_run, or leave it out", s.UID)
	}
	return nil
}

// Applies reports whether the overlay is for this call and has not expired at the time
// of the decision. An agent's overlay also applies to calls that another principal makes
// under a valid delegation of that agent. Subject may name a session by its id or by its
// owner's name for it.
func (o *Overlay) Applies(f *Facts) bool {
	if o.Expires != "" && f.Now >= o.Expires { // strings in TimeFormat sort in order of time
		return false
	}
	switch o.Scope {
	case "tenant":
		return o.Subject == f.Tenant
	case "session":
		return o.Subject == f.Session || o.Subject == f.SessionName
	}
	return o.Subject == f.Actor || f.Delegator != nil && o.Subject == f.OnBehalfOf
}

// Answer returns the overlay's answer to a call that it applies to: DENY if Only is set
// and none of its patterns matches the kind, else the verdict of the first rule that
// matches, or no verdict if none does. The overlay's limits are part of every answer. t
// may be nil.
func (o *Overlay) Answer(f *Facts, t *contract.Tool) Answer {
	a := Answer{Sandbox: o.Sandbox}
	if len(o.Egress) > 0 {
		a.Egress = [][]contract.EgressRule{o.Egress}
	}
	if len(o.Only) > 0 && !matchAny(o.Only, f.Kind) {
		a.Verdict, a.Reason = contract.Deny, contract.ReasonOverlayNotListed
		return a
	}
	for i := range o.Rules {
		r := &o.Rules[i]
		if !r.matches(f, t) {
			continue
		}
		a.Verdict, a.Reason = r.Verdict, r.Reason
		if r.Approval != nil {
			a.Approvals = []contract.ApprovalRule{*r.Approval}
		}
		return a
	}
	return a
}

// matches reports whether the rule's kinds, classes and labels match the call.
func (r *OverlayRule) matches(f *Facts, t *contract.Tool) bool {
	return matchAny(r.Kinds, f.Kind) && (len(r.Classes) == 0 || slices.Contains(r.Classes, classOf(t))) && all(r.Labels, f.Labels)
}

func all(want, have []string) bool {
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
}

// classOf returns the tool's effect class, or E3 if t is nil or declares none.
func classOf(t *contract.Tool) string {
	if t == nil || t.Class == "" {
		return "E3"
	}
	return t.Class
}
