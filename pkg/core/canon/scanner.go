package canon

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// scanner reads canonical JSON from front to back. After the first error, which is in
// err, pos and the results of the methods have no meaning.
type scanner struct {
	in    []byte
	pos   int
	first bool // no member of the object at pos has been read yet
	depth int  // number of arrays that are open at pos; for Read and Members, objects are included
	err   error
}

// stop ends the pass with err. Only the first error is recorded, and a nil err is
// ignored.
func (s *scanner) stop(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *scanner) fail(reason string) { s.stop(&Error{s.pos, reason}) }

// end fails with reason unless the whole input has been read, and returns the
// first error.
func (s *scanner) end(reason string) error {
	if s.err == nil && s.pos != len(s.in) {
		s.fail(reason)
	}
	return s.err
}

// next reports whether b is the next byte, without moving past it.
func (s *scanner) next(b byte) bool {
	return s.err == nil && s.pos < len(s.in) && s.in[s.pos] == b
}

func (s *scanner) expect(b byte) {
	if s.err == nil && (s.pos >= len(s.in) || s.in[s.pos] != b) {
		s.fail("not in canonical form: expected " + strconv.QuoteRune(rune(b)))
		return
	}
	s.pos++
}

// has reports whether the member name k comes next. If so, has moves past the name, the
// colon after it and the comma before it; otherwise it does not move. After an error the
// result is false.
func (s *scanner) has(k string) bool {
	if s.err != nil {
		return false
	}
	p, in := s.pos, s.in
	if !s.first {
		if p >= len(in) || in[p] != ',' {
			return false
		}
		p++
	}
	if !named(in[p:], k) {
		return false
	}
	s.pos, s.first = p+len(k)+3, false
	return true
}

// named reports whether in begins with the member name k in quotes and a colon.
func named(in []byte, k string) bool {
	n := len(k)
	return len(in) >= n+3 && in[0] == '"' && string(in[1:1+n]) == k && in[1+n] == '"' && in[2+n] == ':'
}

// need is like has, except that it fails if the member name k does not come next.
func (s *scanner) need(k string) bool {
	if s.has(k) {
		return true
	}
	if s.err == nil {
		s.stop(fmt.Errorf("json: not in canonical form: expected member %q at byte %d", k, s.pos))
	}
	return false
}

// array reads the array at pos and calls item at the start of each element; item
// must read the element.
func (s *scanner) array(item func()) {
	s.expect('[')
	s.depth++
	defer func() { s.depth-- }()
	if s.next(']') {
		s.pos++
		return
	}
	for s.err == nil {
		item()
		if !s.next(',') {
			s.expect(']')
			return
		}
		s.pos++
	}
}

// str reads a string in its canonical form and returns a copy of its value.
func (s *scanner) str() string {
	from, to, escapes := s.bounds()
	switch {
	case s.err != nil:
		return ""
	case escapes:
		return s.escaped(from)
	}
	return string(s.in[from:to])
}

// raw reads a string in its canonical form and returns the bytes between the
// quotes with their escapes. The bytes alias the input.
func (s *scanner) raw() []byte {
	from, to, escapes := s.bounds()
	if escapes {
		s.escaped(from)
		to = s.pos - 1
	}
	if s.err != nil {
		return nil
	}
	return s.in[from:to]
}

// bounds returns the range of the content of the string at pos, and moves past the
// closing quote. If the content holds an escape, bounds returns with escapes set and pos
// at the first byte of the content; to is then invalid, and the caller must call
// escaped(from). If the string is invalid, bounds sets s.err.
func (s *scanner) bounds() (from, to int, escapes bool) {
	s.expect('"')
	if s.err != nil {
		return 0, 0, false
	}
	from = s.pos
	ascii := true
	for p := from + plainPrefix(s.in[from:]); p < len(s.in); p++ {
		switch b := s.in[p]; {
		case b == '"':
			s.pos = p + 1
			if !ascii && !utf8.Valid(s.in[from:p]) {
				s.fail("invalid UTF-8")
			}
			return from, p, false
		case b == '\\':
			return from, p, true
		case b < 0x20:
			s.pos = p
			s.fail("control character in string")
			return 0, 0, false
		case b >= utf8.RuneSelf:
			ascii = false
		}
	}
	s.fail("unterminated string")
	return 0, 0, false
}

