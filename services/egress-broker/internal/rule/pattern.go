package rule

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// pattern is a compiled pattern of paths: a path matches if it matches every part.
type pattern []*regexp.Regexp

// The wildcards of a pattern in the texts that covers compares. No path contains them.
const (
	anySegment = "\x02" // "*"
	anyPath    = "\x01" // "**"
)

// compilePattern checks and compiles a pattern (see Rule).
func compilePattern(s string) (pattern, error) {
	if len(s) > maxPattern {
		return nil, fmt.Errorf("a path pattern has more than %d bytes", maxPattern)
	}
	var out pattern
	for part := range strings.SplitSeq(s, " ") {
		if strings.Contains(part, "***") || strings.ContainsAny(part, "?#") {
			return nil, fmt.Errorf("path pattern %q: three asterisks, ? and # are not possible", s)
		}
		literal, ambiguous := canonicalPath(strings.ReplaceAll(part, "*", "x"))
		if ambiguous || literal != strings.ReplaceAll(part, "*", "x") {
			return nil, fmt.Errorf("path pattern %q is not in canonical form: a leading slash, no empty or dot segment, escapes of reserved characters only, in upper case", s)
		}
		out = append(out, compilePart(part))
	}
	return out, nil
}

// compilePart compiles one part of a pattern. The expression also matches the texts that
// encodePart returns (see covers).
func compilePart(part string) *regexp.Regexp {
	var e strings.Builder
	for i, p := range strings.Split(part, "**") {
		if i > 0 {
			e.WriteString(`(?s:.*)`)
		}
		for j, q := range strings.Split(p, "*") {
			if j > 0 {
				e.WriteString(`[^/` + anyPath + `]*`)
			}
			e.WriteString(regexp.QuoteMeta(q))
		}
	}
	return regexp.MustCompile(`\A` + e.String() + `\z`)
}

func encodePart(part string) string {
	return strings.ReplaceAll(strings.ReplaceAll(part, "**", anyPath), "*", anySegment)
}

func (p pattern) match(path string) bool {
	return !slices.ContainsFunc(p, func(e *regexp.Regexp) bool { return !e.MatchString(path) })
}

// covers reports whether part a of a pattern matches every path that part b matches. It may
// return false for such parts, but never returns true for others.
func covers(a, b string) bool { return compilePart(a).MatchString(encodePart(b)) }

// both returns a pattern that matches the paths that both patterns match.
func both(a, b string) string {
	parts := append(strings.Split(a, " "), strings.Split(b, " ")...)
	var out []string
	for i, p := range parts {
		implied := func(j int, q string) bool { return j != i && covers(p, q) && (!covers(q, p) || j < i) }
		redundant := false
		for j, q := range parts {
			redundant = redundant || implied(j, q)
		}
		if !redundant {
			out = append(out, p)
		}
	}
	return strings.Join(out, " ")
}

// canonicalPath returns an escaped path with its unnecessary escapes decoded and the
// others in upper case (RFC 3986, section 6.2.2). ambiguous reports whether servers may
// read the path in different ways: a dot segment, also one with a parameter; an empty
// segment other than the last; a backslash, or an escaped slash, backslash, percent sign
// or control character; an incomplete escape; or no slash at the beginning.
func canonicalPath(p string) (canonical string, ambiguous bool) {
	var out strings.Builder
	for i := 0; i < len(p); i++ {
		c := p[i]
		if c <= ' ' || c > '~' || c == '\\' {
			return p, true
		}
		if c != '%' {
			out.WriteByte(c)
			continue
		}
		if i+2 >= len(p) {
			return p, true
		}
		high, low := strings.IndexByte(digits, lowerHex(p[i+1])), strings.IndexByte(digits, lowerHex(p[i+2]))
		if high < 0 || low < 0 {
			return p, true
		}
		i += 2
		d := byte(high<<4 | low)
		switch {
		case d == '/' || d == '\\' || d == '%' || d < ' ' || d == 0x7f:
			return p, true
		case unreserved(d):
			out.WriteByte(d)
		default:
			out.WriteString(strings.ToUpper(p[i-2 : i+1]))
		}
	}
	canonical = out.String()
	rest, ok := strings.CutPrefix(canonical, "/")
	if !ok {
		return p, true
	}
	segments := strings.Split(rest, "/")
	for i, s := range segments {
		name, _, _ := strings.Cut(s, ";")
		name, _, _ = strings.Cut(name, "%3B")
		if name == "." || name == ".." || s == "" && i < len(segments)-1 {
			return p, true
		}
	}
	return canonical, false
}

const digits = "0123456789abcdef"

func lowerHex(c byte) byte {
	if c >= 'A' && c <= 'F' {
		return c + 'a' - 'A'
	}
	return c
}

// unreserved reports whether c never needs an escape (RFC 3986, section 2.3).
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}
