package pack

import (
	"fmt"
	"net/http"
	"strings"
)

// Refusal returns the error for a response with which the proxy of the call refused a
// request, or nil for any other response. The proxy names the reason in the field
// Proxy-Status (RFC 9209).
func Refusal(resp *http.Response) *Error {
	status := resp.Header.Get("Proxy-Status")
	if !strings.HasPrefix(status, "egress-broker;") {
		return nil
	}
	_, details, _ := strings.Cut(status, "details=")
	return Refused(resp.Request.URL.Host, strings.Trim(details, `"`))
}

// Refused returns the error for a host to which the proxy of the call refuses a request.
func Refused(host, why string) *Error {
	e := &Error{Code: InvalidInput, Message: fmt.Sprintf("egress to %s was refused: %s", host, why), Hint: "the egress rules of the pack and the ceilings must permit the request"}
	if strings.HasPrefix(why, "credential_") {
		e.Code, e.Hint = CredentialInvalid, "store the secret that the pack's manifest names with `binnacle secret put`"
	}
	return e
}