// escaped returns the value of the string whose content begins at from and holds
// escapes, and moves past the closing quote. It fails for an unterminated string, a
// control character, invalid UTF-8, and an escape that is not the one that RFC 8785
// prescribes.
func (s *scanner) escaped(from int) string {
	end := s.closing(from)
	if s.err != nil {
		return ""
	}
	in, out := s.in, make([]byte, 0, end-from)
	start := from // start of the part that is not yet copied
	for p := from; p < end; p++ {
		if in[p] < 0x20 {
			s.pos = p
			s.fail("control character in string")
			return ""
		}
		if in[p] != '\\' {
			continue
		}
		out = append(out, in[start:p]...)
		b, n := unescape(in[p+1 : end])
		if n == 0 {
			s.pos = p
			s.fail("string is not in canonical form")
			return ""
		}
		out = append(out, b)
		p += n
		start = p + 1
	}
	out = append(out, in[start:end]...)
	s.pos = end + 1
	if !utf8.Valid(out) {
		s.fail("invalid UTF-8")
	}
	return string(out)
}

// closing returns the index of the closing quote of the string whose content begins at
// from, and fails if the string is unterminated.
func (s *scanner) closing(from int) int {
	end := from
	for ; end < len(s.in) && s.in[end] != '"'; end++ {
		if s.in[end] == '\\' {
			end++
		}
	}
	if end >= len(s.in) {
		s.fail("unterminated string")
	}
	return end
}

// unescape reads the escape with which in begins, without its backslash; in must not be
// empty. It returns the byte that is encoded and the length of the escape, which is 0 if
// the escape is invalid or RFC 8785 prescribes another form.
func unescape(in []byte) (b byte, n int) {
	if b = unescaped[in[0]]; b != 0 && b != '/' {
		return b, 1
	}
	if in[0] == 'u' && len(in) >= 5 && in[1] == '0' && in[2] == '0' {
		if b, ok := control(in[3], in[4]); ok {
			return b, 5
		}
	}
	return 0, 0
}

// control returns the control character with the two lower-case hex digits hi and
// lo. ok is false if the digits are not those of a byte below 0x20, or if RFC
// 8785 escapes that byte with a single character.
func control(hi, lo byte) (b byte, ok bool) {
	switch {
	case hi != '0' && hi != '1':
		return 0, false
	case lo >= '0' && lo <= '9':
		b = (hi-'0')<<4 | (lo - '0')
	case lo >= 'a' && lo <= 'f':
		b = (hi-'0')<<4 | (lo - 'a' + 10)
	default:
		return 0, false
	}
	return b, shortEscapes[b] == 0
}

var errInt = errors.New("json: integer outside ±(2^53 − 1) or not in canonical form")

// int reads an integer in its canonical form. It fails if the magnitude exceeds
// MaxInt.
func (s *scanner) int() int64 {
	from := s.pos
	for s.pos < len(s.in) && (s.in[s.pos] == '-' || s.in[s.pos] >= '0' && s.in[s.pos] <= '9') {
		s.pos++
	}
	text := s.in[from:s.pos]
	n, err := strconv.ParseInt(string(text), 10, 64)
	var digits [20]byte // room for the sign and digits of the smallest int64
	if err != nil || n > MaxInt || n < -MaxInt || string(strconv.AppendInt(digits[:0], n, 10)) != string(text) {
		s.stop(errInt)
	}
	return n
}

// skip moves past one value, which may be missing before a comma, a closing bracket or
// the end of the input. It checks only that strings end, that as many brackets close as
// open, and that no nesting is deeper than MaxDepth; callers that need more check the
// bytes that were skipped.
func (s *scanner) skip() {
	depth := 0
	for s.err == nil && s.pos < len(s.in) {
		b := s.in[s.pos]
		if depth == 0 && closes(b) {
			return
		}
		switch b {
		case '"':
			s.skipString()
		case '{', '[':
			depth++
			s.enter(depth)
		case '}', ']':
			depth--
		default:
			s.pos++
			continue
		}
		if s.pos++; depth == 0 {
			return
		}
	}
	if depth != 0 {
		s.fail("unterminated value")
	}
}

// enter fails if an object or array at pos would exceed MaxDepth. more is the number of
// levels entered by skip, which s.depth does not count.
func (s *scanner) enter(more int) {
	if s.depth+more > MaxDepth {
		s.fail("nesting deeper than 128")
	}
}

// closes reports whether b is a comma or a closing bracket, which ends a number or a
// literal inside an object or array.
func closes(b byte) bool { return b == ',' || b == '}' || b == ']' }

// skipString moves to the quote that ends the string whose opening quote is at
// pos. If the string is unterminated, it fails and moves to the last byte.
func (s *scanner) skipString() {
	if s.pos = stringEnd(s.in, s.pos+1); s.pos < 0 {
		s.stop(&Error{len(s.in), "unterminated value"})
		s.pos = len(s.in) - 1
	}
}
