package llm

import (
	"fmt"
	"strconv"
	"strings"
)

// reader reads a valid document once, from front to back. It may recurse, because Check
// has bounded the depth. After err is set, its other state has no meaning.
type reader struct {
	doc []byte
	i   int // of the next byte

	hosted bool // a tool was read that the provider runs

	path [2 * 130]step // to the current member, for errors
	deep int
	err  error
}

type step struct {
	name string // of a member; empty: an element
	at   int
}

func (r *reader) push(s step) {
	if r.err != nil {
		return // the path stays where it is
	}
	if r.deep < len(r.path) {
		r.path[r.deep] = s
	}
	r.deep++
}

// pointer is the JSON pointer (RFC 6901) of what is read.
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

// refuse records what is wrong with the current member; the first error is kept.
func (r *reader) refuse(format string, args ...any) {
	if r.err == nil {
		r.err = &FieldError{r.pointer(), fmt.Sprintf(format, args...)}
	}
}

// next returns the first byte of the value at r.i.
func (r *reader) next() byte {
	r.i = blank(r.doc, r.i)
	return r.doc[r.i]
}

func (r *reader) skip() []byte {
	from := blank(r.doc, r.i)
	r.i = skip(r.doc, from)
	return r.doc[from:r.i]
}

// object reads the object at r.i. It calls take for each member in s, with r.i before
// the value; take returns false to have the value read by its shape, and is also called
// for members of values with the shape s. It calls other, if not nil, for members that
// are not in s; other must read their values.
func (r *reader) object(s *shape, take func(k known) bool, other func(name []byte)) {
	var seen [maxKnown / 64]uint64
	r.i++ // {
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
		r.i = blank(r.doc, end+1) + 1 // past the colon
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
				r.refuse("stands twice in one object")
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

func pass(known) bool { return false }

// value reads a value of shape s: an object, the elements of a list, or a value that is
// skipped.
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

// list reads the list at r.i; each reads the element at r.i.
func (r *reader) list(each func(i int)) {
	r.i++ // [
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

// text reads a string; ok is false for anything else. null is absent.
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

// count reads a number of things: a whole number from 0 to 2147483648, or null,
// which is 0.
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

// again reads the value that begins at i, then restores r's position.
func (r *reader) again(i int, read func()) {
	on := r.i
	r.i = i
	read()
	r.i = on
}
