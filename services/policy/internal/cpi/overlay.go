package cpi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// overlay checks one P2 document. If the document is malformed, overlay adds no other
// finding about it.
func (c *checker) overlay(o *guard.Overlay) {
	where := "p2 " + o.ID
	if err := o.Validate(); err != nil {
		check := "structure"
		if errors.Is(err, guard.ErrWidens) {
			check = "widening"
		}
		c.add("error", check, where, "%v", err)
		return
	}
	c.expired(where, o)
	if o.Sandbox != nil && c.s.P0 != nil {
		if field := beyond(o.Sandbox, &c.s.P0.Sandbox); field != "" {
			c.add("error", "widening", where, "sandbox.%s is above the ceiling", field)
		}
	}
	c.egress(where, o.Egress)
	for _, k := range o.Only {
		c.kind(where+" only_kinds", k)
	}
	c.lockout(where, o)
	for i := range o.Rules {
		at := fmt.Sprintf("%s rules[%d]", where, i)
		c.ruleKinds(at, o, &o.Rules[i])
		c.ruleReason(at, &o.Rules[i])
		for j := range o.Rules[:i] {
			c.ruleAfter(at, &o.Rules[i], &o.Rules[j], j)
		}
	}
}

// expired adds a finding if the overlay is the document to activate and its expiry time
// has passed.
func (c *checker) expired(where string, o *guard.Overlay) {
	k := c.s.Known
	if k == nil || o.Expires == "" || o.Expires > k.Now || k.Layer != "p2" || k.Name != o.ID {
		return
	}
	c.out = append(c.out, Finding{Severity: "error", Check: "expired", Where: where, Pointer: "/expires",
		Message: fmt.Sprintf("the overlay expired at %s, it is %s now", o.Expires, k.Now)})
}

// ruleKinds checks that the kinds of a rule can exist and overlap with only_kinds, if
// that is set.
func (c *checker) ruleKinds(at string, o *guard.Overlay, r *guard.OverlayRule) {
	for _, k := range r.Kinds {
		c.kind(at, k)
		if len(o.Only) > 0 && !slices.ContainsFunc(o.Only, func(p string) bool { return meet(p, k) }) {
			c.add("error", "unreachable", at, "kind %q is not on only_kinds", k)
		}
	}
}

// ruleReason checks that the reason code of a rule belongs to its verdict.
func (c *checker) ruleReason(at string, r *guard.OverlayRule) {
	info, ok := contract.Reasons[r.Reason]
	switch {
	case ok && info.Verdict != r.Verdict:
		c.add("error", "reference", at, "reason_code %s belongs to %s", r.Reason, info.Verdict)
	case !ok && !strings.HasPrefix(r.Reason, r.Verdict+"_"):
		c.add("error", "reference", at, "reason_code %q: want one of the registry's, or %s_…", r.Reason, r.Verdict)
	}
}

// ruleAfter adds a finding if r never applies because before, the earlier rule with the
// index j, matches every call that r matches.
func (c *checker) ruleAfter(at string, r, before *guard.OverlayRule, j int) {
	if !answersAll(before, r) {
		return
	}
	same := coversAll(r.Kinds, before.Kinds) && len(before.Labels) == len(r.Labels) && len(before.Classes) == len(r.Classes)
	if before.Verdict != r.Verdict && same {
		c.add("error", "contradiction", at, "rules[%d] matches the same calls with %s", j, before.Verdict)
	} else {
		c.add("error", "unreachable", at, "rules[%d] answers before it, always", j)
	}
}

// answersAll reports whether it is certain that y matches every call that x matches.
func answersAll(y, x *guard.OverlayRule) bool {
	return coversAll(y.Kinds, x.Kinds) && subset(y.Labels, x.Labels) &&
		(len(y.Classes) == 0 || len(x.Classes) > 0 && subset(x.Classes, y.Classes))
}

// lockout finds overlays of a whole tenant that do not expire and that can deny every
// principal the call that retires them.
func (c *checker) lockout(where string, o *guard.Overlay) {
	if o.Scope != "tenant" || o.Expires != "" {
		return
	}
	const retire = "policy.retire"
	if len(o.Only) > 0 && !slices.ContainsFunc(o.Only, func(k string) bool { return guard.MatchKind(k, retire) }) {
		c.add("error", "lockout", where, "only_kinds leaves out %s for the whole tenant: it could not be retired; list it, or set expires", retire)
	}
	for i := range o.Rules {
		r := &o.Rules[i]
		if r.Verdict == contract.Deny && len(r.Labels) == 0 && slices.ContainsFunc(r.Kinds, func(k string) bool { return guard.MatchKind(k, retire) }) {
			c.add("error", "lockout", fmt.Sprintf("%s rules[%d]", where, i), "denies %s for the whole tenant: it could not be retired; leave it out, or set expires", retire)
		}
	}
}
