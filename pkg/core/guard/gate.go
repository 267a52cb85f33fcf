package guard

import (
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// cellKinds are the kinds of calls that govern the whole mesh, besides those that begin
// with cellFamily.
var cellKinds = []string{"image.gc", "image.import", "image.list", "image.pull", "pack.install", "pack.uninstall", "policy.freeze", KindUnfreeze}

// cellFamily begins the kinds of calls that create and change tenants.
const cellFamily = "tenant."

// GovernsCell reports whether calls of this kind govern the whole mesh, so that once the
// cell is opened only calls of contract.CellTenant may be of the kind.
func GovernsCell(kind string) bool {
	return ChangesTenants(kind) || slices.Contains(cellKinds, kind)
}

// ChangesTenants reports whether calls of this kind create or change tenants. Only calls
// of contract.CellTenant may do so, also before the cell is opened; until then, calls of
// these kinds are denied.
func ChangesTenants(kind string) bool { return strings.HasPrefix(kind, cellFamily) }

// Kinds of calls that end a state in which a gate denies calls: a freeze, and an overdue
// review. The gate permits the kind that ends the state.
const (
	KindUnfreeze = "policy.unfreeze"
	KindReview   = "policy.review"
)

// gate returns the reason code of the gate that denies the call regardless of the
// answers of the layers, or "" if no gate does. The gates run in order and the first
// reason counts, so a gate may rely on the conditions that earlier gates have checked.
// They are called one by one, not from a table of functions, because with a table the
// inputs would escape to the heap.
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
	if reason == "" {
		reason = gateSecrets(&in.Facts)
	}
	return reason
}

// gateMesh denies every call while there are no ceilings or events are missing from the
// ledger. It also denies calls of a tenant that does not exist or is suspended, calls of
// the cell's tenant that no operator makes, and calls of any other tenant that govern
// the whole mesh. It determines these calls by facts alone, and not by their kinds,
// because decisions of releases without these facts must be computed again with the same
// result.
func gateMesh(in *Inputs) string {
	switch {
	case in.P0 == nil:
		return contract.ReasonNoPolicyDefined
	case in.Facts.Truncated:
		return contract.ReasonLedgerTruncated
	case in.Facts.MeshTenant != "" || in.Facts.OutsideCell:
		return contract.ReasonTenantIsolation
	case in.Facts.TenantSuspended:
		return contract.ReasonTenantSuspended
	case in.Facts.Tenant == contract.CellTenant && !in.Facts.Operator:
		return contract.ReasonOperatorRequired
	}
	return ""
}

// gateName denies calls with names that rules could misread: names with characters
// outside ASCII, which can look like other characters, and names outside the syntax of
// names.
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

// gateState denies calls while the mesh is frozen, except the one that unfreezes it;
// calls of unknown tools; and calls after their start window, or with a malformed time.
// It also denies calls whose parent is not running, if they name a parent or were not
// proposed by the gateway.
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

// gateCaller denies calls of suspended principals, calls with a revoked credential or
// with a virtual key that does not permit them, and calls in a session that the actor
// may not use.
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

// gateTool denies calls of tools whose document is not the approved one.
func gateTool(in *Inputs) string {
	switch in.Facts.ToolPinned {
	case "":
		return ""
	case "none":
		return contract.ReasonToolNotApproved
	}
	return contract.ReasonToolDrift
}

// gateDue denies calls that their delegation does not permit, and calls with args whose
// signature does not verify. While a break-glass review is overdue for the actor or the
// principal it acts for, gateDue denies every call but the review.
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

// gateCeilings denies calls that the P0 ceilings forbid, and calls that the caller would
// execute itself without being permitted to.
func gateCeilings(in *Inputs) string {
	switch {
	case matchAny(in.P0.ForbiddenKinds, in.Facts.Kind):
		return contract.ReasonPolicyViolation
	case in.Facts.ReportWithin != 0 && !callerMay(in):
		return contract.ReasonCallerExecutionRefused
	case in.P0.forbidsEgress(in.Tool):
		return contract.ReasonDataEgressBlocked
	case in.Tool.Reserve != nil && in.Tool.Reserve.Cents > in.P0.MaxCents:
		return contract.ReasonBudgetExceeded
	}
	return ""
}

func ascii(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

// nameBytes is the set of bytes that names of kinds and tools may contain.
var nameBytes = bytesOf("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

func bytesOf(s string) (set [256]bool) {
	for i := range len(s) {
		set[s[i]] = true
	}
	return set
}

// name reports whether s can be the name of a kind or a tool: 1 to 128 bytes of
// nameBytes.
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

// window returns the time span in which the call may start, and the time until which its
// caller waits. The span begins at the proposal or, for an escalated call, when the
// escalation ended; the caller then waits as long after that as it would have waited
// after the proposal. The span has the length StartWindowMS of the ceilings, at most
// MaxStartWindow, but ends no later than the caller waits. ok is false if a time is
// malformed.
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

// late reports whether the call's start window has ended at the time of the decision, or
// cannot be determined.
func late(in *Inputs) bool {
	now, err := contract.ParseTime(in.Facts.Now)
	_, until, _, ok := window(in)
	return err != nil || !ok || now.After(until)
}
