// Package canon writes and reads canonical JSON as RFC 8785 (JSON Canonicalization
// Scheme) defines it: one byte sequence for each value. The digests and signatures of
// the project's documents are computed over these bytes.
//
// Transform canonicalizes JSON from any source, and IsCanonical reports whether bytes
// are canonical. Append and Read write and read the project's own documents, each of
// which lists its members once, in ascending order; Read accepts only the bytes that
// Append writes. A Writer writes objects that are never read back, Members splits an
// object into its members, and a Shape checks canonical bytes against a JSON Schema. All
// of them use the same canonical bytes for a value; the tests of package contract
// compare Append, Read and Transform for its documents. CheckDepth protects parsers of
// other packages against deep nesting.
//
// encoding/json is not used: it accepts duplicate names, replaces invalid UTF-8 and
// matches names without regard to case, so two readers could decode different documents
// from the same signed bytes.
//
// The package does no I/O, and reads and writes documents without reflection. Its
// functions may be called concurrently. A new kind of member is a method of Codec or,
// if it needs a type parameter, a function, in codec.go, with a case in TestCodec.
package canon

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is the number of objects and arrays that may be nested in each other. The
// functions of this package that read JSON of any structure reject input that is nested
// more deeply, so that recursion is bounded. Read and Shape.Check bound the depth only
// of members whose structure is not given by the document or the shape: Raw and Data
// members, and values of FreeKind. Shape.Check does not count the objects that the shape
// describes. Writing does not check the depth.
const MaxDepth = 128

// Error reports where and why input is not acceptable JSON, or not in canonical form.
// The errors of Transform, Members and CheckDepth have this type; Read and Shape.Check
// also return errors of other types.
type Error struct {
	Offset int    // byte offset from the start of the input
	Reason string // the reason in lower case, without the offset
}

// Error returns the reason and the offset on one line. TestErrorTexts checks this text
// for Transform, Read, Members and Shape.Check.
func (e *Error) Error() string { return fmt.Sprintf("json: %s at byte %d", e.Reason, e.Offset) }

// Transform appends the canonical form of the JSON text src to dst and returns the
// extended slice; src is not changed or retained. It returns nil and an *Error for a
// text that is not JSON, a duplicate member name, invalid UTF-8, a lone surrogate, a
// number outside the range of an IEEE 754 double, nesting deeper than MaxDepth, and data
// after the value (RFC 8785 section 3.1, RFC 7493).
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

// IsCanonical reports whether b is exactly one JSON value in its canonical form, nested
// at most MaxDepth deep. It does not retain b.
func IsCanonical(b []byte) bool {
	c := codecs.Get().(*Codec)
	defer c.release()
	canonical, err := Transform(c.w.B, b)
	if err != nil {
		return false
	}
	c.w.B = canonical // release retains its memory
	return string(canonical) == string(b)
}

// parser reads JSON in any valid form from src. Its methods that take dst append the
// canonical form to it.
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

// accept reports whether b is the next byte, and moves past it if it is.
func (p *parser) accept(b byte) bool {
	if p.pos >= len(p.src) || p.src[p.pos] != b {
		return false
	}
	p.pos++
	return true
}

// value reads one value of any type and appends its canonical form. depth is the
// number of objects and arrays around the value.
func (p *parser) value(dst []byte, depth int) ([]byte, error) {
	p.space()
	if p.pos >= len(p.src) {
		return nil, p.fail("unexpected end")
	}
	switch b := p.src[p.pos]; b {
	case '{', '[':
		if depth >= MaxDepth {
			return nil, p.fail("nesting deeper than 128")
		}
		if b == '{' {
			return p.object(dst, depth)
		}
		return p.array(dst, depth)
	case '"':
		return p.text(dst)
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return p.number(dst)
	}
	return p.literal(dst)
}

func (p *parser) literal(dst []byte) ([]byte, error) {
	for _, lit := range [...]string{"true", "false", "null"} {
		if len(p.src)-p.pos >= len(lit) && string(p.src[p.pos:p.pos+len(lit)]) == lit {
			p.pos += len(lit)
			return append(dst, lit...), nil
		}
	}
	return nil, p.fail("unexpected character")
}

// member is one member of an object; its canonical value is
// members.values[start:end].
type member struct {
	name       string
	units      []uint16 // UTF-16 code units of name; set only when a name of the object is not ASCII
	start, end int
}

// members holds the members of one object, in the order of the input until sort
// is called.
type members struct {
	list     []member
	values   []byte
	unsorted bool // the names are not in strictly ascending order of their bytes
	foreign  bool // at least one name is not ASCII
}

// sort orders the members by the UTF-16 code units of their names (RFC 8785
// section 3.2.3), which for ASCII names is the order of their bytes.
func (m *members) sort() {
	if m.foreign {
		for i := range m.list {
			m.list[i].units = utf16.Encode([]rune(m.list[i].name))
		}
		slices.SortStableFunc(m.list, func(a, b member) int { return slices.Compare(a.units, b.units) })
	} else if m.unsorted {
		slices.SortStableFunc(m.list, byName)
	}
}

