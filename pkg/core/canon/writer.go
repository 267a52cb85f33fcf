package canon

import "strconv"

// MaxInt is the largest magnitude of an integer in a document: an IEEE 754
// double, which RFC 8785 uses for numbers, cannot hold every integer beyond it.
const MaxInt = 1<<53 - 1

// Writer appends one canonical object. Outside this package it is used for objects that
// are never read back; a document that is also read implements Document instead. The
// caller passes member names in ascending order, in ASCII and without characters that
// JSON must escape, which is not checked.
type Writer struct {
	B     []byte // the bytes written so far, without the object's closing brace
	comma bool   // the next member needs a comma before it
}

// Object starts an object after the bytes of dst and returns its writer, which
// extends dst and owns it until End.
func Object(dst []byte) Writer { return Writer{B: append(dst, '{')} }

// End closes the object and returns the bytes, which include the bytes that were passed
// to Object. The writer must not be used afterwards.
func (w *Writer) End() []byte { return append(w.B, '}') }

func (w *Writer) key(k string) {
	if w.comma {
		w.B = append(w.B, ',')
	}
	w.comma = true
	w.B = append(append(append(w.B, '"'), k...), '"', ':')
}

// Str writes a string member. Invalid UTF-8 in v is replaced by U+FFFD, as in
// AppendString.
func (w *Writer) Str(k, v string) { w.key(k); w.B = AppendString(w.B, v) }

// Int writes an integer member. The magnitude of v must not exceed MaxInt, which
// is not checked.
func (w *Writer) Int(k string, v int64) { w.key(k); w.B = strconv.AppendInt(w.B, v, 10) }

// Raw writes a member whose value v is already canonical, which is not checked; v
// is copied.
func (w *Writer) Raw(k string, v []byte) { w.key(k); w.B = append(w.B, v...) }

// Strs writes an array of strings. A nil slice is written as an empty array.
func (w *Writer) Strs(k string, v []string) {
	w.key(k)
	w.B = append(w.B, '[')
	for i, s := range v {
		if i > 0 {
			w.B = append(w.B, ',')
		}
		w.B = AppendString(w.B, s)
	}
	w.B = append(w.B, ']')
}
