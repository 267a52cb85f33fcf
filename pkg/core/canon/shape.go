package canon

import (
	"slices"
	"strconv"
)

// Kind is a type of JSON value that a Shape can require.
type Kind byte

// The kinds of values. FreeKind accepts any object.
const (
	FreeKind Kind = iota
	StringKind
	IntegerKind
	BooleanKind
	ArrayKind
	ObjectKind
)

// The forms that a Shape can require of a string.
const (
	AnyForm    byte = iota
	DigestForm      // sha256: and 64 lower-case hex digits
	TimeForm        // 2006-01-02T15:04:05.000Z; only digits and separators are checked, not the calendar
)

// Shape describes the values that a JSON Schema accepts, for the subset of JSON Schema
// that event schemas use. It is read-only once built, and may then be used concurrently.
type Shape struct {
	Kind    Kind
	Members []Member // members of an object, sorted by name; other members are errors
	Item    *Shape   // shape of the items of an array
	Enum    []string // values that a string may have, written with the escapes of canonical JSON; empty = any
	Form    byte     // form that a string must have
	Min     int64    // smallest permitted integer, if Bounded
	Bounded bool     // whether Min applies
}

// Member is one member of an object. An optional member is absent when its value
// would be an empty string or array, zero or false.
type Member struct {
	Name     string
	Required bool
	Shape    *Shape
}

// Check returns an error unless b holds the canonical bytes of exactly one value
// of this shape. It neither changes nor retains b. The shape must be complete:
// Item is set where Kind is ArrayKind, and Shape in every Member.
func (s *Shape) Check(b []byte) error {
	c := checker{scanner{in: b}}
	c.value(s, "data", true)
	return c.end("data after the value")
}

// checker compares canonical JSON with a shape. In its methods, the parameter what is
// the name of the value in errors. The parameter empty permits an empty string or array,
// zero and false; it is false for the values of optional members.
type checker struct{ scanner }

func (c *checker) value(s *Shape, what string, empty bool) {
	if c.err != nil {
		return
	}
	switch s.Kind {
	case FreeKind:
		c.free(what)
	case StringKind:
		c.text(s, what, empty)
	case IntegerKind:
		c.integer(s, what, empty)
	case BooleanKind:
		c.boolean(what, empty)
	case ArrayKind:
		n := 0
		c.array(func() { c.value(s.Item, what, true); n++ })
		if n == 0 && !empty {
			c.fail("empty optional member " + what)
		}
	case ObjectKind:
		c.object(s, what)
	}
}

// free reads an object of any content, which must be canonical throughout.
func (c *checker) free(what string) {
	from := c.pos
	if c.skip(); c.err != nil {
		return
	}
	if from >= len(c.in) || c.in[from] != '{' || !IsCanonical(c.in[from:c.pos]) {
		c.pos = from
		c.fail(what + ": want an object in canonical form")
	}
}

func (c *checker) integer(s *Shape, what string, empty bool) {
	n := c.int()
	if s.Bounded && n < s.Min || n == 0 && !empty {
		c.fail(what + ": out of range, or an empty optional member")
	}
}

// object reads an object with the members of the shape, of which only optional ones may
// be absent. Members are read in the order of the shape, so a misplaced or unknown
// member remains unread before the closing brace and is an error.
func (c *checker) object(s *Shape, what string) {
	outer := c.first
	c.expect('{')
	c.first = true
	for i := range s.Members {
		m := &s.Members[i]
		if c.has(m.Name) {
			c.value(m.Shape, m.Name, m.Required)
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

func (c *checker) boolean(what string, empty bool) {
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

func (c *checker) text(s *Shape, what string, empty bool) {
	v := c.raw()
	if c.err != nil {
		return
	}
	switch {
	case len(v) == 0 && !empty:
		c.fail("empty optional member " + what)
	case len(s.Enum) > 0 && !slices.ContainsFunc(s.Enum, func(e string) bool { return e == string(v) }):
		c.fail(what + ": not one of the values that the schema lists")
	case s.Form == DigestForm && !isDigest(v):
		c.fail(what + ": not a digest")
	case s.Form == TimeForm && !isTime(v):
		c.fail(what + ": not a time")
	}
}

// isDigest reports whether v is "sha256:" and 64 lower-case hex digits.
func isDigest(v []byte) bool {
	const prefix = "sha256:"
	if len(v) != len(prefix)+64 || string(v[:len(prefix)]) != prefix {
		return false
	}
	for _, b := range v[len(prefix):] {
		if !isDigit(b) && (b < 'a' || b > 'f') {
			return false
		}
	}
	return true
}

// isTime reports whether v has the form of a time; each d in form matches any
// digit.
func isTime(v []byte) bool {
	const form = "dddd-dd-ddTdd:dd:dd.dddZ"
	if len(v) != len(form) {
		return false
	}
	for i, b := range v {
		if want := form[i]; want == 'd' && !isDigit(b) || want != 'd' && want != b {
			return false
		}
	}
	return true
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }
