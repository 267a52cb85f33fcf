// Package rule decides which requests a call may send through the egress broker. It is
// pure: it resolves no name and opens no connection.
package rule

import (
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/address"
)

// Mode says how the broker carries the flows that a rule allows.
type Mode string

// The modes of a rule.
const (
	HTTP        Mode = "http"        // plain HTTP
	Terminate   Mode = "terminate"   // HTTPS; the broker terminates TLS under the CA of the call
	Passthrough Mode = "passthrough" // TLS that the broker forwards as it is, after a check of the server name
	TCP         Mode = "tcp"         // any protocol over TCP
)

// Rule allows requests to a host. A request that no rule allows is denied.
type Rule struct {
	// Host is a name or an address in the form that address.ParseHost returns; "*." and
	// a name, which matches names with one or more labels before that name; or, in a
	// ceiling, "*", which matches every host.
	Host string `json:"host"`
	// Ports is by default 80 for HTTP, and 443 for Terminate and Passthrough. TCP has no
	// default. In a ceiling without a mode, the default is every port.
	Ports   []int    `json:"ports,omitempty"`
	Methods []string `json:"methods,omitempty"` // default: every method
	// Paths holds patterns; a path must match one of them. In a pattern, "*" matches any
	// number of characters other than "/", and "**" any number of characters. A pattern
	// of several parts separated by blanks matches what every part matches. Default:
	// every path.
	Paths []string `json:"paths,omitempty"`
	// Mode is required, except in a ceiling, where the empty mode matches every mode.
	Mode       Mode        `json:"mode,omitempty"`
	Credential *Credential `json:"credential,omitempty"` // header that the broker sets, or nil
}

// Credential names a secret that the broker adds to the requests of a rule.
type Credential struct {
	Secret string `json:"secret"`           // name of the secret
	Header string `json:"header"`           // name of the header field
	Format string `json:"format,omitempty"` // value of the field, with "{}" for the secret; default "{}"
}

// Value returns the value of the header field for a secret.
func (c *Credential) Value(secret string) string {
	if c.Format == "" {
		return secret
	}
	return strings.Replace(c.Format, "{}", secret, 1)
}

// Limits of one set of rules, and of the members of one rule.
const (
	MaxRules   = 256
	MaxMembers = 64  // ports, methods or patterns of a rule
	maxPattern = 512 // bytes of a pattern
)

// Set is a list of rules in compiled form. It is immutable.
type Set struct{ rules []compiled }

type compiled struct {
	Rule
	paths []pattern
}

// Compile checks the rules of a call, in the order in which they are tried, and returns
// the set of them. Its errors name the rule by its index.
func Compile(rules []Rule) (*Set, error) {
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("%d egress rules; at most %d are possible", len(rules), MaxRules)
	}
	s := &Set{}
	for i, r := range rules {
		err := r.check(false)
		c := compiled{Rule: r}
		for _, p := range r.Paths {
			if err == nil {
				var compiledPattern pattern
				compiledPattern, err = compilePattern(p)
				c.paths = append(c.paths, compiledPattern)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("egress rule %d: %w", i, err)
		}
		s.rules = append(s.rules, c)
	}
	return s, nil
}

// CheckCeiling returns an error unless the rules can narrow others (see Intersect).
func CheckCeiling(rules []Rule) error {
	for i, r := range rules {
		if err := r.check(true); err != nil {
			return fmt.Errorf("egress ceiling %d: %w", i, err)
		}
		for _, p := range r.Paths {
			if _, err := compilePattern(p); err != nil {
				return fmt.Errorf("egress ceiling %d: %w", i, err)
			}
		}
	}
	return nil
}

// check returns an error if a member of the rule other than Paths is invalid.
func (r *Rule) check(ceiling bool) error {
	if !ceiling || r.Host != "*" {
		name, _, err := address.ParseHost(strings.TrimPrefix(r.Host, "*."))
		if err != nil {
			return err
		}
		if name != strings.TrimPrefix(r.Host, "*.") {
			return fmt.Errorf("host %q is not in canonical form; write %q", r.Host, name)
		}
	}
	if isAddress(strings.TrimPrefix(r.Host, "*.")) && strings.HasPrefix(r.Host, "*.") {
		return fmt.Errorf("host %q: an address has no subdomains", r.Host)
	}
	if len(r.Ports) > MaxMembers || len(r.Methods) > MaxMembers || len(r.Paths) > MaxMembers {
		return fmt.Errorf("more than %d ports, methods or paths", MaxMembers)
	}
	for _, p := range r.Ports {
		if p < 1 || p > 65535 {
			return fmt.Errorf("port %d is not between 1 and 65535", p)
		}
	}
	for _, m := range r.Methods {
		if !token(m) || m != strings.ToUpper(m) || m == "CONNECT" {
			return fmt.Errorf("method %q is not possible", m)
		}
	}
	switch {
	case r.Mode == "" && ceiling, r.Mode == HTTP, r.Mode == Terminate:
	case r.Mode != Passthrough && r.Mode != TCP:
		return fmt.Errorf("mode %q is unknown", r.Mode)
	case len(r.Methods) > 0 || len(r.Paths) > 0 || r.Credential != nil:
		return fmt.Errorf("mode %s has neither methods nor paths nor a credential", r.Mode)
	case r.Mode == TCP && len(r.Ports) == 0:
		return errors.New("mode tcp needs ports")
	}
	if r.Credential != nil {
		if ceiling {
			return errors.New("a ceiling has no credential")
		}
		return r.Credential.check()
	}
	return nil
}

