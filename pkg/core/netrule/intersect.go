package netrule

import (
	"slices"
	"strings"
)

// Intersect returns rules for the requests that both lists allow. For each request that a rule
// of the result allows, the first rule of rules that allows it has the same mode and credential.
// A rule of mode Passthrough or TCP is not allowed by a ceiling with methods or paths, which
// cannot be checked there. Intersect stops when the result exceeds the limits (see Exceeds);
// Compile refuses such a list.
func Intersect(rules, ceiling []Rule) []Rule {
	out := []Rule{}
	for i := range rules {
		for j := range ceiling {
			if n, ok := narrow(rules[i], &ceiling[j]); ok && !slices.ContainsFunc(out, func(o Rule) bool { return Equal(&o, &n) }) {
				out = append(out, n)
			}
			if len(out) > MaxRules || len(out) > 0 && tooMany(out[len(out)-1]) {
				return out
			}
		}
	}
	return out
}

// Exceeds reports whether a list has more rules, or one of its rules more methods or paths,
// than Compile accepts. A list for which Intersect stopped exceeds the limits.
func Exceeds(rules []Rule) bool { return len(rules) > MaxRules || slices.ContainsFunc(rules, tooMany) }

func tooMany(r Rule) bool { return len(r.Methods) > MaxMembers || len(r.Paths) > MaxMembers }

// Overlap reports whether a rule and a ceiling allow a request in common. It may return
// true although their patterns of paths match no path in common; see empty.
func Overlap(r *Rule, ceiling []Rule) bool {
	return slices.ContainsFunc(ceiling, func(c Rule) bool { _, ok := narrow(*r, &c); return ok })
}

// Within reports whether one rule of the ceiling allows the host of r and each of the
// mode, port, methods and paths that r states. A member that r leaves empty is not
// compared, although an empty member otherwise allows everything; only if r has a mode and
// no port, the port of the mode is compared (see portOf). For the host "*", Within returns
// true. r may be a rule of a ceiling.
func Within(r *Rule, ceiling []Rule) bool {
	return r.Host == "*" || slices.ContainsFunc(ceiling, func(c Rule) bool {
		q := *r
		if q.Mode == "" {
			q.Mode = c.Mode
		}
		if r.Mode == "" && q.Port == 0 {
			q.Port = c.Port
		}
		host, ok := narrowHost(r.Host, c.Host)
		return ok && host == r.Host && meets(&q, &c) &&
			allWithin(r.Methods, c.Methods, func(a, b string) bool { return a == b }) && allWithin(r.Paths, c.Paths, coversPattern)
	})
}

// allWithin reports whether, for each member that a rule names, covers(c, member) is true for a
// member c of the ceiling. A rule without members names none; a ceiling without members permits
// all.
func allWithin(named, ceiling []string, covers func(a, b string) bool) bool {
	return len(ceiling) == 0 || !slices.ContainsFunc(named, func(n string) bool {
		return !slices.ContainsFunc(ceiling, func(c string) bool { return covers(c, n) })
	})
}

// narrow returns the rule for the requests that both r and c allow, or false if there are none.
func narrow(r Rule, c *Rule) (Rule, bool) {
	var ok bool
	if r.Host, ok = narrowHost(r.Host, c.Host); !ok || !meets(&r, c) {
		return Rule{}, false
	}
	if r.Methods, ok = narrowMethods(r.Methods, c.Methods); !ok {
		return Rule{}, false
	}
	r.Paths, ok = narrowPaths(r.Paths, c.Paths) // last, because it is the most expensive
	return r, ok
}

// meets reports whether c allows the mode and the port of r.
func meets(r, c *Rule) bool {
	opaque := r.Mode == Passthrough || r.Mode == TCP
	if c.Mode != "" && c.Mode != r.Mode || opaque && len(c.Methods)+len(c.Paths) > 0 {
		return false
	}
	return portOf(c) == 0 || portOf(c) == portOf(r)
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

// narrowPaths returns patterns for the paths that match a pattern of each list, and
// false if there are none. An empty list stands for every path: the result is then the
// other list. Otherwise none of the patterns covers another. narrowPaths stops when
// there are more than MaxMembers patterns.
func narrowPaths(a, b []string) ([]string, bool) {
	switch {
	case len(a) == 0:
		return b, true
	case len(b) == 0:
		return a, true
	}
	var out []string
	for _, p := range a {
		for _, q := range b {
			if out = addPattern(out, p, q); len(out) > MaxMembers {
				return out, true
			}
		}
	}
	return out, len(out) > 0
}

// addPattern adds to a list the pattern for the paths that both p and q match, unless it matches
// no path or a pattern of the list covers it, and removes the patterns that it covers.
func addPattern(list []string, p, q string) []string {
	x := both(p, q)
	if empty(x) || slices.ContainsFunc(list, func(o string) bool { return coversPattern(o, x) }) {
		return list
	}
	return append(slices.DeleteFunc(list, func(o string) bool { return coversPattern(x, o) }), x)
}

// narrowHost returns the pattern for the hosts that both a and b match, or false if there are
// none.
func narrowHost(a, b string) (string, bool) {
	switch {
	case a == b || b == "*" || within(a, b):
		return a, true
	case a == "*" || within(b, a):
		return b, true
	}
	return "", false
}

// within reports whether pattern begins with "*." and matches every host that
// host matches, which may be a pattern itself. host and pattern must differ.
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
