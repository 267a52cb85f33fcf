package guard

import (
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Kinds of calls that end a state in which the gates deny all others.
const (
	KindUnfreeze = "policy.unfreeze"
	KindReview   = "policy.review"
)

// gate returns the reason code for which the call is denied whatever the rules
// say, or "". The gates are applied in order, and the first reason counts; a
// later gate may rely on what the earlier ones rule out. They are called by name
// and not from a table, so that the inputs stay on the stack.
func gate(in *Inputs) string {
	reason := gateMesh(in)
	if reason == "" {
		reason = gateName(in)
	}
	if reason == "" {
		reason = gateState(in)
	}
	if reason == "" {
		reason = gateCaller(in)
	}
	if reason == "" {
		reason = gateTool(in)
	}
	if reason == "" {
		reason = gateDue(in)
	}
	if reason == "" {
		reason = gateCeilings(in)
	}
	return reason
}

// gateMesh holds back every call of a mesh or tenant that cannot decide.
func gateMesh(in *Inputs) string {
	switch {
	case in.P0 == nil:
		return contract.ReasonNoPolicyDefined
	case in.Facts.Truncated:
		return contract.ReasonLedgerTruncated
	case in.Facts.MeshTenant != "":
		return contract.ReasonTenantIsolation
	}
	return ""
}

// gateName holds back names that rules could misread.
func gateName(in *Inputs) string {
	kind, tool := in.Facts.Kind, in.Facts.Tool
	switch {
	case !ascii(kind) || !ascii(tool):
		return contract.ReasonUnicodeObfuscationDetected
	case !name(kind) || !name(tool):
		return contract.ReasonEnvelopeInvalid
	}
	return ""
}

// gateState holds back calls of a frozen mesh, of tools that do not exist, that
// come too late, and that claim a parent which does not run.
func gateState(in *Inputs) string {
	f := &in.Facts
	switch {
	case f.Frozen != "" && f.Kind != KindUnfreeze:
		return contract.ReasonSystemFrozen
	case in.Tool == nil:
		return contract.ReasonUnknownTool
	case late(in):
		return contract.ReasonProposalExpired
	case (f.Parent != "" || f.Proposer != "gateway") && !f.ParentLive:
		return contract.ReasonProvenanceFailure
	}
	return ""
}

// gateCaller holds back callers whose authority has ended, and sessions of
// somebody else.
func gateCaller(in *Inputs) string {
	f := &in.Facts
	switch {
	case f.Suspended:
		return contract.ReasonPrincipalSuspended
	case f.Revoked:
		return contract.ReasonCredentialRevoked
	case f.Key != nil && f.Key.Fault != "":
		return f.Key.Fault
	case f.SessionOwner != "" || f.Requested != "":
		return contract.ReasonIdentityIsolationViolation
	}
	return ""
}

// gateTool holds back tool documents that are not the approved ones.
func gateTool(in *Inputs) string {
	switch in.Facts.ToolPinned {
	case "":
		return ""
	case "none":
		return contract.ReasonToolNotApproved
	}
	return contract.ReasonToolDrift
}

// gateDue holds back calls whose delegation or signed args do not hold, and
// callers with an emergency use to review.
func gateDue(in *Inputs) string {
	f := &in.Facts
	switch {
	case f.DelegationBad != "":
		return f.DelegationBad
	case f.Unverified:
		return contract.ReasonVerificationFailure
	case f.ReviewDue && f.Kind != KindReview:
		return contract.ReasonBreakGlassReviewDue
	}
	return ""
}

// gateCeilings holds back what the ceilings forbid.
func gateCeilings(in *Inputs) string {
	switch {
	case matchAny(in.P0.ForbiddenKinds, in.Facts.Kind):
		return contract.ReasonPolicyViolation
	case in.Facts.ReportWithin != 0 && !callerMay(in):
		return contract.ReasonCallerExecutionRefused
	case slices.ContainsFunc(in.Tool.Egress, in.P0.forbidsHost):
		return contract.ReasonDataEgressBlocked
	case in.Tool.Reserve != nil && in.Tool.Reserve.Cents > in.P0.MaxCents:
		return contract.ReasonBudgetExceeded
	}
	return ""
}

func ascii(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

// nameBytes are the bytes that names of kinds and tools are made of.
var nameBytes = bytesOf("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

func bytesOf(s string) (set [256]bool) {
	for i := range len(s) {
		set[s[i]] = true
	}
	return set
}

// name reports whether s can be the name of a kind or a tool.
func name(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if !nameBytes[s[i]] {
			return false
		}
	}
	return true
}

// window returns when the call may start, counted from its proposal, or, for a
// call that was escalated, from the moment at which that was settled; and when
// its caller stops waiting. ok is false where a time is malformed.
func window(in *Inputs) (from, until, deadline time.Time, ok bool) {
	proposed, err1 := contract.ParseTime(in.Facts.Proposed)
	deadline, err2 := contract.ParseTime(in.Facts.Deadline)
	from = proposed
	var err3 error
	if in.Facts.Resolved != "" {
		if from, err3 = contract.ParseTime(in.Facts.Resolved); err3 == nil {
			deadline = from.Add(deadline.Sub(proposed))
		}
	}
	until = from.Add(min(time.Duration(in.P0.StartWindowMS)*time.Millisecond, MaxStartWindow))
	if deadline.Before(until) {
		until = deadline
	}
	return from, until, deadline, err1 == nil && err2 == nil && err3 == nil
}

func late(in *Inputs) bool {
	now, err := contract.ParseTime(in.Facts.Now)
	_, until, _, ok := window(in)
	return err != nil || !ok || now.After(until)
}
