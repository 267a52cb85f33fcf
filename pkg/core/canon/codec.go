package canon

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Document names its members once, in ascending order; Append writes and Read
// reads by the same list. Optional members (Opt…) are absent when empty, since
// absence is the only spelling of "nothing" in our documents.
type Document interface{ Canonical(c *Codec) }

// Append appends d's canonical bytes to dst.
func Append(dst []byte, d Document) []byte {
	c := Codec{w: Writer{B: dst}}
	c.object(d)
	return c.w.B
}

// Read fills d from b, which must be d's canonical bytes and nothing else:
// another order, a doubled or unknown name, white space, another spelling of a
// string or number, an empty optional member are errors. Strings are copied;
// raw members alias b.
func Read(b []byte, d Document) error {
	c := Codec{reading: true, in: b}
	c.object(d)
	if c.err == nil && c.pos != len(b) {
		c.fail("data after the document")
	}
	return c.err
}

// Members shows f each member of a canonical object as it is spelled, names in
// their quotes; both alias doc.
func Members(doc []byte, f func(name, value []byte)) error {
	c := Codec{reading: true, in: doc, depth: 1}
	c.expect('{')
	for first := true; c.err == nil && c.pos < len(doc) && doc[c.pos] != '}'; first = false {
		if !first {
			c.expect(',')
		}
		from := c.pos
		c.skip()
		to := c.pos
		c.expect(':')
		value := c.pos
		if c.skip(); c.err == nil && value < c.pos {
			f(doc[from:to], doc[value:c.pos])
		}
	}
	c.expect('}')
	if c.err == nil && c.pos != len(doc) {
		c.fail("data after the document")
	}
	return c.err
}

// Codec is one pass over a document, writing or reading.
type Codec struct {
	w       Writer
	reading bool
	in      []byte
	pos     int
	first   bool
	depth   int // of objects and arrays open at pos
	err     error
}

// enter counts an object or array that begins at pos.
func (c *Codec) enter(more int) {
	if c.depth+more > MaxDepth {
		c.fail("nesting deeper than 128")
	}
}

// Reading tells which pass this is.
func (c *Codec) Reading() bool { return c.reading }

// Fail ends a reading pass with an error; the first one counts.
func (c *Codec) Fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *Codec) fail(reason string) { c.Fail(&Error{c.pos, reason}) }

func (c *Codec) expect(b byte) {
	if c.err == nil && (c.pos >= len(c.in) || c.in[c.pos] != b) {
		c.fail("not in canonical form: expected " + strconv.QuoteRune(rune(b)))
		return
	}
	c.pos++
}

func (c *Codec) object(d Document) {
	if !c.reading {
		outer := c.w.comma
		c.w.B, c.w.comma = append(c.w.B, '{'), false
		d.Canonical(c)
		c.w.B, c.w.comma = append(c.w.B, '}'), outer
		return
	}
	outer := c.first
	c.expect('{')
	c.first = true
	c.depth++
	d.Canonical(c)
	c.depth--
	c.expect('}')
	c.first = outer
}

// has moves behind the name k if it comes next.
func (c *Codec) has(k string) bool {
	if c.err != nil {
		return false
	}
	p, in := c.pos, c.in
	if !c.first {
		if p >= len(in) || in[p] != ',' {
			return false
		}
		p++
	}
	if len(in)-p < len(k)+3 || in[p] != '"' || string(in[p+1:p+1+len(k)]) != k || in[p+1+len(k)] != '"' || in[p+2+len(k)] != ':' {
		return false
	}
	c.pos, c.first = p+len(k)+3, false
	return true
}

func (c *Codec) need(k string) bool {
	if c.has(k) {
		return true
	}
	if c.err == nil {
		c.Fail(fmt.Errorf("json: not in canonical form: expected member %q at byte %d", k, c.pos))
	}
	return false
}

// Str is a string member.
func (c *Codec) Str(k string, v *string) {
	if !c.reading {
		c.w.Str(k, *v)
	} else if c.need(k) {
		*v = c.str()
	}
}

// OptStr is a string member that is absent when empty.
func (c *Codec) OptStr(k string, v *string) {
	switch {
	case c.reading && c.has(k):
		if *v = c.str(); *v == "" {
			c.fail("empty optional member " + k)
		}
	case !c.reading && *v != "":
		c.w.Str(k, *v)
	}
}

