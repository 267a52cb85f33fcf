package llm

import (
	"fmt"
	"strconv"
	"strings"
)

// reader is a cursor over a valid JSON document. Its methods may recurse, because Check
// has limited the depth. After err is set, the other fields have no meaning.
type reader struct {
	doc []byte
	i   int // index of the next byte

	hosted bool // a tool that the provider runs has been read

	path []step // steps to the current member, for error messages; at most maxPath
	deep int
	err  error
}

// step is one step of the path to a value.
type step struct {
	name string // name of a member; empty for the element with index at in a list
	at   int
}

// maxPath is the number of steps that a path contains at most. Further steps are only counted.
const maxPath = 260

// push adds a step to the path. The caller removes it by decrementing r.deep.
func (r *reader) push(s step) {
	if r.err != nil {
		return // keep the path of the error
	}
	if r.deep < maxPath {
		r.path = append(r.path[:r.deep], s)
	}
	r.deep++
}

// pointer returns the JSON pointer (RFC 6901) of the current value.
func (r *reader) pointer() string {
	var b strings.Builder
	for _, s := range r.path[:min(r.deep, len(r.path))] {
		b.WriteByte('/')
		if s.name == "" {
			b.WriteString(strconv.Itoa(s.at))
			continue
		}
		b.WriteString(escaped.Replace(s.name))
	}
	return b.String()
}

var escaped = strings.NewReplacer("~", "~0", "/", "~1")

// refuse sets r.err to a *FieldError at the current value. Only the first error is kept.
func (r *reader) refuse(format string, args ...any) {
	if r.err == nil {
		r.err = &FieldError{r.pointer(), fmt.Sprintf(format, args...)}
	}
}

// next skips white space and returns the first byte of the next value.
func (r *reader) next() byte {
	r.i = blank(r.doc, r.i)
	return r.doc[r.i]
}

// skip reads a value of any type. It returns its bytes, a slice of the document.
func (r *reader) skip() []byte {
	from := blank(r.doc, r.i)
	r.i = skip(r.doc, from)
	return r.doc[from:r.i]
}

// object reads the object at r.i. It refuses a member of s that occurs twice or differs
// from its name by case. It calls take for each member in s, with r.i before the value.
// If take returns false, object reads the value by the member's shape; if that shape is
// s itself, take is also called for the members of the value. For each member that is
// not in s it calls other, which must read the value; if other is nil, it skips the
// value.
func (r *reader) object(s *shape, take func(k known) bool, other func(name []byte)) {
	var seen [maxKnown / 64]uint64
	r.i++ // skip the opening brace
	for {
		if r.err != nil {
			return
		}
		if r.next() == '}' {
			r.i++
			return
		}
		if r.doc[r.i] == ',' {
			r.i++
			r.next()
		}
		end := closing(r.doc, r.i)
		text := r.doc[r.i : end+1]
		r.i = blank(r.doc, end+1) + 1 // skip the colon
		said := text[1 : len(text)-1]
		if strings.IndexByte(string(said), '\\') >= 0 {
			said = []byte(unquote(text))
		}
		k, found, exact := s.find(said)
		switch {
		case !found && other != nil:
			other(said)
		case !found:
			r.skip()
		case !exact:
			r.push(step{name: string(said)})
			r.refuse("differs from %q by case alone", k.name)
			return
		default:
			r.push(step{name: k.name})
			if seen[k.at/64]&(1<<(k.at%64)) != 0 {
				r.refuse("occurs twice in one object")
				return
			}
			seen[k.at/64] |= 1 << (k.at % 64)
			if !take(k) {
				if k.in == s {
					r.value(s, take)
				} else {
					r.value(k.in, pass)
				}
			}
			r.deep--
		}
	}
}

// pass is a take function for object and value. It returns false, so that each member is
// read by its shape.
func pass(known) bool { return false }

// value reads an object, or the objects in a list, by the shape s, and calls take for
// their members as object does. It skips any other value, and every value if s is nil.
func (r *reader) value(s *shape, take func(k known) bool) {
	switch c := r.next(); {
	case s == nil || c != '{' && c != '[':
		r.skip()
	case c == '{':
		r.object(s, take, nil)
	default:
		r.list(func(int) { r.value(s, take) })
	}
}

// list reads the list at r.i. It calls the function each with the index of every
// element; the function must read the element at r.i.
func (r *reader) list(each func(i int)) {
	r.i++ // skip the opening bracket
	for n := 0; ; n++ {
		if r.err != nil {
			return
		}
		if r.next() == ']' {
			r.i++
			return
		}
		if r.doc[r.i] == ',' {
			r.i++
			r.next()
		}
		r.push(step{at: n})
		each(n)
		r.deep--
	}
}

// text reads a string. ok is false for any other value; null reports whether the value
// is null.
func (r *reader) text() (s string, ok, null bool) {
	raw := r.skip()
	switch raw[0] {
	case '"':
		return unquote(raw), true, false
	case 'n':
		return "", false, true
	}
	return "", false, false
}

// count reads a whole number from 0 to 2147483648. It returns 0 for null and refuses any
// other value.
func (r *reader) count() int64 {
	raw := r.skip()
	if raw[0] == 'n' {
		return 0
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f < 0 || f > 1<<31 || f != float64(int64(f)) {
		r.refuse("want a whole number from 0 to 2147483648")
		return 0
	}
	return int64(f)
}

// again calls read with r.i set to i, then restores r.i.
func (r *reader) again(i int, read func()) {
	on := r.i
	r.i = i
	read()
	r.i = on
}
