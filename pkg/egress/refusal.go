package egress

import (
	"net/http"
	"regexp"
)

// detailsRE matches the reason in a field Proxy-Status (RFC 9209) of the egress-broker.
var detailsRE = regexp.MustCompile(`details="([a-z_]{1,64})"`)

// Denial returns the reason for which the egress-broker did not permit a request, if r is its response
// to that request, and "" otherwise. A server can imitate such a response.
func Denial(r *http.Response) string {
	m := detailsRE.FindStringSubmatch(r.Header.Get("Proxy-Status"))
	if m == nil || r.StatusCode != http.StatusForbidden {
		return ""
	}
	return m[1]
}
