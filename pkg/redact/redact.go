// Package redact removes the values of secrets from bytes that are about to be recorded:
// outputs, errors, logs and live frames of code that received the secrets. A value is
// found as it is and in the encodings that programs commonly apply: escapes of JSON, C,
// Go and Python strings, percent-encoding and HTML entities, each of them partial,
// nested or mixed; base64 and base64url at any alignment, padded or not, broken into
// lines; hexadecimal of either case. A program can still hide a value on purpose, for
// example by reversing, splitting or encrypting it; docs/explanation/limits.md lists the
// forms that are not found. For a given set of secrets, the time of a search is linear
// in the length of the input, apart from sorting the occurrences.
package redact

import (
	"bytes"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// Redactor removes a set of secrets. It is immutable and safe for concurrent use. A nil
// Redactor removes nothing.
type Redactor struct{ secrets []*secret }

// MinLen is the minimum length, in bytes, of a value that is searched for.
const MinLen = 4

// With returns a Redactor for r's secrets and one more. The value is searched for
// without the white space around it. If it has several lines, each line of at least 16
// bytes is also searched for separately, and so is each string of at least 16 bytes in a
// value that is a JSON object of strings, except those of the members domain, name, path,
// url and username. A value of less than MinLen bytes is ignored; a value of less than 6
// bytes is found only if no letter or digit adjoins it.
func (r *Redactor) With(name, value string) *Redactor {
	s := compiled(name, value)
	if s == nil || r != nil && slices.Contains(r.secrets, s) {
		return r
	}
	if r == nil {
		return &Redactor{[]*secret{s}}
	}
	return &Redactor{append(slices.Clip(slices.Clone(r.secrets)), s)}
}

// Text returns b with each secret replaced by "[secret:NAME]". Overlapping secrets are
// replaced as one, with the name of the first. Text returns b itself if it contains no
// secret, and never changes b.
func (r *Redactor) Text(b []byte) []byte { return replace(b, r.find(b), len(b)) }

// String is like Text for a string.
func (r *Redactor) String(s string) string {
	if r == nil || s == "" {
		return s
	}
	return string(r.Text([]byte(s)))
}

// Head is like Text for at most the first n bytes of b. A secret that begins before byte
// n is found even if it ends after byte n.
func (r *Redactor) Head(b []byte, n int) []byte {
	if len(b) <= n {
		return r.Text(b)
	}
	return replace(b, r.find(b), n)
}

// ErrStructure is returned by JSON if a secret extends over more than one string or
// number of the document, or over its punctuation.
var ErrStructure = errors.New("a secret extends over more than one value of the document")

// JSON returns the JSON document doc with each secret in its strings and member names
// replaced by "[secret:NAME]". Replaced member names that would be equal are made
// distinct. A number that encodes a secret is replaced by that string; true, false and
// null are never replaced. If doc contains no secret, JSON returns doc itself; otherwise
// the result is in canonical form. It returns ErrStructure if a secret cannot be
// replaced within one value, and the error of canon.Transform if the result has no
// canonical form.
func (r *Redactor) JSON(doc []byte) ([]byte, error) {
	if r == nil {
		return doc, nil
	}
	found := r.find(doc)
	if !r.digits() && len(found) == 0 {
		return doc, nil
	}
	out, changed, err := r.rewrite(doc, found)
	if err != nil {
		return nil, err
	}
	if !changed {
		return doc, nil
	}
	return canon.Transform(nil, out)
}

func (r *Redactor) digits() bool {
	return slices.ContainsFunc(r.secrets, func(s *secret) bool { return s.digits != "" })
}

// span is a part of the input that encodes a secret, and its replacement.
type span struct {
	from, to int
	mark     []byte
}

// find returns the spans of all secrets, sorted by position. Overlapping spans are
// merged.
func (r *Redactor) find(b []byte) []span {
	if r == nil {
		return nil
	}
	var found []span
	var u *unfolded
	for _, s := range r.secrets {
		found = s.find(found, b, &u)
	}
	if len(found) < 2 {
		return found
	}
	slices.SortFunc(found, func(a, b span) int { return a.from - b.from })
	merged := found[:1]
	for _, f := range found[1:] {
		if last := &merged[len(merged)-1]; f.from < last.to {
			last.to = max(last.to, f.to)
		} else {
			merged = append(merged, f)
		}
	}
	return merged
}

// replace returns b[:n] with the spans replaced. A span that begins before n is replaced
// as a whole, even if it ends after n.
func replace(b []byte, found []span, n int) []byte {
	if len(found) == 0 {
		return b[:n]
	}
	var out []byte
	at := 0
	for _, f := range found {
		if f.from >= n {
			break
		}
		out = append(append(out, b[at:f.from]...), f.mark...)
		at = f.to
	}
	return append(out, b[min(at, n):n]...)
}

// rewrite returns a copy of a document in which the spans, and the numbers that encode a
// secret, are replaced. changed reports whether it replaced anything. It returns
// ErrStructure if a span is not within one string or number, except that it ignores
// spans within true, false and null.
func (r *Redactor) rewrite(doc []byte, found []span) (out []byte, changed bool, err error) {
	w := rewriter{r: r, doc: doc, found: found}
	for i := 0; i < len(doc); {
		end := w.tokenEnd(i)
		n, ok := w.inside(i, end)
		if !ok {
			return nil, false, ErrStructure
		}
		token := doc[i:end]
		switch {
		case doc[i] == '"' && n > 0:
			token, w.changed = w.text(i, end, n), true
		case beginsNumber(doc[i]):
			if mark := r.number(token, n > 0, w.found); mark != nil {
				token, w.changed = mark, true
			}
		}
		w.out, w.found, i = append(w.out, token...), w.found[n:], end
	}
	return w.out, w.changed, nil
}

// rewriter is the state of rewrite.
type rewriter struct {
	r       *Redactor
	doc     []byte
	found   []span // spans that are not yet replaced
	out     []byte
	changed bool
	keys    map[string]bool // member names after replacement, so that no two of them are equal
}

// tokenEnd returns the index after the token that begins at i. It drops spans within
// true, false or null: these literals reveal nothing, even if a secret has the same
// letters.
func (w *rewriter) tokenEnd(i int) int {
	end := i + 1
	switch c := w.doc[i]; {
	case c == '"':
		return stringEnd(w.doc, end)
	case beginsNumber(c):
		return numberEnd(w.doc, end)
	case c == 't' || c == 'f' || c == 'n':
		for end < len(w.doc) && w.doc[end] >= 'a' && w.doc[end] <= 'z' {
			end++
		}
		for len(w.found) > 0 && w.found[0].from >= i && w.found[0].to <= end {
			w.found = w.found[1:]
		}
	}
	return end
}

// inside returns the number of spans inside the token from i to end. ok is false if a
// span extends beyond the token, or includes a quote or a punctuation mark of the
// document.
func (w *rewriter) inside(i, end int) (n int, ok bool) {
	text := w.doc[i] == '"'
	for n < len(w.found) && w.found[n].from < end {
		f := w.found[n]
		if f.to > end || !text && end == i+1 || text && (f.from == i || f.to == end) {
			return 0, false
		}
		n++
	}
	return n, true
}

// text returns the string from i to end with its n spans replaced. A member name that
// equals an earlier replaced name is made distinct, so that the object keeps both
// members.
func (w *rewriter) text(i, end, n int) []byte {
	token := w.doc[i:end]
	token = replace(token, shift(w.found[:n], i), len(token))
	if next := bytes.TrimLeft(w.doc[end:], " \t\r\n"); len(next) == 0 || next[0] != ':' {
		return token
	}
	for w.keys[string(token)] {
		token = append(token[:len(token)-1:len(token)-1], `'"`...)
	}
	if w.keys == nil {
		w.keys = map[string]bool{}
	}
	w.keys[string(token)] = true
	return token
}

func beginsNumber(c byte) bool { return c == '-' || c >= '0' && c <= '9' }

// number returns the replacement of a number that encodes a secret, or nil. inside
// reports whether found[0] is in the number.
func (r *Redactor) number(token []byte, inside bool, found []span) []byte {
	if inside {
		return canon.AppendString(nil, string(found[0].mark))
	}
	for _, s := range r.secrets {
		if s.digits != "" && s.spelledBy(token) {
			return canon.AppendString(nil, string(s.mark))
		}
	}
	return nil
}

// shift returns a copy of the spans with by subtracted from their positions.
func shift(found []span, by int) []span {
	out := slices.Clone(found)
	for i := range out {
		out[i].from, out[i].to = out[i].from-by, out[i].to-by
	}
	return out
}

// stringEnd returns the index after the closing quote of a string. i is the index of the
// first byte after the opening quote.
func stringEnd(b []byte, i int) int {
	for i < len(b) && b[i] != '"' {
		if b[i] == '\\' {
			i++
		}
		i++
	}
	return min(i+1, len(b))
}

// numberEnd returns the index after the number whose first byte is at i-1.
func numberEnd(b []byte, i int) int {
	for i < len(b) && (b[i] >= '0' && b[i] <= '9' || bytes.IndexByte([]byte("+-.eE"), b[i]) >= 0) {
		i++
	}
	return i
}
