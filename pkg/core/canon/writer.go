package canon

import "strconv"

// MaxInt is the largest integer magnitude a document may hold: beyond it an
// IEEE 754 double, and so RFC 8785, loses precision.
const MaxInt = 1<<53 - 1

// Writer appends one canonical object with a static key order. Keys must be
// ASCII and given in ascending order; a test of every contract checks that.
// Empty optional members are left out (Opt*), since RFC 8785 has no null rule
// of its own and absence is the only spelling of "nothing" in our documents.
type Writer struct {
	B     []byte
	comma bool
}

// Object starts an object behind dst.
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

// OptStr writes a string member unless it is empty.
func (w *Writer) OptStr(k, v string) {
	if v != "" {
		w.Str(k, v)
	}
}

// Int writes an integer member. |v| must not exceed MaxInt.
func (w *Writer) Int(k string, v int64) { w.key(k); w.B = strconv.AppendInt(w.B, v, 10) }

// OptInt writes an integer member unless it is zero.
func (w *Writer) OptInt(k string, v int64) {
	if v != 0 {
		w.Int(k, v)
	}
}

// OptBool writes true, or nothing.
func (w *Writer) OptBool(k string, v bool) {
	if v {
		w.key(k)
		w.B = append(w.B, "true"...)
	}
}

// Raw writes a member whose value is already canonical.
func (w *Writer) Raw(k string, v []byte) { w.key(k); w.B = append(w.B, v...) }

// OptRaw writes an already canonical member unless it is empty.
func (w *Writer) OptRaw(k string, v []byte) {
	if len(v) > 0 {
		w.Raw(k, v)
	}
}

// Append writes a member by an append function.
func (w *Writer) Append(k string, f func([]byte) []byte) { w.key(k); w.B = f(w.B) }

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

// OptStrs writes an array of strings unless it is empty.
func (w *Writer) OptStrs(k string, v []string) {
	if len(v) > 0 {
		w.Strs(k, v)
	}
}

// List writes an array of documents unless it is empty.
func List[T any](w *Writer, k string, v []T, f func(T, []byte) []byte) {
	if len(v) == 0 {
		return
	}
	w.key(k)
	w.B = append(w.B, '[')
	for i := range v {
		if i > 0 {
			w.B = append(w.B, ',')
		}
		w.B = f(v[i], w.B)
	}
	w.B = append(w.B, ']')
}