func byName(a, b member) int {
	switch {
	case a.name < b.name:
		return -1
	case a.name > b.name:
		return 1
	}
	return 0
}

// object reads an object, whose opening brace is at p.pos, and appends it with sorted
// members.
func (p *parser) object(dst []byte, depth int) ([]byte, error) {
	p.pos++
	p.space()
	if p.accept('}') {
		return append(dst, '{', '}'), nil
	}
	var m members
	for {
		if err := p.member(&m, depth); err != nil {
			return nil, err
		}
		p.space()
		if p.accept('}') {
			return p.appendMembers(dst, &m)
		}
		if p.pos >= len(p.src) {
			return nil, p.fail("unexpected end in object")
		}
		if !p.accept(',') {
			return nil, p.fail("expected ',' or '}'")
		}
	}
}

// member reads one name with its value, and adds them to m.
func (p *parser) member(m *members, depth int) error {
	p.space()
	if p.pos >= len(p.src) || p.src[p.pos] != '"' {
		return p.fail("expected a member name")
	}
	name, err := p.str()
	if err != nil {
		return err
	}
	p.space()
	if !p.accept(':') {
		return p.fail("expected ':'")
	}
	start := len(m.values)
	if m.values, err = p.value(m.values, depth+1); err != nil {
		return err
	}
	m.foreign = m.foreign || !ascii(name)
	if n := len(m.list); n > 0 && m.list[n-1].name >= name {
		m.unsorted = true
	}
	m.list = append(m.list, member{name: name, start: start, end: len(m.values)})
	return nil
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// appendMembers appends the object, whose closing brace was just read, with its
// members sorted. It returns an error for a name that occurs twice.
func (p *parser) appendMembers(dst []byte, m *members) ([]byte, error) {
	m.sort()
	dst = append(dst, '{')
	for i, x := range m.list {
		if i > 0 {
			if m.list[i-1].name == x.name {
				return nil, p.fail("duplicate member name " + strconv.Quote(x.name))
			}
			dst = append(dst, ',')
		}
		dst = append(AppendString(dst, x.name), ':')
		dst = append(dst, m.values[x.start:x.end]...)
	}
	return append(dst, '}'), nil
}

// array reads an array, whose opening bracket is at p.pos, and appends its canonical
// form.
func (p *parser) array(dst []byte, depth int) ([]byte, error) {
	p.pos++
	dst = append(dst, '[')
	p.space()
	if p.accept(']') {
		return append(dst, ']'), nil
	}
	for {
		var err error
		if dst, err = p.value(dst, depth+1); err != nil {
			return nil, err
		}
		p.space()
		if p.accept(']') {
			return append(dst, ']'), nil
		}
		if p.pos >= len(p.src) {
			return nil, p.fail("unexpected end in array")
		}
		if !p.accept(',') {
			return nil, p.fail("expected ',' or ']'")
		}
		dst = append(dst, ',')
	}
}

// str reads the string whose opening quote is at p.pos and returns its value. Strings
// without escapes, which are the most frequent, are copied only once.
func (p *parser) str() (string, error) {
	p.pos++
	start := p.pos
	for i := start + plainPrefix(p.src[start:]); i < len(p.src); i++ {
		c := p.src[i]
		if c != '"' && c != '\\' && c >= 0x20 {
			continue
		}
		p.pos = i
		switch c {
		case '"':
			return p.endString(p.src[start:p.pos])
		case '\\':
			return p.escaped(start)
		}
		return "", p.fail("control character in string")
	}
	p.pos = len(p.src)
	return "", p.fail("unterminated string")
}

// text reads the string whose opening quote is at p.pos and appends its canonical form,
// which for a string without escapes is the string itself.
func (p *parser) text(dst []byte) ([]byte, error) {
	rest := p.src[p.pos+1:]
	n := plainPrefix(rest)
	for n < len(rest) && rest[n] != '"' && rest[n] != '\\' && rest[n] >= 0x20 {
		n++
	}
	if n < len(rest) && rest[n] == '"' && utf8.Valid(rest[:n]) {
		dst = append(dst, p.src[p.pos:p.pos+n+2]...)
		p.pos += n + 2
		return dst, nil
	}
	s, err := p.str()
	if err != nil {
		return nil, err
	}
	return AppendString(dst, s), nil
}

// endString returns s, the content of the string whose closing quote is at p.pos, and
// moves past that quote. It returns an error if s is not valid UTF-8.
func (p *parser) endString(s []byte) (string, error) {
	if !utf8.Valid(s) {
		return "", p.fail("invalid UTF-8")
	}
	p.pos++
	return string(s), nil
}

// escaped returns the value of the string whose content begins at start and whose first
// escape is at p.pos, and moves past its closing quote.
func (p *parser) escaped(start int) (string, error) {
	buf := slices.Clone(p.src[start:p.pos])
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == '"':
			return p.endString(buf)
		case c == '\\':
			var err error
			if buf, err = p.escape(buf); err != nil {
				return "", err
			}
		case c < 0x20:
			return "", p.fail("control character in string")
		default:
			buf = append(buf, c)
			p.pos++
		}
	}
	return "", p.fail("unterminated string")
}

