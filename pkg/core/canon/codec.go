package canon

// Document names its members once, in ascending order; Append writes and Read
// reads by the same list. Optional members (Opt…) are absent when empty, since
// absence is the only spelling of "nothing" in our documents.
//
// Canonical calls one method of c for each member, with a pointer to the field
// that holds it. It calls them in the same order whatever the fields hold.
type Document interface{ Canonical(c *Codec) }

// Append appends d's canonical bytes to dst and returns the extended slice. d
// is not changed.
func Append(dst []byte, d Document) []byte {
	c := Codec{w: Writer{B: dst}}
	c.object(d)
	return c.w.B
}

// Read fills d from b, which must be d's canonical bytes and nothing else:
// another order, a doubled or unknown name, white space, another spelling of a
// string or number, and an empty optional member are errors. d must be the zero
// value; after an error its content is undefined. Strings are copied; raw
// members alias b.
func Read(b []byte, d Document) error {
	c := Codec{scanner: scanner{in: b}, reading: true}
	c.object(d)
	return c.end("data after the document")
}

// Members calls f for each member of a canonical object in order: its name,
// with the quotes, and its value, both as in doc. Both alias doc. An
// error is returned for what is no object; the values themselves are checked no
// further than that brackets and strings balance.
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

// Codec is one pass over a document, writing or reading. Each method handles
// one member: k is its name, and v points to its value, which a writing pass
// writes and a reading pass sets. A reading pass stops at its first error.
type Codec struct {
	scanner // of a reading pass
	w       Writer
	reading bool
}

// Reading reports whether this is a reading pass.
func (c *Codec) Reading() bool { return c.reading }

// Fail ends a reading pass with err, which Read returns. The first error
// counts; nil is none.
func (c *Codec) Fail(err error) { c.stop(err) }

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

// Const is a string member that always has the value v; any other is an error.
func (c *Codec) Const(k, v string) {
	got := v
	c.Str(k, &got)
	if got != v {
		c.fail(k + " must be " + v)
	}
}

// Int is an integer member. Its magnitude is at most MaxInt.
func (c *Codec) Int(k string, v *int64) {
	if !c.reading {
		c.w.Int(k, *v)
	} else if c.need(k) {
		*v = c.int()
	}
}

// OptInt is an integer member that is absent when zero. Its magnitude is at
// most MaxInt.
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

// OptBool is a boolean member that is absent when false.
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

// Raw is a member of any JSON value. A writing pass writes the bytes of v,
// which must be canonical; a reading pass checks that they are, and sets v to
// bytes that alias the input.
func (c *Codec) Raw(k string, v *[]byte) {
	c.Data(k, v)
	if c.reading && c.err == nil && !IsCanonical(*v) {
		c.fail("member " + k + " is not in canonical form")
	}
}

// Data is Raw, except that a reading pass checks no more of the value than that
// brackets and strings balance: the caller checks the rest.
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

// Strs is an array of strings. A reading pass sets an empty array to an empty
// slice that is not nil.
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

// Doc is a member that is a document of its own.
func (c *Codec) Doc(k string, d Document) {
	if !c.reading {
		c.w.key(k)
		c.object(d)
	} else if c.need(k) {
		c.object(d)
	}
}

// OptDoc is a member that is a document of its own, and is absent when *p is
// nil.
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
