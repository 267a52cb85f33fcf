package canon

import "strconv"

// MaxInt is the largest integer magnitude a document may hold: beyond it an
// IEEE 754 double, and so RFC 8785, loses precision.
const MaxInt = 1<<53 - 1

// Writer appends one canonical object that is only ever written. Member names
// must be ASCII and given in ascending order, which is not checked. Documents
// that are also read implement Document instead.
type Writer struct {
	B     []byte // what was written so far; the object is complete after End
	comma bool   // the next member needs one
}

// Object starts an object behind dst, which the writer extends.
func Object(dst []byte) Writer { return Writer{B: append(dst, '{')} }

// End closes the object and returns the bytes.
func (w *Writer) End() []byte { return append(w.B, '}') }

func (w *Writer) key(k string) {
	if w.comma {
		w.B = append(w.B, ',')
	}
	w.comma = true
	w.B = append(append(append(w.B, '"'), k...), '"', ':')
}

// Str writes a string member.
func (w *Writer) Str(k, v string) { w.key(k); w.B = AppendString(w.B, v) }

// Int writes an integer member. |v| must not exceed MaxInt.
func (w *Writer) Int(k string, v int64) { w.key(k); w.B = strconv.AppendInt(w.B, v, 10) }

// Raw writes a member whose value is already canonical.
func (w *Writer) Raw(k string, v []byte) { w.key(k); w.B = append(w.B, v...) }

// Strs writes an array of strings.
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
