package canon

import "sync"

// Document is a value with a canonical form. It lists its members once, in ascending
// order of their names; Append and Read use the same list, so that they agree on the
// members and their order. An optional member (the methods Opt…, and the functions
// OptDoc and List) is absent if it has no value; an empty string, zero, false or an
// empty array in its place is an error.
//
// Canonical calls, for each member, one method of c or one of the functions OptDoc and
// List, and passes a pointer to the variable that holds the value; Const takes the value
// itself. Canonical makes the same calls in the same order for every content of the
// document.
type Document interface{ Canonical(c *Codec) }

// Append appends the canonical bytes of d to dst and returns the extended slice. It does
// not change d. Raw and Data members must already be canonical, and the magnitude of
// integers must not exceed MaxInt; neither is checked. Invalid UTF-8 in strings is
// replaced by U+FFFD.
func Append(dst []byte, d Document) []byte {
	c := Codec{w: Writer{B: dst}}
	c.object(d)
	return c.w.B
}

// Read fills d from b, which must hold the canonical bytes of d and nothing else.
// Another order, a duplicate or unknown name, white space, another form of a string or
// number, and an empty optional member are errors, so that one document has one digest;
// only the values of Data members are not checked to be canonical. Raw and Data members
// that are nested too deeply (see MaxDepth) are errors, too. d must be the zero value;
// after an error its content is undefined. Strings are copied; Text, Raw and Data
// members alias b.
func Read(b []byte, d Document) error {
	c := codecs.Get().(*Codec)
	defer c.release()
	c.scanner, c.reading = scanner{in: b}, true
	c.object(d)
	return c.end("data after the document")
}

// With calls f with the canonical bytes of d, which f must not retain. It is Append for
// bytes that are needed for a moment, such as those of a digest; it reuses the memory of
// earlier calls.
func With(d Document, f func(b []byte)) {
	c := codecs.Get().(*Codec)
	defer c.release()
	c.object(d)
	f(c.w.B)
}

// codecs holds codecs, as *Codec, without content but with the capacity of w.B.
var codecs = sync.Pool{New: func() any { return new(Codec) }}

// maxScratch is the greatest capacity of w.B that release retains, so that codecs does
// not hold the memory of large documents.
const maxScratch = 32 << 10

// release puts c back into codecs. c must not be used afterwards.
func (c *Codec) release() {
	buf := c.w.B[:0]
	if cap(buf) > maxScratch {
		buf = nil
	}
	*c = Codec{w: Writer{B: buf}}
	codecs.Put(c)
}

// Members calls f for each member of the canonical object doc, in order, with the quoted
// name and the value, both byte for byte as in doc. The two slices alias doc. Members
// returns an error if doc is not an object; f may have been called before. Of names and
// values, Members checks only that strings end, that as many brackets close as open, and
// that the nesting is not too deep. It passes over a member without a value.
func Members(doc []byte, f func(name, value []byte)) error {
	s := scanner{in: doc, depth: 1}
	s.expect('{')
	for first := true; s.err == nil && s.pos < len(doc) && doc[s.pos] != '}'; first = false {
		if !first {
			s.expect(',')
		}
		from := s.pos
		s.skip()
		to := s.pos
		s.expect(':')
		value := s.pos
		if s.skip(); s.err == nil && value < s.pos {
			f(doc[from:to], doc[value:s.pos])
		}
	}
	s.expect('}')
	return s.end("data after the document")
}

// Codec is one pass over a document, which either writes or reads. Each method with a
// parameter k handles one member: k is the member's name, and the second argument is its
// value, which a writing pass writes and a reading pass sets. A reading pass stops at
// its first error, and its later calls change nothing. A Codec is used by one goroutine.
type Codec struct {
	scanner // reads the input in a reading pass
	w       Writer
	reading bool
}

// Reading reports whether this pass reads. A document whose field has another form than
// its JSON member converts the field before a writing pass and after a reading one.
func (c *Codec) Reading() bool { return c.reading }

// Fail ends a reading pass with err, which Read then returns unless an earlier error was
// recorded. A nil err is ignored.
func (c *Codec) Fail(err error) { c.stop(err) }

