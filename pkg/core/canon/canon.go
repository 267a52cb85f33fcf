// Package canon produces RFC 8785 (JSON Canonicalization Scheme) bytes.
//
// Transform canonicalises foreign JSON strictly; Writer appends documents of
// our own whose key order is static. Both yield the same bytes for the same
// document, and a test holds every contract to that.
package canon

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is the deepest nesting Transform accepts.
const MaxDepth = 128

// Error tells where the input stopped being acceptable JSON.
type Error struct {
	Offset int
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("json: %s at byte %d", e.Reason, e.Offset) }

// Transform appends the canonical form of src to dst. It rejects duplicate
// keys, invalid UTF-8, lone surrogates, numbers outside IEEE 754 double,
// nesting over MaxDepth and trailing data (RFC 8785 §3.1, RFC 7493).
func Transform(dst, src []byte) ([]byte, error) {
	p := parser{src: src}
	dst, err := p.value(dst, 0)
	if err != nil {
		return nil, err
	}
	p.space()
	if p.pos != len(p.src) {
		return nil, p.fail("data after the value")
	}
	return dst, nil
}

// IsCanonical reports whether b is already the canonical form of itself.
func IsCanonical(b []byte) bool {
	c, err := Transform(make([]byte, 0, len(b)), b)
	return err == nil && string(c) == string(b)
}

type parser struct {
	src []byte
	pos int
}

func (p *parser) fail(reason string) error { return &Error{p.pos, reason} }

