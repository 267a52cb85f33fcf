// Package fault is the one table of what a failed attempt or call means: whether
// it may be tried again, where, what it says about the provider's key, what the
// caller gets, and whether it may be billed. Every other package names a row by
// its code and reads the column it needs; none decides by a code itself. A new
// kind of failure is a new row, and the test of the table names what it lacks.
//
// The package is pure: it holds values and knows neither clock nor network.
package fault

import (
	"net/http"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

// Codes of failures. They are recorded on the ledger as error_code of an attempt
// and of a call's outcome, and returned to callers: a released code never changes
// its name.
const (
	RateLimited         = "rate_limited"
	Timeout             = "upstream_timeout"
	Unreachable         = "upstream_unreachable"
	Cut                 = "upstream_cut"
	Malformed           = "upstream_malformed"
	Upstream            = "upstream_error"
	Refused             = "upstream_refused"
	ModelNotFound       = "model_not_found"
	CredentialInvalid   = "credential_invalid"
	CredentialMissing   = "credential_missing"
	ProviderUnavailable = "provider_unavailable"
	Unsupported         = "unsupported"
	OverBudget          = "budget_exceeded"
	ContentBlocked      = "content_blocked"
	InvalidInput        = "invalid_input"
	NotFound            = "not_found"
	ClientStalled       = "client_stalled"
	Hedged              = "hedged"
	Cancelled           = "cancelled"
	Internal            = "internal"
)

// Retry says whether the same candidate is tried again. The configuration bounds
// how often, by retry.attempts, and how long is waited, by retry.max_ms.
type Retry int

const (
	Never        Retry = iota
	Always             // after the backoff, or after as long as the provider named
	IfUnverified       // only after status 401: the key may have been replaced in the vault meanwhile
)

// Next says whether the plan goes on to its next candidate. It never does once a
// caller has seen content, or the call has ended.
type Next int

const (
	Continue   Next = iota // if the candidate's triggers hold the row's trigger
	Stop                   // the failure is the call's
	StopBehind             // the failure before it is the call's; without one, Continue
)

// Key says what a failure means for the key that the attempt used, and so for the
// provider: each key has a breaker of its own.
type Key int

const (
	Unknown  Key = iota // it says nothing about the key or the provider
	Healthy             // the provider answered as it should: the breaker closes
	Failing             // counts towards opening the key's breaker
	Resting             // the key is not used for this model until the provider's time is over, at least a second
	Rejected            // as Failing; and the value is fetched from the vault again
)

// Billing says whether the attempt may be billed, and so counts against what
// policy reserved, where the provider did not report its usage.
type Billing int

const (
	Free    Billing = iota // the provider never got the request, or refused it
	IfTaken                // only if the provider took the request up: it answered with success, or it is not known whether it did
	Billed                 // always
)

// Edge is the HTTP status that the caller gets. Own lists the provider's statuses
// that are passed on as they are; As is what every other one becomes.
type Edge struct {
	As   int
	Own  func(status int) bool // nil: none
	Into int                   // what the statuses of Own become; 0: themselves
}

// Row is what one code means, for all that is done after a failure. Rows are
// values: nothing changes them while the program runs.
type Row struct {
	Code    string
	Retry   Retry
	Next    Next
	Trigger string // of fallback rules: route.RateLimit, route.Timeout or route.Error
	Key     Key
	Edge    Edge
	Billing Billing
	Status  string // of the attempt on the ledger: contract.Failed or contract.Cancelled
	Hidden  bool   // the caller does not get the provider's words: they are about our key
	Means   string
}

func clientError(status int) bool { return status >= 400 && status < 500 }

// overloaded: 529 is Anthropic's status for a service that is overloaded.
func overloaded(status int) bool { return status == http.StatusServiceUnavailable || status == 529 }

// Table holds a row for each code. The columns are: the code; whether the same
// candidate is tried again; whether the next one is; the trigger; what becomes of
// the key; the status at the edge; whether it may be billed; how the attempt is
// recorded; whether the provider's words are hidden.
var Table = []Row{
	{RateLimited, Always, Continue, route.RateLimit, Resting, Edge{As: 429}, IfTaken, contract.Failed, false, "the provider answered 429, or every key rests from that"},
	{Timeout, Always, Continue, route.Timeout, Failing, Edge{As: 504}, Billed, contract.Failed, false, "the provider was silent for too long, or answered 408 or 504"},
	{Unreachable, Always, Continue, route.Error, Failing, Edge{As: 502}, IfTaken, contract.Failed, false, "no connection, or it broke before an answer"},
	{Cut, Always, Continue, route.Error, Failing, Edge{As: 502}, Billed, contract.Failed, false, "the answer broke off before its end"},
	{Malformed, Always, Continue, route.Error, Failing, Edge{As: 502}, Billed, contract.Failed, false, "the answer cannot be read, or is larger than the limits"},
	{Upstream, Always, Continue, route.Error, Failing, Edge{As: 502, Own: overloaded, Into: 503}, IfTaken, contract.Failed, false, "the provider answered with a status from 500 or one that has no meaning here"},
	{Refused, Never, Continue, route.Error, Healthy, Edge{As: 502, Own: clientError}, IfTaken, contract.Failed, false, "the provider refused the request itself"},
	{ModelNotFound, Never, Continue, route.Error, Healthy, Edge{As: 404}, IfTaken, contract.Failed, false, "no provider of that name, or the provider has no such model"},
	{CredentialInvalid, IfUnverified, Continue, route.Error, Rejected, Edge{As: 502}, IfTaken, contract.Failed, true, "the provider refused the key"},
	{CredentialMissing, Never, Continue, route.Error, Unknown, Edge{As: 502}, Free, contract.Failed, false, "the vault did not release the key"},
	{ProviderUnavailable, Never, Continue, route.Error, Unknown, Edge{As: 503}, Free, contract.Failed, false, "every key's breaker is open, or too many requests wait"},
	{Unsupported, Never, Continue, route.Error, Healthy, Edge{As: 502, Own: clientError}, IfTaken, contract.Failed, false, "the provider has no API for this kind of call, or its stream cannot be guarded"},
	{OverBudget, Never, StopBehind, route.Error, Unknown, Edge{As: 429}, Free, contract.Failed, false, "the attempt could use more than policy reserved for the call"},
	{ContentBlocked, Never, Stop, route.Error, Healthy, Edge{As: 400}, Billed, contract.Failed, false, "a guard found content of a class that ends the call"},
	{InvalidInput, Never, Continue, route.Error, Unknown, Edge{As: 400}, Free, contract.Failed, false, "the request cannot be read, or not be written in the provider's API"},
	{NotFound, Never, Continue, route.Error, Unknown, Edge{As: 404}, Free, contract.Failed, false, "the request goes on from a response that is not stored for this caller"},
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

// Of is the row of a code. A code without one has the row of Internal, whose
// code the result then holds.
func Of(code string) *Row {
	if r := byCode[code]; r != nil {
		return r
	}
	return byCode[Internal]
}

// Again reports whether the same candidate may be tried once more after a
// failure with the provider's HTTP status; 0 if none came.
func (r *Row) Again(status int) bool {
	return r.Retry == Always || r.Retry == IfUnverified && status == http.StatusUnauthorized
}

// Free reports whether the attempt costs nothing; taken says that the provider
// may have taken the request up.
func (r *Row) Free(taken bool) bool {
	return r.Billing == Free || r.Billing == IfTaken && !taken
}

// EdgeStatus is the HTTP status for the caller of a call that failed so, given the
// provider's; 0 if none came.
func (r *Row) EdgeStatus(provider int) int {
	if r.Edge.Own == nil || !r.Edge.Own(provider) {
		return r.Edge.As
	}
	if r.Edge.Into != 0 {
		return r.Edge.Into
	}
	return provider
}

// byStatus lists the codes of the HTTP statuses that have one of their own.
var byStatus = []struct {
	code     string
	statuses []int
}{
	{RateLimited, []int{http.StatusTooManyRequests}},
	{CredentialInvalid, []int{http.StatusUnauthorized, http.StatusForbidden}},
	{ModelNotFound, []int{http.StatusNotFound}},
	{Timeout, []int{http.StatusRequestTimeout, http.StatusGatewayTimeout}},
}

// ByStatus is the code of a provider's HTTP status, or of the status that an
// error in a stream means: Refused for the other client errors, Upstream for
// everything else, 0 included.
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