// object writes or reads one document with its braces. It restores the state of
// the enclosing object afterwards.
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

// Str writes or reads a string member, which is present even when it is empty.
// Reading copies the string.
func (c *Codec) Str(k string, v *string) {
	if !c.reading {
		c.w.Str(k, *v)
	} else if c.need(k) {
		*v = c.str()
	}
}

// OptStr writes or reads a string member that is absent when empty; an empty
// string in the input is an error.
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

// Const writes or reads a string member that always has the value v; a reading
// pass fails for any other value. v must not contain characters that JSON must escape.
func (c *Codec) Const(k, v string) {
	if !c.reading {
		c.w.Str(k, v)
	} else if c.need(k) && string(c.raw()) != v {
		c.fail(k + " must be " + v)
	}
}

// Text is like Str for a string without characters that JSON must escape. A reading pass
// does not copy it: it sets v to the bytes between the quotes, with their escapes, which
// alias the input.
func (c *Codec) Text(k string, v *[]byte) {
	if !c.reading {
		c.w.key(k)
		c.w.B = append(append(append(c.w.B, '"'), *v...), '"')
	} else if c.need(k) {
		*v = c.raw()
	}
}

// Int writes or reads an integer member. Its magnitude must not exceed MaxInt; a reading
// pass fails beyond it, a writing pass does not check it.
func (c *Codec) Int(k string, v *int64) {
	if !c.reading {
		c.w.Int(k, *v)
	} else if c.need(k) {
		*v = c.int()
	}
}

// OptInt is like Int, except that the member is absent when zero; a zero in the input is
// an error.
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

// OptBool writes or reads a boolean member that is absent when false; the value
// false in the input is an error.
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

// Raw writes or reads a member that holds any JSON value. A writing pass copies
// the bytes of v, which must be canonical. A reading pass checks that the value
// is canonical, and sets v to bytes that alias the input.
func (c *Codec) Raw(k string, v *[]byte) {
	c.Data(k, v)
	if c.reading && c.err == nil && !IsCanonical(*v) {
		c.fail("member " + k + " is not in canonical form")
	}
}

// Data is like Raw, except that a reading pass checks only that strings end, that as
// many brackets close as open, and that the nesting is not too deep; if the value is
// missing, v becomes empty. The caller must check the value before it relies on it.
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

// Strs writes or reads an array of strings, which is present even when it is
// empty. A reading pass sets an empty array to an empty slice that is not nil.
func (c *Codec) Strs(k string, v *[]string) {
	if !c.reading {
		c.w.Strs(k, *v)
	} else if c.need(k) {
		*v = []string{}
		c.array(func() { *v = append(*v, c.str()) })
	}
}

// OptStrs writes or reads an array of strings that is absent when empty; an empty array
// in the input is an error. A reading pass appends to *v.
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

// Doc writes or reads a member that is itself a document. The nested document
// counts towards MaxDepth.
func (c *Codec) Doc(k string, d Document) {
	if !c.reading {
		c.w.key(k)
		c.object(d)
	} else if c.need(k) {
		c.object(d)
	}
}

// OptDoc writes or reads a member that is itself a document and is absent when *p is
// nil. A reading pass allocates the document. OptDoc is a function because methods
// cannot have type parameters.
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

// List writes or reads an array of documents that is absent when empty; an empty
// array in the input is an error. A reading pass appends to *v.
func List[T any, P interface {
	*T
	Document
}](c *Codec, k string, v *[]T) {
	switch {
	case c.reading && c.has(k):
		c.array(func() {
			var t T
			c.object(P(&t))
			*v = append(*v, t)
		})
		if len(*v) == 0 {
			c.fail("empty optional member " + k)
		}
	case !c.reading && len(*v) > 0:
		c.w.key(k)
		c.w.B = append(c.w.B, '[')
		for i := range *v {
			if i > 0 {
				c.w.B = append(c.w.B, ',')
			}
			c.object(P(&(*v)[i]))
		}
		c.w.B = append(c.w.B, ']')
	}
}