func (p *parser) space() {
	for p.pos < len(p.src) {
		switch p.src[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

func (p *parser) value(dst []byte, depth int) ([]byte, error) {
	if depth > MaxDepth {
		return nil, p.fail("nesting deeper than 128")
	}
	p.space()
	if p.pos >= len(p.src) {
		return nil, p.fail("unexpected end")
	}
	switch c := p.src[p.pos]; {
	case c == '{':
		return p.object(dst, depth)
	case c == '[':
		return p.array(dst, depth)
	case c == '"':
		s, err := p.str()
		if err != nil {
			return nil, err
		}
		return AppendString(dst, s), nil
	case c == '-' || c >= '0' && c <= '9':
		return p.number(dst)
	default:
		for _, lit := range [...]string{"true", "false", "null"} {
			if len(p.src)-p.pos >= len(lit) && string(p.src[p.pos:p.pos+len(lit)]) == lit {
				p.pos += len(lit)
				return append(dst, lit...), nil
			}
		}
		return nil, p.fail("unexpected character")
	}
}

type member struct {
	name       string
	units      []uint16 // set only when a name is not ASCII
	start, end int
}

func (p *parser) object(dst []byte, depth int) ([]byte, error) {
	p.pos++
	var members []member
	var vals []byte
	ascii, sorted := true, true
	p.space()
	if p.pos < len(p.src) && p.src[p.pos] == '}' {
		p.pos++
		return append(dst, '{', '}'), nil
	}
	for {
		p.space()
		if p.pos >= len(p.src) || p.src[p.pos] != '"' {
			return nil, p.fail("expected a member name")
		}
		name, err := p.str()
		if err != nil {
			return nil, err
		}
		p.space()
		if p.pos >= len(p.src) || p.src[p.pos] != ':' {
			return nil, p.fail("expected ':'")
		}
		p.pos++
		start := len(vals)
		if vals, err = p.value(vals, depth+1); err != nil {
			return nil, err
		}
		for i := range len(name) {
			if name[i] >= utf8.RuneSelf {
				ascii = false
				break
			}
		}
		if n := len(members); n > 0 && members[n-1].name >= name {
			sorted = false
		}
		members = append(members, member{name: name, start: start, end: len(vals)})
		p.space()
		if p.pos >= len(p.src) {
			return nil, p.fail("unexpected end in object")
		}
		if p.src[p.pos] == ',' {
			p.pos++
			continue
		}
		if p.src[p.pos] != '}' {
			return nil, p.fail("expected ',' or '}'")
		}
		p.pos++
		break
	}
	if !ascii {
		for i := range members {
			members[i].units = utf16.Encode([]rune(members[i].name))
		}
		slices.SortStableFunc(members, func(a, b member) int { return slices.Compare(a.units, b.units) })
	} else if !sorted {
		slices.SortStableFunc(members, func(a, b member) int {
			if a.name < b.name {
				return -1
			}
			if a.name > b.name {
				return 1
			}
			return 0
		})
	}
	dst = append(dst, '{')
	for i, m := range members {
		if i > 0 {
			if members[i-1].name == m.name {
				return nil, p.fail("duplicate member name " + strconv.Quote(m.name))
			}
			dst = append(dst, ',')
		}
		dst = AppendString(dst, m.name)
		dst = append(dst, ':')
		dst = append(dst, vals[m.start:m.end]...)
	}
	return append(dst, '}'), nil
}

func (p *parser) array(dst []byte, depth int) ([]byte, error) {
	p.pos++
	dst = append(dst, '[')
	p.space()
	if p.pos < len(p.src) && p.src[p.pos] == ']' {
		p.pos++
		return append(dst, ']'), nil
	}
	for {
		var err error
		if dst, err = p.value(dst, depth+1); err != nil {
			return nil, err
		}
		p.space()
		if p.pos >= len(p.src) {
			return nil, p.fail("unexpected end in array")
		}
		switch p.src[p.pos] {
		case ',':
			p.pos++
			dst = append(dst, ',')
		case ']':
			p.pos++
			return append(dst, ']'), nil
		default:
			return nil, p.fail("expected ',' or ']'")
		}
	}
}

// str reads a string at p.pos (which holds the opening quote).
func (p *parser) str() (string, error) {
	p.pos++
	start := p.pos
	for p.pos < len(p.src) { // fast path: no escapes
		c := p.src[p.pos]
		if c == '"' {
			s := p.src[start:p.pos]
			if !utf8.Valid(s) {
				return "", p.fail("invalid UTF-8")
			}
			p.pos++
			return string(s), nil
		}
		if c == '\\' {
			break
		}
		if c < 0x20 {
			return "", p.fail("control character in string")
		}
		p.pos++
	}
	buf := append([]byte(nil), p.src[start:p.pos]...)
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		switch {
		case c == '"':
			if !utf8.Valid(buf) {
				return "", p.fail("invalid UTF-8")
			}
			p.pos++
			return string(buf), nil
		case c < 0x20:
			return "", p.fail("control character in string")
		case c != '\\':
			buf = append(buf, c)
			p.pos++
		default:
			var err error
			if buf, err = p.escape(buf); err != nil {
				return "", err
			}
		}
	}
	return "", p.fail("unterminated string")
}

func (p *parser) escape(buf []byte) ([]byte, error) {
	if p.pos+1 >= len(p.src) {
		return nil, p.fail("unterminated escape")
	}
	c := p.src[p.pos+1]
	p.pos += 2
	switch c {
	case '"', '\\', '/':
		return append(buf, c), nil
	case 'b':
		return append(buf, '\b'), nil
	case 'f':
		return append(buf, '\f'), nil
	case 'n':
		return append(buf, '\n'), nil
	case 'r':
		return append(buf, '\r'), nil
	case 't':
		return append(buf, '\t'), nil
	case 'u':
		r, err := p.hex4()
		if err != nil {
			return nil, err
		}
		if utf16.IsSurrogate(r) {
			if p.pos+1 >= len(p.src) || p.src[p.pos] != '\\' || p.src[p.pos+1] != 'u' {
				return nil, p.fail("lone surrogate")
			}
			p.pos += 2
			r2, err := p.hex4()
			if err != nil {
				return nil, err
			}
			if r = utf16.DecodeRune(r, r2); r == utf8.RuneError {
				return nil, p.fail("lone surrogate")
			}
		}
		return utf8.AppendRune(buf, r), nil
	}
	return nil, p.fail("unknown escape")
}

func (p *parser) hex4() (rune, error) {
	if p.pos+4 > len(p.src) {
		return 0, p.fail("short \\u escape")
	}
	n, err := strconv.ParseUint(string(p.src[p.pos:p.pos+4]), 16, 32)
	if err != nil {
		return 0, p.fail("bad \\u escape")
	}
	p.pos += 4
	return rune(n), nil
}

func (p *parser) number(dst []byte) ([]byte, error) {
	start := p.pos
	digits := func() bool {
		n := p.pos
		for p.pos < len(p.src) && p.src[p.pos] >= '0' && p.src[p.pos] <= '9' {
			p.pos++
		}
		return p.pos > n
	}
	if p.src[p.pos] == '-' {
		p.pos++
	}
	if p.pos < len(p.src) && p.src[p.pos] == '0' {
		p.pos++
	} else if !digits() {
		return nil, p.fail("bad number")
	}
	if p.pos < len(p.src) && p.src[p.pos] == '.' {
		p.pos++
		if !digits() {
			return nil, p.fail("bad number")
		}
	}
	if p.pos < len(p.src) && (p.src[p.pos] == 'e' || p.src[p.pos] == 'E') {
		p.pos++
		if p.pos < len(p.src) && (p.src[p.pos] == '+' || p.src[p.pos] == '-') {
			p.pos++
		}
		if !digits() {
			return nil, p.fail("bad number")
		}
	}
	f, err := strconv.ParseFloat(string(p.src[start:p.pos]), 64)
	if err != nil {
		p.pos = start
		return nil, p.fail("number outside IEEE 754 double")
	}
	return AppendNumber(dst, f)
}

var errNumber = errors.New("json: NaN and infinity have no JSON form")

// AppendNumber appends f as ECMAScript's Number::toString does (RFC 8785 §3.2.2.3).
func AppendNumber(dst []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errNumber
	}
	if f == 0 {
		return append(dst, '0'), nil // also minus zero
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64), nil
	}
	n := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// Go writes at least two exponent digits, ECMAScript does not pad.
	if e := len(dst) - 2; e > n && dst[e] == '0' && (dst[e-1] == '-' || dst[e-1] == '+') {
		dst[e] = dst[e+1]
		dst = dst[:e+1]
	}
	return dst, nil
}

const hexDigits = "0123456789abcdef"

// AppendString appends s as a canonical JSON string. s must be valid UTF-8;
// invalid bytes are replaced by U+FFFD, so callers validate first.
func AppendString(dst []byte, s string) []byte {
	dst = append(slices.Grow(dst, len(s)+2), '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(append(dst, s[start:i]...), "\uFFFD"...)
				start = i + 1
			}
			i += n
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}
