package auth

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Need describes the credential and the form of body that a route requires. The
// credential is checked before the body is read.
type Need struct {
	Caller   bool     // a valid credential is required
	Calls    bool     // the caller needs at least one scope that allows calls
	Scopes   []string // the caller needs at least one of these scopes; empty means no particular scope
	Opaque   bool     // the body need not be a JSON document
	Streamed bool     // the handler reads the body as it arrives
	Mesh     bool     // only callers that Gate.OfMesh accepts are admitted
	Recorded bool     // suspended callers are admitted; see WithRecord
	Login    bool     // no credential is required; the handler authenticates the caller by the body, a small form, or by the cookie
	Metered  bool     // the request counts as a call in the quotas of the caller's tenant
}

// Scopes that Need.Scope returns and that no token contains. The comment of each states
// which credentials have it.
const (
	ScopeAny   = "mesh:use"   // every valid credential has it
	ScopeCalls = "calls:make" // credentials with a scope that allows calls have it; policy decides which calls
	ScopeLog   = "log:read"   // credentials with audit:read or cell:audit have it
)

// Scope returns the one scope that a route requires, or "" for a route that requires no
// credential.
func (n Need) Scope() string {
	switch {
	case len(n.Scopes) == 1:
		return n.Scopes[0]
	case len(n.Scopes) > 1:
		return ScopeLog
	case n.Calls:
		return ScopeCalls
	case n.Caller:
		return ScopeAny
	}
	return ""
}

// Checking returns n for a route whose handler checks the scope itself, because some
// requests need no credential.
func (n Need) Checking(scope string) Need { n.Scopes = []string{scope}; return n }

// Needs that name no particular scope.
var (
	Open    = Need{}
	Known   = Need{Caller: true}
	Login   = Need{Login: true}
	Calling = Need{Caller: true, Calls: true} // policy decides which calls the caller may make
)

// Holds returns a Need for callers with at least one of the scopes.
func Holds(scopes ...string) Need { return Need{Caller: true, Scopes: scopes} }

// WithOpaqueBody returns n for a route whose body need not be a JSON document.
func (n Need) WithOpaqueBody() Need { n.Opaque = true; return n }

// WithStreamedBody returns n for a route whose handler reads the body as it arrives, bounds
// it, and then proposes a call. Such a handler calls body.Streamed once it has read the
// body to its end. The request counts in the quotas of the tenant. Suspended callers are
// not admitted, because their bodies would be stored.
func (n Need) WithStreamedBody() Need { n.Streamed, n.Metered = true, true; return n }

// OfMesh returns n for a route whose response can contain data of every tenant, or that
// changes the state of the whole mesh. Only callers that Gate.OfMesh accepts are
// admitted to it.
func (n Need) OfMesh() Need { n.Mesh = true; return n }

// WithRecord returns n for a route whose handler proposes a call. Suspended principals,
// and principals of suspended tenants, are admitted to it, so that the ledger holds the
// attempt and policy's denial, as long as Gate.Meter accepts the attempt. A handler that
// responds from a call that was proposed earlier must call Gate.Suspended. The request
// counts in the quotas of the tenant.
func (n Need) WithRecord() Need { n.Recorded, n.Metered = true, true; return n }

// WithQuota returns n for a route whose requests count in the quotas of the tenant.
func (n Need) WithQuota() Need { n.Metered = true; return n }

// WithReport returns n for a route whose handler records what a call has done. It admits
// the same callers as WithRecord. The request does not count in the quotas of the tenant,
// because the effect that it reports has happened.
func (n Need) WithReport() Need { n.Recorded = true; return n }

// reading lists the scopes that allow no calls.
var reading = []string{token.Audit, token.CellAudit, token.Cosign, token.Health}

// missing returns "" if the caller has the scopes that n requires, where the parameter
// scopes replaces n.Scopes. Otherwise it returns the end of an error message: the first of
// n.Scopes, or "that allows calls".
func (n Need) missing(who *Caller, scopes []string) string {
	if n.Calls && !slices.ContainsFunc(who.Scopes, func(s string) bool { return !slices.Contains(reading, s) }) {
		return "that allows calls"
	}
	if len(n.Scopes) > 0 && !slices.ContainsFunc(scopes, func(s string) bool { return slices.Contains(who.Scopes, s) }) {
		return n.Scopes[0]
	}
	return ""
}
