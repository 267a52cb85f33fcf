// Package netrule decides which network requests a call may make. Lists of rules are part
// of tool documents, policies and intents; the egress-broker enforces those of the intent.
// The package is pure: it resolves no name and opens no connection.
package netrule

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Rule and Credential are the documents that the package reads.
type (
	Rule       = contract.EgressRule
	Credential = contract.EgressCredential
)

// The modes of a rule.
const (
	HTTP        = contract.EgressHTTP
	Terminate   = contract.EgressTerminate
	Passthrough = contract.EgressPassthrough
	TCP         = contract.EgressTCP
)

// Limits of one list of rules, and of the members of one rule.
const (
	MaxRules   = 256
	MaxMembers = 64  // methods or patterns of a rule
	maxPattern = 512 // bytes of a pattern
)

// Set is a list of valid rules. It is immutable.
type Set struct{ rules []Rule }

// Compile checks the rules of a call, in the order in which they are tried, and returns the set
// of them. The set shares memory with rules, which the caller must not change afterwards.
// Compile returns an error if there are more than MaxRules, or if a rule is invalid; the error
// then names the rule by its index.
func Compile(rules []Rule) (*Set, error) {
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("egress: %d rules; at most %d are possible", len(rules), MaxRules)
	}
	if err := checkAll(rules, false); err != nil {
		return nil, err
	}
	return &Set{rules}, nil
}

// CheckCeiling checks rules that are to narrow others (see Intersect). It returns an error if
// there are more than MaxRules, or if a rule is invalid; the error then names the rule by its
// index.
func CheckCeiling(rules []Rule) error {
	if len(rules) > MaxRules {
		return fmt.Errorf("egress: %d rules; at most %d are possible", len(rules), MaxRules)
	}
	return checkAll(rules, true)
}

func checkAll(rules []Rule, ceiling bool) error {
	for i := range rules {
		if err := check(&rules[i], ceiling); err != nil {
			return fmt.Errorf("egress[%d].%w", i, err)
		}
	}
	return nil
}

// check returns an error if a rule is invalid, for a call or, if ceiling is true, for the
// ceilings. The error begins with the name of the invalid member.
func check(r *Rule, ceiling bool) error {
	if err := checkHost(r.Host, ceiling); err != nil {
		return err
	}
	if err := checkMembers(r); err != nil {
		return err
	}
	if err := checkMode(r, ceiling); err != nil {
		return err
	}
	switch {
	case r.Credential == nil:
		return nil
	case ceiling:
		return errors.New("credential: rules that limit others have none")
	}
	if r.Credential.Certificate() && r.Mode != Terminate {
		return fmt.Errorf("credential.format: mode %s cannot present a certificate; use terminate", r.Mode)
	}
	return checkCredential(r.Credential)
}

func checkHost(host string, ceiling bool) error {
	if ceiling && host == "*" {
		return nil
	}
	suffix, wild := strings.CutPrefix(host, "*.")
	name, addr, err := ParseHost(suffix)
	switch {
	case err != nil:
		return fmt.Errorf("host: %w", err)
	case name != suffix:
		return fmt.Errorf("host: %q is not in canonical form; write %q", host, strings.TrimSuffix(host, suffix)+name)
	case wild && addr.IsValid():
		return fmt.Errorf("host: %q: an address has no subdomains", host)
	}
	return nil
}

func checkMembers(r *Rule) error {
	if r.Port < 0 || r.Port > 65535 {
		return fmt.Errorf("port: %d is not between 1 and 65535", r.Port)
	}
	if len(r.Methods) > MaxMembers {
		return fmt.Errorf("methods: more than %d; use several rules", MaxMembers)
	}
	if len(r.Paths) > MaxMembers {
		return fmt.Errorf("paths: more than %d; use several rules", MaxMembers)
	}
	for _, m := range r.Methods {
		if !method(m) {
			return fmt.Errorf("methods: %q is not possible; write a method in upper case", m)
		}
	}
	for _, p := range r.Paths {
		if err := checkPattern(p); err != nil {
			return fmt.Errorf("paths: %w", err)
		}
	}
	return nil
}

func method(m string) bool { return token(m) && m == strings.ToUpper(m) && m != "CONNECT" }

func checkMode(r *Rule, ceiling bool) error {
	switch r.Mode {
	case HTTP, Terminate:
		return nil
	case Passthrough, TCP:
		if len(r.Methods) > 0 || len(r.Paths) > 0 || r.Credential != nil {
			return fmt.Errorf("mode: %s has neither methods nor paths nor a credential, because the broker cannot read its requests; use terminate", r.Mode)
		}
		if r.Mode == TCP && r.Port == 0 {
			return errors.New("port: mode tcp has no default port")
		}
		return nil
	case "":
		if ceiling {
			return nil
		}
	}
	return fmt.Errorf("mode: %q is unknown; want http, terminate, passthrough or tcp", r.Mode)
}

// reserved lists the header fields that the broker or the connection sets, in lower case.
var reserved = []string{"connection", "content-encoding", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}

