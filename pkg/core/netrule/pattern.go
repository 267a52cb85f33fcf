package netrule

import (
	"fmt"
	"slices"
	"strings"
)

// A pattern of paths has parts separated by blanks; a path matches if it matches every
// part. In a part, "*" matches any number of characters other than "/", and "**" any number
// of characters.

// The characters for the wildcards of an encoded part; see encodePart. No path contains them.
const (
	anySegment = '\x02' // "*"
	anyPath    = '\x01' // "**"
)

// checkPattern returns an error unless s is a pattern in canonical form.
func checkPattern(s string) error {
	if len(s) > maxPattern {
		return fmt.Errorf("a pattern has more than %d bytes", maxPattern)
	}
	for part := range strings.SplitSeq(s, " ") {
		if strings.Contains(part, "***") || strings.ContainsAny(part, "?#") {
			return fmt.Errorf("%q: three asterisks, ? and # are not possible", s)
		}
		literal := strings.ReplaceAll(part, "*", "x")
		if canonical, ambiguous := canonicalPath(literal); ambiguous || literal != canonical {
			return fmt.Errorf("%q is not in canonical form: a leading slash, no empty or dot segment, escapes of reserved characters only, in upper case", s)
		}
	}
	return nil
}

// matchPattern reports whether a path matches every part of a pattern.
func matchPattern(pattern, path string) bool {
	for part := range strings.SplitSeq(pattern, " ") {
		if !matchPart(encodePart(part), path) {
			return false
		}
	}
	return true
}

// encodePart returns a part with one character for each wildcard.
func encodePart(part string) string {
	return strings.ReplaceAll(strings.ReplaceAll(part, "**", string(anyPath)), "*", string(anySegment))
}

// matchPart reports whether an encoded part matches s: a path, or another encoded part, for
// which it returns true only if the part matches every path that the other one matches.
//
// It matches from left to right and continues after the last wildcard if a character does
// not match. That suffices, because a wildcard that begins to match earlier can match
// everything that it could match later.
func matchPart(part, s string) bool {
	m := marks{mark{-1, 0}, mark{-1, 0}}
	i, j := 0, 0
	for j < len(s) {
		switch {
		case i < len(part) && part[i] <= anySegment:
			i++
			m.set(part[i-1], mark{i, j})
		case i < len(part) && part[i] == s[j]:
			i, j = i+1, j+1
		case m.extend(s):
			i, j = m.last()
		default:
			return false
		}
	}
	return strings.Trim(part[i:], string(anyPath)+string(anySegment)) == ""
}

// mark is the position after a wildcard of a part, or -1, and the position in the text up to
// which the wildcard matches.
type mark struct{ part, text int }

// marks holds the last anyPath, and the last anySegment after it.
type marks struct{ path, segment mark }

func (m *marks) set(wildcard byte, at mark) {
	m.segment = at
	if wildcard == anyPath {
		m.path, m.segment = at, mark{-1, 0}
	}
}

// extend makes a wildcard match one more character of s: the last anySegment
// or, if that cannot match the character, the last anyPath. It returns false
// if neither can.
func (m *marks) extend(s string) bool {
	if g := &m.segment; g.part >= 0 && s[g.text] != '/' && s[g.text] != anyPath {
		g.text++
		return true
	}
	m.segment.part = -1
	m.path.text++
	return m.path.part >= 0
}

// last returns the position after the last wildcard of the part, and the
// position in the text up to which the wildcard matches.
func (m *marks) last() (part, text int) {
	if m.segment.part >= 0 {
		return m.segment.part, m.segment.text
	}
	return m.path.part, m.path.text
}

// covers reports whether part a of a pattern matches every path that part b
// matches. It returns true only if this is so, but may return false although
// it is so.
func covers(a, b string) bool { return matchPart(encodePart(a), encodePart(b)) }

// both returns a pattern that matches the paths that both patterns match.
func both(a, b string) string {
	parts := append(strings.Split(a, " "), strings.Split(b, " ")...)
	var out []string
	for i, p := range parts {
		if !implied(parts, i) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// coversPattern reports whether pattern a matches every path that pattern b
// matches. Like covers, it may return false although this is so.
func coversPattern(a, b string) bool {
	parts := strings.Split(b, " ")
	for p := range strings.SplitSeq(a, " ") {
		if !slices.ContainsFunc(parts, func(q string) bool { return covers(p, q) }) {
			return false
		}
	}
	return true
}

// empty reports whether a pattern matches no path because two of its parts begin with
// different text, or one is a path that the other does not match. It may return false for
// other patterns that match no path.
func empty(pattern string) bool {
	parts := strings.Split(pattern, " ")
	for i, p := range parts {
		for _, q := range parts[:i] {
			if disjoint(p, q) || disjoint(q, p) {
				return true
			}
		}
	}
	return false
}

// disjoint reports whether q matches no path that the part p matches, judged by the text
// before the first wildcard of p.
func disjoint(p, q string) bool {
	text, _, wild := strings.Cut(p, "*")
	if !wild {
		return !covers(q, p)
	}
	other, _, _ := strings.Cut(q, "*")
	n := min(len(text), len(other))
	return text[:n] != other[:n]
}

// implied reports whether another part of the list matches only paths that part i matches.
// Of several equal parts, all but the first are implied.
func implied(parts []string, i int) bool {
	for j, q := range parts {
		if j != i && covers(parts[i], q) && (!covers(q, parts[i]) || j < i) {
			return true
		}
	}
	return false
}

// canonicalPath returns an escaped path with its unnecessary escapes decoded and the
// others in upper case (RFC 3986, section 6.2.2). If ambiguous is true, servers may read
// the path in different ways, and canonical is p. This is so for a dot segment, also one
// with a parameter; an empty segment other than the last; a backslash, or an escaped
// slash, backslash, percent sign or control character; an unescaped blank, control
// character or character that is not ASCII; an incomplete escape; or no slash at the
// beginning.
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
		d, ok := unescape(p[i:])
		if !ok {
			return p, true
		}
		if unreserved(d) {
			out.WriteByte(d)
		} else {
			out.WriteString(strings.ToUpper(p[i : i+3]))
		}
		i += 2
	}
	canonical = out.String()
	if !strings.HasPrefix(canonical, "/") || ambiguousSegments(strings.Split(canonical[1:], "/")) {
		return p, true
	}
	return canonical, false
}

// unescape returns the byte of the escape that s begins with. ok is false if the escape is
// incomplete, or of a byte that makes a path ambiguous.
func unescape(s string) (d byte, ok bool) {
	if len(s) < 3 {
		return 0, false
	}
	high, low := strings.IndexByte(digits, lowerHex(s[1])), strings.IndexByte(digits, lowerHex(s[2]))
	if high < 0 || low < 0 {
		return 0, false
	}
	d = byte(high<<4 | low)
	return d, d >= ' ' && d != 0x7f && strings.IndexByte(`/\%`, d) < 0
}

// ambiguousSegments reports whether the segments of a path contain a dot segment, also one
// with a parameter, or an empty segment other than the last.
func ambiguousSegments(segments []string) bool {
	return slices.ContainsFunc(segments, func(s string) bool {
		name, _, _ := strings.Cut(s, ";")
		name, _, _ = strings.Cut(name, "%3B")
		return name == "." || name == ".."
	}) || slices.Contains(segments[:len(segments)-1], "")
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
