package logins

import (
	"errors"
	"net"
	"net/url"
	"regexp"
	"strings"
)

// uriText matches the characters of a URI (RFC 3986) without those that delimit it in HTML.
var uriText = regexp.MustCompile(`^[A-Za-z0-9._~:/?\[\]@!$&()*+,;=%-]{1,1000}$`)

// checkRedirect returns an error unless a client may have the redirect URI raw: an https URL, an
// http URL of a loopback address, or a URI with a private-use scheme (RFC 8252, section 7), which
// contains a dot. A URI with a fragment or with user information is an error.
func checkRedirect(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil, !uriText.MatchString(raw), u.User != nil:
		return errors.New("want a URI of at most 1000 characters, without a fragment and user information")
	case u.Scheme == "https" && u.Hostname() != "":
		return nil
	case u.Scheme == "http" && loopback(u.Hostname()):
		return nil
	case strings.Contains(u.Scheme, "."):
		return nil
	}
	return errors.New("want an https URL, an http URL of a loopback address, or a private-use scheme with a dot (RFC 8252)")
}

// sameRedirect reports whether a client that has the redirect URI registered may be sent to
// given. Both must be equal, except for the port of an http URL of a loopback address (RFC 8252,
// section 7.3), because the operating system selects the port when the client begins to listen.
func sameRedirect(registered, given string) bool {
	if registered == given {
		return true
	}
	r, err := url.Parse(registered)
	if err != nil || r.Scheme != "http" || !loopback(r.Hostname()) {
		return false
	}
	g, err := url.Parse(given)
	if err != nil || g.User != nil {
		return false
	}
	r.Host, g.Host = withoutPort(r), withoutPort(g)
	return *r == *g
}

// withoutPort returns the host of a URL as it contains it, without its port.
func withoutPort(u *url.URL) string {
	if _, _, err := net.SplitHostPort(u.Host); err != nil {
		return u.Host
	}
	return strings.TrimSuffix(u.Host, ":"+u.Port())
}

// target describes the place to which a redirect URI leads, for the person who consents.
func target(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return ""
	case u.Scheme == "https":
		return u.Host
	case u.Scheme == "http":
		return "a program on this computer"
	}
	return "a program on this computer, by " + u.Scheme
}

// withParameters returns a redirect URI with parameters added to its query (RFC 6749, section
// 4.1.2).
func withParameters(raw string, add url.Values) string {
	u, err := url.Parse(raw) // checkRedirect has parsed it
	if err != nil {
		return ""
	}
	if u.RawQuery != "" {
		u.RawQuery += "&"
	}
	u.RawQuery += add.Encode()
	return u.String()
}
