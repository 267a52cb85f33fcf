package canon

import (
	"slices"
	"strconv"
	"unicode/utf8"
)

// Kind is a type of JSON value that a Shape may demand.
type Kind byte

// Kinds of values. A FreeKind value is any object.
const (
	FreeKind Kind = iota
	StringKind
	IntegerKind
	BooleanKind
	ArrayKind
	ObjectKind
)

// Forms that a string may have to have.
const (
	AnyForm    byte = iota
	DigestForm      // sha256: and 64 hex characters
	TimeForm        // 2006-01-02T15:04:05.000Z, digits only: not that the day exists
)

// Shape is what a JSON Schema of the subset that events use demands of a value.
type Shape struct {
	Kind    Kind
	Members []Member // of an object, sorted by name; it has no others
	Item    *Shape   // of an array
	Enum    []string // of a string; empty = any
	Form    byte     // of a string
	Min     int64    // of an integer
	Bounded bool     // whether Min applies
}

// Member is one member of an object. An optional one is absent when its value
// would be an empty string or array, zero or false.
type Member struct {
	Name     string
	Required bool
	Shape    *Shape
}

// Check returns an error unless b is the canonical bytes of one value of this
// shape.
func (s *Shape) Check(b []byte) error {
	c := Codec{reading: true, in: b}
	c.shape(s, "data", true)
	if c.err == nil && c.pos != len(b) {
		c.fail("data after the value")
	}
	return c.err
}

// shape reads one value; what names it in errors, and empty says whether it may
// be empty.
func (c *Codec) shape(s *Shape, what string, empty bool) {
	if c.err != nil {
		return
	}
	switch s.Kind {
	case FreeKind:
		from := c.pos
		if c.skip(); c.err == nil && (from >= len(c.in) || c.in[from] != '{' || !IsCanonical(c.in[from:c.pos])) {
			c.pos = from
			c.fail(what + ": want an object in canonical form")
		}
	case StringKind:
		c.stringOf(s, what, empty)
	case IntegerKind:
		if n := c.int(); c.err == nil && (s.Bounded && n < s.Min || n == 0 && !empty) {
			c.fail(what + ": out of range, or an empty optional member")
		}
	case BooleanKind:
		c.boolean(what, empty)
	case ArrayKind:
		n := 0
		c.array(func() { c.shape(s.Item, what, true); n++ })
		if n == 0 && !empty {
			c.fail("empty optional member " + what)
		}
	case ObjectKind:
		c.members(s, what)
	}
}

func (c *Codec) members(s *Shape, what string) {
	outer := c.first
	c.expect('{')
	c.first = true
	for i := range s.Members {
		m := &s.Members[i]
		if c.has(m.Name) {
			c.shape(m.Shape, m.Name, m.Required)
		} else if m.Required {
			c.fail(what + ": expected member " + strconv.Quote(m.Name))
		}
		if c.err != nil {
			return
		}
	}
	if c.pos < len(c.in) && c.in[c.pos] != '}' {
		c.fail(what + ": a member that the schema does not name, or not in its place")
		return
	}
	c.expect('}')
	c.first = outer
}

func (c *Codec) boolean(what string, empty bool) {
	rest := c.in[min(c.pos, len(c.in)):]
	switch {
	case len(rest) >= 4 && string(rest[:4]) == "true":
		c.pos += 4
	case empty && len(rest) >= 5 && string(rest[:5]) == "false":
		c.pos += 5
	default:
		c.fail(what + ": want a boolean, which is absent if optional and false")
	}
}

func (c *Codec) stringOf(s *Shape, what string, empty bool) {
	v := c.raw()
	if c.err != nil {
		return
	}
	switch {
	case len(v) == 0 && !empty:
		c.fail("empty optional member " + what)
	case len(s.Enum) > 0 && !slices.ContainsFunc(s.Enum, func(e string) bool { return e == string(v) }):
		c.fail(what + ": not one of the values that the schema lists")
	case s.Form == DigestForm && !isForm("sha256:hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh", v):
		c.fail(what + ": not a digest")
	case s.Form == TimeForm && !isForm("dddd-dd-ddTdd:dd:dd.dddZ", v):
		c.fail(what + ": not a time")
	}
}

// isForm reports whether v is form, in which h stands for a lower-case hex
// digit and d for a digit, but for the form's own letters before a colon.
func isForm(form string, v []byte) bool {
	if len(v) != len(form) {
		return false
	}
	for i, b := range v {
		digit := b >= '0' && b <= '9'
		switch f := form[i]; {
		case f == 'd':
			if !digit {
				return false
			}
		case f == 'h' && i >= 7:
			if !digit && (b < 'a' || b > 'f') {
				return false
			}
		case f != b:
			return false
		}
	}
	return true
}

// raw reads a string in its canonical spelling and returns the bytes between
// the quotes, which alias the input, escapes and all.
func (c *Codec) raw() []byte {
	c.expect('"')
	if c.err != nil {
		return nil
	}
	ascii := true
	for p := c.pos; p < len(c.in); p++ {
		switch b := c.in[p]; {
		case b == '"':
			v := c.in[c.pos:p]
			c.pos = p + 1
			if !ascii && !utf8.Valid(v) {
				c.fail("invalid UTF-8")
			}
			return v
		case b == '\\':
			from := c.pos
			c.escaped(from)
			return c.in[from:max(from, min(c.pos, len(c.in))-1)]
		case b < 0x20:
			c.pos = p
			c.fail("control character in string")
			return nil
		case b >= utf8.RuneSelf:
			ascii = false
		}
	}
	c.fail("unterminated string")
	return nil
}
