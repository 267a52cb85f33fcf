package pack

import (
	"fmt"
	"net/http"
	"strings"
)

// Refusal returns the error for a response with which the proxy of the call refused a
// request, or could not send it, or nil for any other response. The proxy names the reason in
// the field Proxy-Status (RFC 9209).
func Refusal(resp *http.Response) *Error {
	why, ok := RefusalReason(resp.Header.Get("Proxy-Status"))
	if !ok {
		return nil
	}
	return Refused(resp.Request.URL.Host, why)
}

// RefusalReason returns the reason in status, the field Proxy-Status of a response, and reports
// whether the response is one for which Refusal returns an error.
func RefusalReason(status string) (string, bool) {
	if !strings.HasPrefix(status, "egress-broker;") {
		return "", false
	}
	_, details, _ := strings.Cut(status, "details=")
	return strings.Trim(details, `"`), true
}

// Denied reports whether a reason of the proxy means that the request is not permitted. For other
// reasons, the request may be permitted, but has failed.
func Denied(why string) bool {
	return why == "denied" || strings.HasSuffix(why, "_denied") || why == "path_ambiguous" || why == addressBlocked
}

// addressBlocked is the reason for a permitted name with an address that may not be dialled.
const addressBlocked = "address_blocked"

// permit is the hint for a request that is not permitted.
const permit = "the egress rules of the pack and the ceilings must permit the request"

// Refused returns the error for a request to a host that the proxy of the call refused, or could
// not send, for a reason of RefusalReason, or for "denied" if only that is known.
func Refused(host, why string) *Error {
	if Denied(why) {
		e := &Error{Code: InvalidInput, Message: fmt.Sprintf("egress to %s was refused: %s", host, why), Hint: permit}
		if why == addressBlocked {
			e.Hint = "the host has an address of special use; if that is intended, the operator must add its network to egress-broker.networks"
		}
		return e
	}
	e := Fail(HandlerFailed, "egress to %s failed: %s", host, why)
	switch {
	case strings.HasPrefix(why, "credential_"):
		e.Code, e.Hint = CredentialInvalid, "store the secret that the pack's manifest names with `binnacle secret put`"
	case why == "host_invalid", why == "request_invalid", why == "authority_mismatch":
		e.Code = InvalidInput
	case why == "bytes_exceeded", why == "flows_exceeded":
		e.Code = ResourceExhausted
	case why == "timed_out":
		e.Code = Timeout
	}
	return e
}

// NoTunnel returns the error for a host to which the proxy of the call did not open a tunnel, for a
// reason that is not known.
func NoTunnel(host string) *Error {
	e := Fail(InvalidInput, "egress to %s failed: the proxy did not open a tunnel", host)
	e.Hint = permit + "; a host with the mode passthrough or tcp must also be reachable"
	return e
}
