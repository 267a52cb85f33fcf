// Package fault contains the table of the consequences of a failed attempt or call:
// whether the same candidate or the next one is tried, how the state of the provider's
// key changes, which status the caller receives, and whether the attempt may be billed.
// The other packages of the router select a row by its code and read the columns that
// they need; they make no decision by the code itself. A new kind of failure is a new
// row.
//
// The package is pure: it holds values and uses neither clock nor network.
package fault

import (
	"net/http"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

// Codes of failures. They may be recorded on the ledger as error_code of an attempt or
// of a call's outcome, and returned to callers: a released code is never renamed.
const (
	RateLimited         = contract.CodeRateLimited
	Timeout             = contract.CodeUpstreamTimeout
	Unreachable         = contract.CodeUpstreamUnreachable
	Cut                 = contract.CodeUpstreamCut
	Malformed           = contract.CodeUpstreamMalformed
	Upstream            = contract.CodeUpstreamError
	Refused             = contract.CodeUpstreamRefused
	ModelNotFound       = contract.CodeModelNotFound
	CredentialInvalid   = contract.CodeCredentialInvalid
	CredentialMissing   = contract.CodeCredentialMissing
	ProviderUnavailable = contract.CodeProviderUnavailable
	Unsupported         = contract.CodeUnsupported
	OverBudget          = contract.CodeBudgetExceeded
	ContentBlocked      = contract.CodeContentBlocked
	InvalidInput        = contract.CodeInvalidInput
	NotFound            = contract.CodeNotFound
	ClientStalled       = contract.CodeClientStalled
	Hedged              = contract.CodeHedged
	Cancelled           = contract.CodeCancelled
	Internal            = contract.CodeInternal
)

// Retry determines whether the same candidate is tried again. The configuration limits
// the number of attempts (retry.attempts) and the wait between them (retry.max_ms). If
// the provider requires a longer wait, the candidate is not tried again.
type Retry int

const (
	Never        Retry = iota
	Always             // the candidate is tried again after the backoff and the wait that the provider requires
	IfUnverified       // as Always, but only after status 401: the key may have been replaced in the vault since it was fetched
)

// Next determines whether the plan continues with its next candidate. No plan continues
// after a response to the caller has begun or the call has ended.
type Next int

const (
	Continue   Next = iota // the next candidate is tried if it has no triggers, or if one of them is the row's; otherwise the call ends with this failure
	Stop                   // the call ends with this failure
	StopBehind             // the call ends with the preceding failure; if there is none, as Continue
)

// Key is the effect of a failure on the state of the provider key that the attempt used.
// Each key has its own breaker.
type Key int

const (
	Unknown  Key = iota // no effect: neither a success nor a failure
	Healthy             // the provider works: the breaker closes
	Failing             // counts towards opening the key's breaker
	Resting             // the key is not used for this model for as long as the provider requires, at least a second
	Rejected            // as Failing; and the cached value of the key is discarded
)

// Billing determines whether a failed attempt may be billed. If so, and if the provider
// reported no usage, the tokens and the price that are reserved for the attempt stay
// reserved.
type Billing int

const (
	Free    Billing = iota // the provider did not receive the request
	IfTaken                // only if the provider may have accepted the request
	Billed                 // always
)

// Edge is the HTTP status that the caller receives. If the provider is overloaded, it is
// Overloaded; a status of the provider for which Own returns true is forwarded; any other
// status is replaced by As.
type Edge struct {
	As         int
	Own        func(status int) bool // reports whether a status is forwarded; nil: no status
	Overloaded int                   // replaces the status of a provider that is overloaded; 0: it is not distinguished
}

// Row holds all consequences of one code. Rows do not change while the program runs.
type Row struct {
	Code    string
	Retry   Retry
	Next    Next
	Trigger string // failure class in fallback rules: route.RateLimit, route.Timeout or route.Error
	Key     Key
	Edge    Edge
	Billing Billing
	Status  string // status of the attempt on the ledger: contract.Failed or contract.Cancelled
	Hidden  bool   // the caller receives nothing of the provider's error, since it is about the router's key
	Means   string // explanation for the documentation: when the code is used
}

func clientError(status int) bool { return status >= 400 && status < 500 }

// Table holds a row for each code. The columns are the fields of Row, in order.
var Table = []Row{
	{RateLimited, Always, Continue, route.RateLimit, Resting, Edge{As: 429}, IfTaken, contract.Failed, false, "the provider answered 429, or every key is paused after that"},
	{Timeout, Always, Continue, route.Timeout, Failing, Edge{As: 504}, Billed, contract.Failed, false, "the provider sent nothing for too long, or answered 408 or 504"},
	{Unreachable, Always, Continue, route.Error, Failing, Edge{As: 502}, IfTaken, contract.Failed, false, "no connection, or it broke before an answer"},
	{Cut, Always, Continue, route.Error, Failing, Edge{As: 502}, Billed, contract.Failed, false, "the answer broke off before its end"},
	{Malformed, Always, Continue, route.Error, Failing, Edge{As: 502}, Billed, contract.Failed, false, "the answer cannot be read, or is larger than the limits"},
	{Upstream, Always, Continue, route.Error, Failing, Edge{As: 502, Overloaded: 503}, IfTaken, contract.Failed, false, "the provider answered with a status from 500 or one that has no meaning here"},
	{Refused, Never, Continue, route.Error, Healthy, Edge{As: 502, Own: clientError}, IfTaken, contract.Failed, false, "the provider refused the request itself"},
	{ModelNotFound, Never, Continue, route.Error, Healthy, Edge{As: 404}, IfTaken, contract.Failed, false, "no provider of that name, or the provider does not have this model"},
	{CredentialInvalid, IfUnverified, Continue, route.Error, Rejected, Edge{As: 502}, IfTaken, contract.Failed, true, "the provider refused the key"},
	{CredentialMissing, Never, Continue, route.Error, Unknown, Edge{As: 502}, Free, contract.Failed, false, "the vault did not release the key"},
	{ProviderUnavailable, Never, Continue, route.Error, Unknown, Edge{As: 503}, Free, contract.Failed, false, "every key's breaker is open, or too many requests wait"},
	{Unsupported, Never, Continue, route.Error, Healthy, Edge{As: 502, Own: clientError}, IfTaken, contract.Failed, false, "the provider has no API for this kind of call, or its stream cannot be guarded"},
	{OverBudget, Never, StopBehind, route.Error, Unknown, Edge{As: 429}, Free, contract.Failed, false, "the attempt could use more than policy reserved for the call"},
	{ContentBlocked, Never, Stop, route.Error, Healthy, Edge{As: 400}, Billed, contract.Failed, false, "a guard found content of a class that ends the call"},
	{InvalidInput, Never, Continue, route.Error, Unknown, Edge{As: 400}, Free, contract.Failed, false, "the request cannot be read, or not be written in the provider's API"},
	{NotFound, Never, Continue, route.Error, Unknown, Edge{As: 404}, Free, contract.Failed, false, "the request continues a response that is not stored for this caller"},
	{ClientStalled, Never, Stop, route.Error, Unknown, Edge{As: 502}, Billed, contract.Failed, false, "the caller stopped reading"},
	{Hedged, Never, Stop, route.Error, Unknown, Edge{As: 502}, Billed, contract.Cancelled, false, "another attempt of the call answered first"},
	{Cancelled, Never, Stop, route.Error, Unknown, Edge{As: 502}, Billed, contract.Cancelled, false, "the call ended: its caller left, or its time is over"},
	{Internal, Never, Continue, route.Error, Unknown, Edge{As: 502}, Billed, contract.Failed, false, "a defect here"},
}

var byCode = func() map[string]*Row {
	m := make(map[string]*Row, len(Table))
	for i := range Table {
		m[Table[i].Code] = &Table[i]
	}
	return m
}()

// Of returns the row of a code, or the row of Internal if the code has none.
func Of(code string) *Row {
	if r := byCode[code]; r != nil {
		return r
	}
	return byCode[Internal]
}

// Again reports whether the same candidate may be tried again after a failure. status is
// the provider's HTTP status, or 0 without a response.
func (r *Row) Again(status int) bool {
	return r.Retry == Always || r.Retry == IfUnverified && status == http.StatusUnauthorized
}

// Free reports whether the attempt costs nothing. taken is whether the provider may have
// accepted the request.
func (r *Row) Free(taken bool) bool {
	return r.Billing == Free || r.Billing == IfTaken && !taken
}

// EdgeStatus returns the HTTP status for the caller of a failed call. provider is the
// provider's status, or 0 without a response; overloaded is whether that status means
// that the provider is overloaded.
func (r *Row) EdgeStatus(provider int, overloaded bool) int {
	switch {
	case overloaded && r.Edge.Overloaded != 0:
		return r.Edge.Overloaded
	case r.Edge.Own != nil && r.Edge.Own(provider):
		return provider
	default:
		return r.Edge.As
	}
}

// byStatus maps HTTP statuses to codes. ByStatus returns Refused or Upstream for other
// statuses.
var byStatus = []struct {
	code     string
	statuses []int
}{
	{RateLimited, []int{http.StatusTooManyRequests}},
	{CredentialInvalid, []int{http.StatusUnauthorized, http.StatusForbidden}},
	{ModelNotFound, []int{http.StatusNotFound}},
	{Timeout, []int{http.StatusRequestTimeout, http.StatusGatewayTimeout}},
}

// ByStatus returns the code for a provider's HTTP status, or for the status of an error
// in a stream (ir.Fault). Client errors without a code of their own are Refused, and all
// other statuses, including 0, are Upstream.
func ByStatus(status int) string {
	for _, x := range byStatus {
		if slices.Contains(x.statuses, status) {
			return x.code
		}
	}
	if clientError(status) {
		return Refused
	}
	return Upstream
}