// reserved lists the header fields that the broker or the connection sets.
var reserved = []string{"Connection", "Content-Encoding", "Content-Length", "Expect", "Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

func (c *Credential) check() error {
	h := textproto.CanonicalMIMEHeaderKey(c.Header)
	switch {
	case c.Secret == "":
		return errors.New("a credential needs the name of a secret")
	case !token(c.Header) || slices.Contains(reserved, h) || strings.HasPrefix(h, "Proxy-") || strings.HasPrefix(h, "Sec-"):
		return fmt.Errorf("header %q cannot carry a credential", c.Header)
	case c.Format != "" && strings.Count(c.Format, "{}") != 1:
		return fmt.Errorf("format %q needs one {}", c.Format)
	case strings.ContainsFunc(c.Format, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("format %q has a character that a header cannot have", c.Format)
	}
	return nil
}

// token reports whether s is a token of RFC 9110, section 5.6.2.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func isAddress(host string) bool {
	_, a, err := address.ParseHost(host)
	return err == nil && a.IsValid()
}

// Tunnel returns the first rule that names the host and the port. It decides on a CONNECT
// request, which has no method or path of its own. If there is none, Tunnel returns the
// reason.
func (s *Set) Tunnel(host string, port int) (Rule, Reason) {
	why := HostDenied
	for i := range s.rules {
		r := &s.rules[i]
		if !matchHost(r.Host, host) {
			continue
		}
		if r.hasPort(port) {
			return r.Rule, ""
		}
		why = PortDenied
	}
	return Rule{}, why
}

// Request returns the first rule of a mode that allows a request. path is the escaped path of
// the request. If there is none, Request returns the reason of the rule that passed the most
// tests (see matches).
func (s *Set) Request(mode Mode, host string, port int, method, path string) (Rule, Reason) {
	canonical, ambiguous := canonicalPath(path)
	closest := 0
	for i := range s.rules {
		n := s.rules[i].matches(mode, host, port, method, canonical, ambiguous)
		if n == len(reasons) {
			return s.rules[i].Rule, ""
		}
		closest = max(closest, n)
	}
	if reasons[closest] == PathDenied && ambiguous {
		return Rule{}, PathAmbiguous
	}
	return Rule{}, reasons[closest]
}

// reasons lists the tests of a request in the order in which matches makes them.
var reasons = []Reason{HostDenied, PortDenied, ModeDenied, MethodDenied, PathDenied}

// matches returns the number of the tests in reasons that the request passes before the
// first one that it fails.
func (r *compiled) matches(mode Mode, host string, port int, method, path string, ambiguous bool) int {
	switch {
	case !matchHost(r.Host, host):
		return 0
	case !r.hasPort(port):
		return 1
	case r.Mode != mode:
		return 2
	case method == "CONNECT" || len(r.Methods) > 0 && !slices.Contains(r.Methods, method):
		return 3
	case len(r.paths) == 0:
		return len(reasons)
	case ambiguous || !slices.ContainsFunc(r.paths, func(p pattern) bool { return p.match(path) }):
		return 4
	}
	return len(reasons)
}

func (r *Rule) hasPort(port int) bool {
	ports := r.ports()
	return ports == nil || slices.Contains(ports, port)
}

// ports returns the ports of the rule, or nil for every port.
func (r *Rule) ports() []int {
	switch {
	case len(r.Ports) > 0:
		return r.Ports
	case r.Mode == HTTP:
		return []int{80}
	case r.Mode == Terminate, r.Mode == Passthrough:
		return []int{443}
	case r.Mode == TCP:
		return []int{}
	}
	return nil
}

// matchHost reports whether the host of a rule matches a host in canonical form.
func matchHost(pattern, host string) bool {
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		return strings.HasSuffix(host, "."+suffix) && !isAddress(host)
	}
	return pattern == host || pattern == "*"
}
