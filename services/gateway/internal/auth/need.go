package auth

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Need is what a request must show before its body is read.
type Need struct {
	Caller bool     // a valid credential
	Calls  bool     // a scope that can allow a call at all
	Scopes []string // one of these; empty = any
	Opaque bool     // the body is not one JSON document
}

// What most routes need.
var (
	Open    = Need{}
	Known   = Need{Caller: true}
	Calling = Need{Caller: true, Calls: true} // policy decides which calls
)

// Holds is the need of one of the scopes.
func Holds(scopes ...string) Need { return Need{Caller: true, Scopes: scopes} }

// WithOpaqueBody is n for a route whose body is not one JSON document.
func (n Need) WithOpaqueBody() Need { n.Opaque = true; return n }

// reading are the scopes that allow no call.
var reading = []string{token.Audit, token.Cosign, token.Health}

// missing is the scope that a caller lacks, in words; empty = none.
func (n Need) missing(who *Caller) string {
	if n.Calls && !slices.ContainsFunc(who.Scopes, func(s string) bool { return !slices.Contains(reading, s) }) {
		return "that allows calls"
	}
	if len(n.Scopes) > 0 && !slices.ContainsFunc(n.Scopes, func(s string) bool { return slices.Contains(who.Scopes, s) }) {
		return n.Scopes[0]
	}
	return ""
}