// Const is a member that always has this value.
func (c *Codec) Const(k, v string) {
	got := v
	c.Str(k, &got)
	if got != v {
		c.fail(k + " must be " + v)
	}
}

// Int is an integer member.
func (c *Codec) Int(k string, v *int64) {
	if !c.reading {
		c.w.Int(k, *v)
	} else if c.need(k) {
		*v = c.int()
	}
}

// OptInt is an integer member that is absent when zero.
func (c *Codec) OptInt(k string, v *int64) {
	switch {
	case c.reading && c.has(k):
		if *v = c.int(); *v == 0 {
			c.fail("empty optional member " + k)
		}
	case !c.reading && *v != 0:
		c.w.Int(k, *v)
	}
}

// OptBool is true, or absent.
func (c *Codec) OptBool(k string, v *bool) {
	switch {
	case c.reading && c.has(k):
		if *v = len(c.in)-c.pos >= 4 && string(c.in[c.pos:c.pos+4]) == "true"; !*v {
			c.fail("expected true")
		}
		c.pos += 4
	case !c.reading && *v:
		c.w.Raw(k, []byte("true"))
	}
}

// Raw is a member of any canonical value, kept as it is.
func (c *Codec) Raw(k string, v *[]byte) {
	c.Data(k, v)
	if c.reading && c.err == nil && !IsCanonical(*v) {
		c.fail("member " + k + " is not in canonical form")
	}
}

// Data is Raw without a check of what is inside: whoever reads on checks it.
func (c *Codec) Data(k string, v *[]byte) {
	if !c.reading {
		c.w.Raw(k, *v)
	} else if c.need(k) {
		from := c.pos
		c.skip()
		if c.err == nil {
			*v = c.in[from:c.pos:c.pos]
		}
	}
}

// Strs is an array of strings.
func (c *Codec) Strs(k string, v *[]string) {
	if !c.reading {
		c.w.Strs(k, *v)
	} else if c.need(k) {
		*v = []string{}
		c.array(func() { *v = append(*v, c.str()) })
	}
}

// OptStrs is an array of strings that is absent when empty.
func (c *Codec) OptStrs(k string, v *[]string) {
	switch {
	case c.reading && c.has(k):
		c.array(func() { *v = append(*v, c.str()) })
		if len(*v) == 0 {
			c.fail("empty optional member " + k)
		}
	case !c.reading && len(*v) > 0:
		c.w.Strs(k, *v)
	}
}

// Doc is a member document.
func (c *Codec) Doc(k string, d Document) {
	if !c.reading {
		c.w.key(k)
		c.object(d)
	} else if c.need(k) {
		c.object(d)
	}
}

// OptDoc is a member document that is absent when nil.
func OptDoc[T any, P interface {
	*T
	Document
}](c *Codec, k string, p **T) {
	switch {
	case c.reading && c.has(k):
		*p = new(T)
		c.object(P(*p))
	case !c.reading && *p != nil:
		c.w.key(k)
		c.object(P(*p))
	}
}

// List is an array of documents that is absent when empty.
func List[T any, P interface {
	*T
	Document
}](c *Codec, k string, v *[]T) {
	if !c.reading {
		if len(*v) == 0 {
			return
		}
		c.w.key(k)
		c.w.B = append(c.w.B, '[')
		for i := range *v {
			if i > 0 {
				c.w.B = append(c.w.B, ',')
			}
			c.object(P(&(*v)[i]))
		}
		c.w.B = append(c.w.B, ']')
		return
	}
	if !c.has(k) {
		return
	}
	c.array(func() {
		var t T
		c.object(P(&t))
		*v = append(*v, t)
	})
	if len(*v) == 0 {
		c.fail("empty optional member " + k)
	}
}

func (c *Codec) array(item func()) {
	c.expect('[')
	c.depth++
	defer func() { c.depth-- }()
	if c.err == nil && c.pos < len(c.in) && c.in[c.pos] == ']' {
		c.pos++
		return
	}
	for c.err == nil {
		item()
		if c.err == nil && c.pos < len(c.in) && c.in[c.pos] == ',' {
			c.pos++
			continue
		}
		c.expect(']')
		return
	}
}

