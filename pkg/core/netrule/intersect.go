package netrule

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
	out := []Rule{}
	for i := range rules {
		for j := range ceiling {
			if n, ok := narrow(rules[i], &ceiling[j]); ok && !slices.ContainsFunc(out, func(o Rule) bool { return Equal(&o, &n) }) {
				out = append(out, n)
			}
		}
	}
	return out
}

// Overlap reports whether a rule and a ceiling allow a request in common.
func Overlap(r *Rule, ceiling []Rule) bool {
	return slices.ContainsFunc(ceiling, func(c Rule) bool { _, ok := narrow(*r, &c); return ok })
}

// Within reports whether a rule of the ceiling allows every request that r names: those to
// its host, and with its other members where r has them. r may be a rule of a ceiling; for
// the host "*", which names none, Within returns true.
func Within(r *Rule, ceiling []Rule) bool {
	return r.Host == "*" || slices.ContainsFunc(ceiling, func(c Rule) bool {
		q := *r
		if q.Mode == "" {
			q.Mode = c.Mode
		}
		if r.Mode == "" && q.Port == 0 {
			q.Port = c.Port
		}
		n, ok := narrow(q, &c)
		return ok && n.Host == r.Host && same(r.Methods, n.Methods) && same(r.Paths, n.Paths)
	})
}

// same reports whether the members of a rule did not change when it was narrowed. A rule
// without members names none.
func same(named, narrowed []string) bool { return len(named) == 0 || slices.Equal(named, narrowed) }

// narrow returns the rule that allows what r and c allow, or false if that is nothing.
func narrow(r Rule, c *Rule) (Rule, bool) {
	opaque := r.Mode == Passthrough || r.Mode == TCP
	if c.Mode != "" && c.Mode != r.Mode || opaque && len(c.Methods)+len(c.Paths) > 0 {
		return Rule{}, false
	}
	var host, method bool
	r.Host, host = narrowHost(r.Host, c.Host)
	r.Methods, method = narrowMethods(r.Methods, c.Methods)
	r.Paths = narrowPaths(r.Paths, c.Paths)
	port := portOf(c) == 0 || portOf(c) == portOf(&r)
	return r, host && method && port
}

// narrowMethods returns the methods that are in both lists, and false if there are none. An
// empty list stands for every method.
func narrowMethods(a, b []string) ([]string, bool) {
	switch {
	case len(a) == 0:
		return b, true
	case len(b) == 0:
		return a, true
	}
	both := slices.DeleteFunc(slices.Clone(a), func(m string) bool { return !slices.Contains(b, m) })
	return both, len(both) > 0
}

// narrowPaths returns patterns for the paths that match a pattern of each list. An empty
// list stands for every path.
func narrowPaths(a, b []string) (out []string) {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	for _, p := range a {
		for _, q := range b {
			if x := both(p, q); !slices.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	return out
}

// narrowHost returns the host that matches what both hosts match, and false if that is
// nothing.
func narrowHost(a, b string) (string, bool) {
	switch {
	case a == b || b == "*" || within(a, b):
		return a, true
	case a == "*" || within(b, a):
		return b, true
	}
	return "", false
}

// within reports whether the host pattern begins with "*." and matches whatever the other
// host matches. The hosts differ.
func within(host, pattern string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*.")
	if !wild {
		return false
	}
	if sub, ok := strings.CutPrefix(host, "*."); ok {
		return strings.HasSuffix(sub, "."+suffix)
	}
	return matchHost(pattern, host)
}

// Equal reports whether two rules have the same members.
func Equal(a, b *Rule) bool {
	return a.Host == b.Host && a.Mode == b.Mode && a.Port == b.Port && slices.Equal(a.Methods, b.Methods) && slices.Equal(a.Paths, b.Paths) && sameCredential(a.Credential, b.Credential)
}

func sameCredential(a, b *Credential) bool {
	return a == b || a != nil && b != nil && *a == *b
}