// unescaped maps the character after the backslash of a short escape, such as n in \n,
// to the byte that the escape encodes; 0 means that there is no such escape.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads the escape at p.pos and appends the character that it encodes.
func (p *parser) escape(buf []byte) ([]byte, error) {
	if p.pos+1 >= len(p.src) {
		return nil, p.fail("unterminated escape")
	}
	c := p.src[p.pos+1]
	p.pos += 2
	if b := unescaped[c]; b != 0 {
		return append(buf, b), nil
	}
	if c != 'u' {
		return nil, p.fail("unknown escape")
	}
	r, err := p.codePoint()
	if err != nil {
		return nil, err
	}
	return utf8.AppendRune(buf, r), nil
}

// codePoint reads the part of an escape after \u: four hex digits, and for a high
// surrogate also the escape of the low one. A surrogate that is not part of such a pair
// is an error.
func (p *parser) codePoint() (rune, error) {
	r, err := p.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if !bytes.HasPrefix(p.src[p.pos:], []byte(`\u`)) {
		return 0, p.fail("lone surrogate")
	}
	p.pos += 2
	low, err := p.hex4()
	if err != nil {
		return 0, err
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, p.fail("lone surrogate")
	}
	return r, nil
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

// number reads a number (RFC 8259 section 6) and appends its canonical form to dst. A
// number outside the range of float64 is an error.
func (p *parser) number(dst []byte) ([]byte, error) {
	start := p.pos
	p.accept('-')
	if !(p.accept('0') || p.digits()) || !p.fraction() || !p.exponent() {
		return nil, p.fail("bad number")
	}
	f, err := strconv.ParseFloat(string(p.src[start:p.pos]), 64)
	if err != nil {
		p.pos = start
		return nil, p.fail("number outside IEEE 754 double")
	}
	return AppendNumber(dst, f)
}

// digits reads a sequence of digits and reports whether it holds at least one.
func (p *parser) digits() bool {
	n := p.pos
	for p.pos < len(p.src) && p.src[p.pos] >= '0' && p.src[p.pos] <= '9' {
		p.pos++
	}
	return p.pos > n
}

// fraction reads a number's fraction if there is one, and reports whether the
// input is valid so far.
func (p *parser) fraction() bool { return !p.accept('.') || p.digits() }

// exponent reads a number's exponent if there is one, and reports whether the
// input is valid so far.
func (p *parser) exponent() bool {
	if !p.accept('e') && !p.accept('E') {
		return true
	}
	if !p.accept('+') {
		p.accept('-')
	}
	return p.digits()
}

var errNumber = errors.New("json: NaN and infinity have no JSON form")

// AppendNumber appends f as ECMAScript's Number::toString does (RFC 8785 section
// 3.2.2.3) and returns the extended slice. For NaN and infinity, which JSON cannot
// express, it returns nil and an error.
func AppendNumber(dst []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errNumber
	}
	if f == 0 {
		return append(dst, '0'), nil // also for minus zero, which RFC 8785 writes as 0
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64), nil
	}
	n := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// Go writes at least two digits of an exponent; ECMAScript writes no leading
	// zero.
	if e := len(dst) - 2; e > n && dst[e] == '0' && (dst[e-1] == '-' || dst[e-1] == '+') {
		dst[e] = dst[e+1]
		dst = dst[:e+1]
	}
	return dst, nil
}

const hexDigits = "0123456789abcdef"

// shortEscapes maps a byte that RFC 8785 (section 3.2.2.2) escapes with one
// character to that character; 0 means that the byte has no short escape.
var shortEscapes = [utf8.RuneSelf]byte{'"': '"', '\\': '\\', '\b': 'b', '\t': 't', '\n': 'n', '\f': 'f', '\r': 'r'}

// AppendString appends s as a canonical JSON string (RFC 8785 section 3.2.2.2)
// and returns the extended slice. s must be valid UTF-8: each invalid byte is
// replaced by U+FFFD, so a caller that must not lose bytes validates first.
func AppendString(dst []byte, s string) []byte {
	dst = append(slices.Grow(dst, len(s)+2), '"')
	if plainText(s) {
		return append(append(dst, s...), '"')
	}
	start := 0 // start of the part that is not yet copied
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
		if c < 0x20 || c == '"' || c == '\\' {
			dst = appendEscape(append(dst, s[start:i]...), c)
			start = i + 1
		}
		i++
	}
	return append(append(dst, s[start:]...), '"')
}

// appendEscape appends the escape of a byte that a JSON string must not contain
// unescaped.
func appendEscape(dst []byte, c byte) []byte {
	if short := shortEscapes[c]; short != 0 {
		return append(dst, '\\', short)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}
