package rule

import (
	"slices"
	"strings"
)

// Intersect returns rules that allow what both lists allow. For each request that a rule
// of the result allows, the first rule of rules that allows it has the same mode and
// credential. A rule of mode Passthrough or TCP is not allowed by a ceiling with methods
// or paths, which cannot be checked there. The result may have more than MaxRules rules,
// which Compile refuses.
func Intersect(rules, ceiling []Rule) []Rule {
	var out []Rule
	for _, r := range rules {
		for _, c := range ceiling {
			if n, ok := narrow(r, c); ok && !slices.ContainsFunc(out, func(o Rule) bool { return equal(o, n) }) {
				out = append(out, n)
			}
		}
	}
	return out
}

// narrow returns the rule that allows what r and c allow, or false if that is nothing.
func narrow(r, c Rule) (Rule, bool) {
	if c.Mode != "" && c.Mode != r.Mode {
		return Rule{}, false
	}
	if (len(c.Methods) > 0 || len(c.Paths) > 0) && (r.Mode == Passthrough || r.Mode == TCP) {
		return Rule{}, false
	}
	var ok bool
	if r.Host, ok = narrowHost(r.Host, c.Host); !ok {
		return Rule{}, false
	}
	if c.ports() != nil {
		r.Ports = slices.DeleteFunc(slices.Clone(r.ports()), func(p int) bool { return !slices.Contains(c.ports(), p) })
		if len(r.Ports) == 0 {
			return Rule{}, false
		}
	}
	switch {
	case len(r.Methods) == 0:
		r.Methods = c.Methods
	case len(c.Methods) > 0:
		r.Methods = slices.DeleteFunc(slices.Clone(r.Methods), func(m string) bool { return !slices.Contains(c.Methods, m) })
		if len(r.Methods) == 0 {
			return Rule{}, false
		}
	}
	switch {
	case len(r.Paths) == 0:
		r.Paths = c.Paths
	case len(c.Paths) > 0:
		var paths []string
		for _, p := range r.Paths {
			for _, q := range c.Paths {
				if b := both(p, q); !slices.Contains(paths, b) {
					paths = append(paths, b)
				}
			}
		}
		r.Paths = paths
	}
	return r, true
}

// narrowHost returns the host that matches what both hosts match.
func narrowHost(a, b string) (string, bool) {
	switch {
	case a == b || b == "*":
		return a, true
	case a == "*":
		return b, true
	}
	subA, wildA := strings.CutPrefix(a, "*.")
	subB, wildB := strings.CutPrefix(b, "*.")
	switch {
	case wildB && wildA && strings.HasSuffix(subA, "."+subB), wildB && !wildA && matchHost(b, a):
		return a, true
	case wildA && wildB && strings.HasSuffix(subB, "."+subA), wildA && !wildB && matchHost(a, b):
		return b, true
	}
	return "", false
}

func equal(a, b Rule) bool {
	return a.Host == b.Host && a.Mode == b.Mode && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.Methods, b.Methods) &&
		slices.Equal(a.Paths, b.Paths) && (a.Credential == b.Credential || a.Credential != nil && b.Credential != nil && *a.Credential == *b.Credential)
}
