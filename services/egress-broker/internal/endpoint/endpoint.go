// Package endpoint derives, from the URLs of an endpoint that the operator has configured,
// what services may send to it. It is pure.
package endpoint

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// Endpoint holds the rules for what services may send to one endpoint.
type Endpoint struct {
	Rules []netrule.Rule
	// Literal lists the addresses that the URLs contain in place of a name, except link-local ones,
	// and the loopback addresses if a URL contains localhost.
	// They may be dialled although they are of special use, since the operator has written them and
	// no name server is involved.
	Literal []netip.Prefix
}

// Parse returns the endpoint of URLs with the scheme http, https or tcp. The TLS of https is
// between the sender and the server; tcp stands for any protocol and requires a port. Paths
// and queries are ignored: they may be secrets. Errors contain no part of a URL.
func Parse(urls []string) (e Endpoint, err error) {
	for i, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil {
			return e, fmt.Errorf("URL %d is malformed", i+1)
		}
		m, ok := modes[u.Scheme]
		if !ok {
			return e, fmt.Errorf("URL %d: want https://, http:// or tcp://", i+1)
		}
		host, literal, port, err := netrule.ParseAuthority(u.Host, m.port)
		if err != nil {
			return e, fmt.Errorf("URL %d: its host is not a name or an address in a canonical spelling, or has no port", i+1)
		}
		if literal.IsValid() && !literal.IsLinkLocalUnicast() {
			e.Literal = append(e.Literal, netip.PrefixFrom(literal, literal.BitLen()))
		}
		if host == "localhost" {
			e.Literal = append(e.Literal, loopback...)
		}
		rule := netrule.Rule{Host: host, Port: int64(port), Mode: m.mode}
		if !slices.ContainsFunc(e.Rules, func(r netrule.Rule) bool { return r.Host == rule.Host && r.Port == rule.Port && r.Mode == rule.Mode }) {
			e.Rules = append(e.Rules, rule)
		}
	}
	return e, nil
}

// loopback lists the addresses of localhost (RFC 6761, section 6.3).
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("::1/128")}

// modes has the mode and the default port of each scheme.
var modes = map[string]struct {
	mode string
	port int
}{
	"https": {netrule.Passthrough, 443},
	"http":  {netrule.HTTP, 80},
	"tcp":   {netrule.TCP, 0},
}