// str reads a string in its canonical spelling.
func (c *Codec) str() string {
	c.expect('"')
	if c.err != nil {
		return ""
	}
	from, in := c.pos, c.in
	ascii := true
	for p := from; p < len(in); p++ {
		switch b := in[p]; {
		case b == '"':
			s := string(in[from:p])
			c.pos = p + 1
			if !ascii && !utf8.ValidString(s) {
				c.fail("invalid UTF-8")
			}
			return s
		case b == '\\':
			return c.escaped(from)
		case b < 0x20:
			c.pos = p
			c.fail("control character in string")
			return ""
		case b >= utf8.RuneSelf:
			ascii = false
		}
	}
	c.fail("unterminated string")
	return ""
}

// escaped reads a string that holds escapes, and checks that they are the
// ones RFC 8785 writes.
func (c *Codec) escaped(from int) string {
	in, end := c.in, from
	for ; end < len(in) && in[end] != '"'; end++ {
		if in[end] == '\\' {
			end++
		}
	}
	if end >= len(in) {
		c.fail("unterminated string")
		return ""
	}
	out := make([]byte, 0, end-from)
	start := from // of what is still to be copied
	for p := from; p < end; p++ {
		if in[p] < 0x20 {
			c.pos = p
			c.fail("control character in string")
			return ""
		}
		if in[p] != '\\' {
			continue
		}
		out = append(out, in[start:p]...)
		b, n := unescape(in[p+1 : end])
		if n == 0 {
			c.pos = p
			c.fail("string is not in canonical form")
			return ""
		}
		out = append(out, b)
		p += n
		start = p + 1
	}
	out = append(out, in[start:end]...)
	c.pos = end + 1
	if !utf8.Valid(out) {
		c.fail("invalid UTF-8")
	}
	return string(out)
}

// unescape reads what stands behind a backslash: the byte it means, and its
// length, which is 0 where RFC 8785 would have written something else.
func unescape(in []byte) (b byte, n int) {
	switch in[0] {
	case '"', '\\':
		return in[0], 1
	case 'b':
		return '\b', 1
	case 't':
		return '\t', 1
	case 'n':
		return '\n', 1
	case 'f':
		return '\f', 1
	case 'r':
		return '\r', 1
	case 'u':
		if len(in) < 5 {
			return 0, 0
		}
		hi, lo := in[3]-'0', in[4]-'0'
		if in[4] >= 'a' && in[4] <= 'f' {
			lo = in[4] - 'a' + 10
		}
		if in[1] != '0' || in[2] != '0' || hi > 1 || lo > 15 || lo > 9 && in[4] < 'a' {
			return 0, 0
		}
		b = hi<<4 | lo
		if b == '\b' || b == '\t' || b == '\n' || b == '\f' || b == '\r' {
			return 0, 0
		}
		return b, 5
	}
	return 0, 0
}

var errInt = errors.New("json: integer outside ±(2^53 − 1) or not in canonical form")

func (c *Codec) int() int64 {
	from := c.pos
	for c.pos < len(c.in) && (c.in[c.pos] == '-' || c.in[c.pos] >= '0' && c.in[c.pos] <= '9') {
		c.pos++
	}
	s := string(c.in[from:c.pos])
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > MaxInt || n < -MaxInt || strconv.FormatInt(n, 10) != s {
		c.Fail(errInt)
	}
	return n
}

// skip moves behind one value without looking into it closely: brackets and
// strings balance, nothing more.
func (c *Codec) skip() {
	depth := 0
	for c.err == nil && c.pos < len(c.in) {
		b := c.in[c.pos]
		if depth == 0 && closes(b) {
			return
		}
		switch b {
		case '"':
			c.skipString()
		case '{', '[':
			depth++
			c.enter(depth)
		case '}', ']':
			depth--
		default:
			c.pos++
			continue
		}
		if c.pos++; depth == 0 {
			return
		}
	}
	if depth != 0 {
		c.fail("unterminated value")
	}
}

// closes reports whether b ends a value that is not a string, an object or an
// array: it belongs to what holds the value.
func closes(b byte) bool { return b == ',' || b == '}' || b == ']' }

// skipString moves to the quote that ends the string whose first quote is at
// pos, or, where none does, to the last byte.
func (c *Codec) skipString() {
	for c.pos++; c.pos < len(c.in) && c.in[c.pos] != '"'; c.pos++ {
		if c.in[c.pos] == '\\' {
			c.pos++
		}
	}
	if c.pos >= len(c.in) {
		c.Fail(&Error{len(c.in), "unterminated value"})
		c.pos = len(c.in) - 1
	}
}