func checkCredential(c *Credential) error {
	if c.Secret == "" {
		return errors.New("credential.secret: name a secret")
	}
	if c.Certificate() {
		return nil
	}
	if err := checkHeader(c.Header); err != nil {
		return fmt.Errorf("credential.header: %w", err)
	}
	switch {
	case c.Format != "" && strings.Count(c.Format, "{}") != 1:
		return fmt.Errorf("credential.format: %q needs one {}", c.Format)
	case strings.ContainsFunc(c.Format, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("credential.format: %q has a character that a header cannot have", c.Format)
	}
	return nil
}

func checkHeader(name string) error {
	h := strings.ToLower(name)
	switch {
	case name == "":
		return fmt.Errorf("name the header field, or write format: %s and no header for a certificate", contract.FormatCertificate)
	case !token(name) || slices.Contains(reserved, h) || strings.HasPrefix(h, "proxy-") || strings.HasPrefix(h, "sec-"):
		return fmt.Errorf("%q cannot carry a credential", name)
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
	_, a, err := ParseHost(host)
	return err == nil && a.IsValid()
}

// Tunnel returns the first rule that matches the host and the port, and an empty Reason.
// It decides on a CONNECT request, which has no method or path of its own. If no rule
// matches, Tunnel returns the zero Rule and the reason.
func (s *Set) Tunnel(host string, port int) (Rule, Reason) {
	why := HostDenied
	for i := range s.rules {
		r := &s.rules[i]
		if !matchHost(r.Host, host) {
			continue
		}
		if hasPort(r, port) {
			return *r, ""
		}
		why = PortDenied
	}
	return Rule{}, why
}

// Request returns the first rule of a mode that allows a request, and an empty Reason.
// path is the escaped path of the request. If no rule allows it, Request returns the zero
// Rule and the reason why the rule that passed the most tests does not allow it.
func (s *Set) Request(mode, host string, port int, method, path string) (Rule, Reason) {
	canonical, ambiguous := canonicalPath(path)
	closest := 0
	for i := range s.rules {
		r := &s.rules[i]
		n := matches(r, mode, host, port, method)
		if n == pathTest && matchPaths(r.Paths, canonical, ambiguous) {
			return *r, ""
		}
		closest = max(closest, n)
	}
	if closest == pathTest && ambiguous {
		return Rule{}, PathAmbiguous
	}
	return Rule{}, reasons[closest]
}

// reasons lists, for each test of a request, the reason if the test fails. The
// tests are in the order in which Request makes them; pathTest is the index of
// the last one.
var reasons = []Reason{HostDenied, PortDenied, ModeDenied, MethodDenied, PathDenied}

const pathTest = 4

// matches returns the index in reasons of the first test that the request
// fails, or pathTest if it passes the tests before that of the path.
func matches(r *Rule, mode, host string, port int, method string) int {
	switch {
	case !matchHost(r.Host, host):
		return 0
	case !hasPort(r, port):
		return 1
	case r.Mode != mode:
		return 2
	case method == "CONNECT" || len(r.Methods) > 0 && !slices.Contains(r.Methods, method):
		return 3
	}
	return pathTest
}

func matchPaths(patterns []string, path string, ambiguous bool) bool {
	if len(patterns) == 0 {
		return true
	}
	return !ambiguous && slices.ContainsFunc(patterns, func(p string) bool { return matchPattern(p, path) })
}

func hasPort(r *Rule, port int) bool { return portOf(r) == 0 || portOf(r) == int64(port) }

// portOf returns the port of the rule, or 0 for every port.
func portOf(r *Rule) int64 {
	switch {
	case r.Port != 0:
		return r.Port
	case r.Mode == HTTP:
		return 80
	case r.Mode == Terminate || r.Mode == Passthrough:
		return 443
	}
	return 0
}

// matchHost reports whether the host of a rule matches a host in canonical form.
func matchHost(pattern, host string) bool {
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		return strings.HasSuffix(host, "."+suffix) && !isAddress(host)
	}
	return pattern == host || pattern == "*"
}

// OfHosts returns the rules for hosts that a tool or a ceiling lists without rules: plain
// HTTP and HTTPS to each, on the ports 80 and 443 or on the port that follows the host.
// It does not check the hosts; Compile does.
func OfHosts(hosts []string) []Rule {
	out := make([]Rule, 0, 2*len(hosts))
	for _, h := range hosts {
		name, port := splitPort(h)
		out = append(out, Rule{Host: name, Mode: Terminate, Port: port}, Rule{Host: name, Mode: HTTP, Port: port})
	}
	return out
}

// Names reports whether the rules for one of the hosts of a tool (see OfHosts)
// include one with the host and the port of r.
func Names(hosts []string, r *Rule) bool {
	return slices.ContainsFunc(OfHosts(hosts), func(h Rule) bool { return h.Host == r.Host && portOf(&h) == portOf(r) })
}

// OfIntent returns the rules of an intent or, if it has none, those for its
// hosts (see OfHosts).
func OfIntent(i *contract.ExecutionIntent) []Rule {
	if len(i.EgressRules) > 0 {
		return i.EgressRules
	}
	return OfHosts(i.Egress)
}

// CeilingOf returns the rules that allow every request to the hosts, each of which may be
// followed by a port.
func CeilingOf(hosts []string) []Rule {
	out := make([]Rule, 0, len(hosts))
	for _, h := range hosts {
		name, port := splitPort(h)
		out = append(out, Rule{Host: name, Port: port})
	}
	return out
}

// splitPort splits a host and the port that may follow it. If the end of h is not a port,
// it returns h and 0.
func splitPort(h string) (host string, port int64) {
	i := strings.LastIndexByte(h, ':')
	if i < 0 || strings.Contains(h[:i], ":") && !strings.HasSuffix(h[:i], "]") {
		return h, 0
	}
	n, err := parsePort(h[i+1:])
	if err != nil {
		return h, 0
	}
	return strings.TrimSuffix(strings.TrimPrefix(h[:i], "["), "]"), int64(n)
}
