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
	Recorded bool     // suspended principals are admitted; see WithRecord
}

// Needs that name no particular scope.
var (
	Open    = Need{}
	Known   = Need{Caller: true}
	Calling = Need{Caller: true, Calls: true} // policy decides which calls the caller may make
)

// Holds returns a Need for callers with at least one of the scopes.
func Holds(scopes ...string) Need { return Need{Caller: true, Scopes: scopes} }

// WithOpaqueBody returns n for a route whose body need not be a JSON document.
func (n Need) WithOpaqueBody() Need { n.Opaque = true; return n }

// WithRecord returns n for a route whose handler proposes a call, or records what a call
// has done. Suspended principals are admitted to it, so that the ledger holds the attempt
// and policy's denial. A handler that responds from a call that was proposed earlier must
// call Gate.Suspended.
func (n Need) WithRecord() Need { n.Recorded = true; return n }

// reading lists the scopes that allow no calls.
var reading = []string{token.Audit, token.Cosign, token.Health}

// missing returns the scope that a caller lacks, as the end of an error message: the
// name of a scope, or "that allows calls". It returns "" if the caller has all that n
// requires.
func (n Need) missing(who *Caller) string {
	if n.Calls && !slices.ContainsFunc(who.Scopes, func(s string) bool { return !slices.Contains(reading, s) }) {
		return "that allows calls"
	}
	if len(n.Scopes) > 0 && !slices.ContainsFunc(n.Scopes, func(s string) bool { return slices.Contains(who.Scopes, s) }) {
		return n.Scopes[0]
	}
	return ""
}
