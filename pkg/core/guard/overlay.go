package guard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Overlay is a P2 document: rules for one tenant, session or agent, until it
// expires. It can only narrow: there is no way to write ALLOW.
type Overlay struct {
	Expires string            `json:"expires,omitempty"` // empty = until retired
	ID      string            `json:"id"`
	Only    []string          `json:"only_kinds,omitempty"` // if any, other kinds are denied
	Rules   []OverlayRule     `json:"rules,omitempty"`      // the first that matches counts
	Sandbox *contract.Sandbox `json:"sandbox,omitempty"`    // ceiling; a zero limit sets no bound
	Scope   string            `json:"scope"`                // tenant, session, agent
	Subject string            `json:"subject"`
}

// Canonical implements canon.Document.
func (o *Overlay) Canonical(c *canon.Codec) {
	c.OptStr("expires", &o.Expires)
	c.Str("id", &o.ID)
	c.OptStrs("only_kinds", &o.Only)
	canon.List(c, "rules", &o.Rules)
	canon.OptDoc(c, "sandbox", &o.Sandbox)
	c.Str("scope", &o.Scope)
	c.Str("subject", &o.Subject)
}

// OverlayRule is the verdict on the calls that it matches.
type OverlayRule struct {
	Approval *contract.ApprovalRule `json:"approval,omitempty"` // for ESCALATE
	Classes  []string               `json:"classes,omitempty"`  // any of these effect classes; empty = all
	Kinds    []string               `json:"kinds"`
	Labels   []string               `json:"labels,omitempty"` // all of these; empty = whatever they are
	Reason   string                 `json:"reason_code"`
	Verdict  string                 `json:"verdict"` // DENY or ESCALATE
}

// Canonical implements canon.Document.
func (r *OverlayRule) Canonical(c *canon.Codec) {
	canon.OptDoc(c, "approval", &r.Approval)
	c.OptStrs("classes", &r.Classes)
	c.Strs("kinds", &r.Kinds)
	c.OptStrs("labels", &r.Labels)
	c.Str("reason_code", &r.Reason)
	c.Str("verdict", &r.Verdict)
}

// Validate returns an error for an overlay that could not be enforced, or that
// would widen what other layers permit. The error begins with the field's name.
func (o *Overlay) Validate() error {
	if err := o.checkScope(); err != nil {
		return err
	}
	if o.Sandbox != nil {
		if err := checkIsolation(o.Sandbox); err != nil {
			return err
		}
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

// checkScope returns an error unless the overlay has a name and is for somebody.
func (o *Overlay) checkScope() error {
	switch {
	case !contract.Token(o.ID):
		return errors.New("id: want 1 to 128 of [A-Za-z0-9_-]")
	case !slices.Contains([]string{"tenant", "session", "agent"}, o.Scope):
		return errors.New("scope: want tenant, session or agent")
	case o.Subject == "":
		return errors.New("subject: name whom the overlay is for")
	case len(o.Only) == 0 && len(o.Rules) == 0 && o.Sandbox == nil:
		return errors.New("rules: an overlay without rules, only_kinds and sandbox says nothing")
	}
	return nil
}

func (r *OverlayRule) validate() error {
	switch {
	case r.Verdict != contract.Deny && r.Verdict != contract.Escalate:
		return fmt.Errorf("verdict %q: an overlay may only narrow; want DENY or ESCALATE", r.Verdict)
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

// checkIsolation returns an error for a sandbox whose tier or user id no runner
// could provide.
func checkIsolation(s *contract.Sandbox) error {
	switch {
	case tierRank(s.Tier) < 0:
		return fmt.Errorf("sandbox.tier %q: want process, wasi or container", s.Tier)
	case !knownUID(s.UID):
		return fmt.Errorf("sandbox.uid %q: want per_run, or leave it out", s.UID)
	}
	return nil
}

// Applies reports whether the overlay concerns a call, and has not expired at the
// call's time. An agent's overlay also narrows what is done on behalf of that
// principal; a session is named by its id or by its owner's name for it.
func (o *Overlay) Applies(f *Facts) bool {
	if o.Expires != "" && f.Now >= o.Expires { // TimeFormat sorts as time does
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

// Answer returns the verdict of the overlay on a call that it applies to, by a
// tool that may be nil: of the first rule that matches, or no opinion. Its
// sandbox always narrows.
func (o *Overlay) Answer(f *Facts, t *contract.Tool) Answer {
	a := Answer{Sandbox: o.Sandbox}
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

func (r *OverlayRule) matches(f *Facts, t *contract.Tool) bool {
	return matchAny(r.Kinds, f.Kind) && (len(r.Classes) == 0 || slices.Contains(r.Classes, classOf(t))) && all(r.Labels, f.Labels)
}

func all(want, have []string) bool {
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
}

// classOf is a tool's effect class, which is E3 where it names none.
func classOf(t *contract.Tool) string {
	if t == nil || t.Class == "" {
		return "E3"
	}
	return t.Class
}
