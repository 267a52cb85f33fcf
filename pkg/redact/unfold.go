package redact

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// unfolded is a text whose escapes have been decoded. The encoding of byte i of text
// begins at byte at[i] of the input. Once the text is complete, at has one more element:
// the length of the input.
type unfolded struct {
	text   []byte
	at     []uint32
	kinds  kind
	frozen int // length of the part of text that no later escape may include
}

// kind is a set of escape syntaxes.
type kind int

const (
	slashes  kind = 1 << iota // backslash escapes of JSON, C, Go and Python
	percents                  // percent-encoding of URLs
	entities                  // character references of HTML
	every    = slashes | percents | entities
)

// decoders lists the sequences of encodings that decode undoes for values that contain
// the first character of an escape. Each encoding of a sequence is undone once.
var decoders = [][]kind{{slashes}, {slashes, slashes}, {slashes, slashes, slashes}, {percents}, {percents, percents}, {slashes, percents},
	{slashes, slashes, percents}, {percents, slashes}, {entities}, {slashes, entities}}

func (u *unfolded) span(from, to int) (int, int) { return int(u.at[from]), int(u.at[to]) }

// unfold replaces escapes by the characters that they encode until none is left:
// backslash escapes, percent-encoding and HTML character references. A decoded character
// may complete the escape before it, so nested escapes need no second pass. The time is
// linear: each byte is pushed once, and each replacement removes more bytes than it
// pushes. Finally the remaining backslashes are dropped.
func unfold(b []byte) *unfolded {
	u := newUnfolded(b, every)
	for i, c := range b {
		u.push(c, uint32(i))
		for u.reduce() {
		}
	}
	u.at = append(u.at, uint32(len(b)))
	n := 0
	for i, c := range u.text {
		if c != '\\' {
			u.text[n], u.at[n] = c, u.at[i]
			n++
		}
	}
	u.text, u.at = u.text[:n], append(u.at[:n], uint32(len(b)))
	return u
}

// decode undoes the given encodings in order, each once.
func decode(b []byte, kinds []kind) *unfolded {
	var u *unfolded
	for _, k := range kinds {
		from := b
		if u != nil {
			from = u.text
		}
		next := newUnfolded(from, k)
		for i, c := range from {
			at := uint32(i)
			if u != nil {
				at = u.at[i]
			}
			next.push(c, at)
			if next.reduce() {
				next.frozen = len(next.text)
			}
		}
		next.at = append(next.at, uint32(len(b)))
		u = next
	}
	return u
}

func newUnfolded(b []byte, kinds kind) *unfolded {
	return &unfolded{text: make([]byte, 0, len(b)), at: make([]uint32, 0, len(b)+1), kinds: kinds}
}

// push appends a byte that begins at position at of the input.
func (u *unfolded) push(c byte, at uint32) {
	u.text, u.at = append(u.text, c), append(u.at, at)
}

// pop replaces the last n bytes by the UTF-8 encoding of r, and returns true. It stores
// a surrogate as three bytes until the other surrogate of the pair follows.
func (u *unfolded) pop(n int, r rune) bool {
	from := len(u.text) - n
	at := u.at[from]
	u.text, u.at = u.text[:from], u.at[:from]
	if utf16.IsSurrogate(r) {
		if r >= 0xDC00 && from >= 3 {
			if high, ok := surrogate(u.text[from-3:]); ok {
				at = u.at[from-3]
				u.text, u.at = u.text[:from-3], u.at[:from-3]
				return u.put(utf16.DecodeRune(high, r), at)
			}
		}
		u.push(0xE0|byte(r>>12), at)
		u.push(0x80|byte(r>>6)&0x3F, at)
		u.push(0x80|byte(r)&0x3F, at)
		return true
	}
	return u.put(r, at)
}

// put appends the UTF-8 encoding of a character that begins at position at of the input,
// and returns true.
func (u *unfolded) put(r rune, at uint32) bool {
	for _, c := range utf8.AppendRune(nil, r) {
		u.push(c, at)
	}
	return true
}

// popByte replaces the last n bytes by the byte c, and returns true.
func (u *unfolded) popByte(n int, c byte) bool {
	from := len(u.text) - n
	u.text, u.at = append(u.text[:from], c), u.at[:from+1]
	return true
}

// surrogate decodes a high surrogate from the three bytes in which pop stores it. It
// returns false if b begins with other bytes.
func surrogate(b []byte) (rune, bool) {
	if b[0] != 0xED || b[1] < 0xA0 || b[1] > 0xAF {
		return 0, false
	}
	return 0xD000 | rune(b[1]&0x3F)<<6 | rune(b[2]&0x3F), true
}

// reduce replaces the escape at the end of the text. It reports whether there was one.
func (u *unfolded) reduce() bool {
	t := u.text[u.frozen:]
	n := len(t)
	switch {
	case n < 2:
		return false
	case u.kinds&percents != 0 && n >= 3 && t[n-3] == '%' && isHex(t[n-2]) && isHex(t[n-1]):
		return u.popByte(3, byte(hexOf(t[n-2])<<4|hexOf(t[n-1])))
	case u.kinds&entities != 0 && t[n-1] == ';':
		return u.entity(t)
	case u.kinds&slashes != 0:
		return u.slash(t, n)
	}
	return false
}

// slash replaces the backslash escape at the end of t. It returns false if there is
// none.
func (u *unfolded) slash(t []byte, n int) bool {
	last := t[n-1]
	if t[n-2] == '\\' {
		if c, ok := simple(last); ok {
			return u.popByte(2, c)
		}
	}
	if last == '}' {
		return u.braced(t, n)
	}
	return isHex(last) && u.coded(t, n)
}

// braced replaces an escape like \u{41} at the end of t. It returns false if there is
// none.
func (u *unfolded) braced(t []byte, n int) bool {
	from := max(0, n-11)
	at := bytes.LastIndex(t[from:], []byte(`\u{`))
	if at < 0 {
		return false
	}
	r, ok := number(t[from+at+3:n-1], 16)
	return ok && u.pop(n-from-at, r)
}

// coded replaces an escape like \x41, \101, \u0041 or \U00000041 at the end of t. It
// returns false if there is none. The last byte of t is a hexadecimal digit.
func (u *unfolded) coded(t []byte, n int) bool {
	back := func(k int, letter byte) bool { return n >= k && t[n-k] == '\\' && t[n-k+1] == letter }
	switch {
	case back(4, 'x') && isHex(t[n-2]):
		return u.popByte(4, byte(hexOf(t[n-2])<<4|hexOf(t[n-1])))
	case n >= 4 && t[n-4] == '\\' && t[n-3] >= '0' && t[n-3] <= '3':
		r, ok := number(t[n-3:], 8)
		return ok && u.popByte(4, byte(r))
	case back(6, 'u'):
		r, ok := number(t[n-4:], 16)
		return ok && u.pop(6, r)
	case back(10, 'U'):
		r, ok := number(t[n-8:], 16)
		return ok && u.pop(10, r)
	}
	return false
}

var named = map[string]rune{"amp": '&', "lt": '<', "gt": '>', "quot": '"', "apos": '\''}

// entity replaces the HTML character reference at the end of t. It returns false if
// there is none.
func (u *unfolded) entity(t []byte) bool {
	n := len(t)
	from := max(0, n-12)
	at := bytes.LastIndexByte(t[from:], '&')
	if at < 0 {
		return false
	}
	name := t[from+at+1 : n-1]
	if r, ok := named[string(name)]; ok {
		return u.pop(n-from-at, r)
	}
	if len(name) < 2 || name[0] != '#' {
		return false
	}
	r, ok := number(name[1:], 10)
	if name[1] == 'x' || name[1] == 'X' {
		r, ok = number(name[2:], 16)
	}
	return ok && u.pop(n-from-at, r)
}

// simple returns the byte that a backslash followed by c encodes, and whether they are
// such an escape.
func simple(c byte) (byte, bool) {
	switch c {
	case '"', '\\', '/', '\'', '`', '$':
		return c, true
	case 'a':
		return '\a', true
	case 'b':
		return '\b', true
	case 'v':
		return '\v', true
	case 'f':
		return '\f', true
	case 'n':
		return '\n', true
	case 'r':
		return '\r', true
	case 't':
		return '\t', true
	}
	return 0, false
}

// number decodes digits in base 8, 10 or 16. It returns false if b is empty, contains
// another character, or exceeds the last Unicode code point.
func number(b []byte, base rune) (rune, bool) {
	var r rune
	for _, c := range b {
		d := rune(hexOf(c))
		if !isHex(c) || d >= base {
			return 0, false
		}
		if r = r*base + d; r > utf8.MaxRune {
			return 0, false
		}
	}
	return r, len(b) > 0
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func hexOf(c byte) int {
	switch {
	case c <= '9':
		return int(c) - '0'
	case c <= 'F':
		return int(c) - 'A' + 10
	}
	return int(c) - 'a' + 10
}

// escapes reports whether unfolding b could reveal a secret that is not found in b
// itself. If special is false, the secret has no character that is encoded as a
// backslash with a letter or a quote.
func escapes(b []byte, special bool) bool {
	return encodes(b, '%', percent) || encodes(b, '&', entity) || backslashes(b, special)
}

// encodes reports whether begins returns true for the bytes after at least one
// occurrence of c in b.
func encodes(b []byte, c byte, begins func(after []byte) bool) bool {
	for {
		n := bytes.IndexByte(b, c)
		if n < 0 {
			return false
		}
		if b = b[n+1:]; begins(b) {
			return true
		}
	}
}

// percent reports whether the bytes after a percent sign may complete an escape: two
// hexadecimal digits, or the start of a nested escape.
func percent(after []byte) bool {
	return len(after) > 1 && (isHex(after[0]) && isHex(after[1]) || bytes.IndexByte([]byte(`\%&`), after[0]) >= 0)
}

// entity reports whether the bytes after an ampersand may complete a character
// reference.
func entity(after []byte) bool { return bytes.IndexByte(after[:min(11, len(after))], ';') >= 0 }

// backslashes reports whether b contains a relevant backslash. If special is set, every
// backslash is relevant; otherwise a run of backslashes is, if a character other than "
// ' n r t b and f follows it.
func backslashes(b []byte, special bool) bool {
	for i := 0; i < len(b); i++ {
		n := bytes.IndexByte(b[i:], '\\')
		if n < 0 {
			return false
		}
		if special {
			return true
		}
		for i += n; i < len(b) && b[i] == '\\'; i++ {
		}
		if i < len(b) && bytes.IndexByte([]byte(`"'nrtbf`), b[i]) < 0 {
			return true
		}
	}
	return false
}

// trimEscape returns b without an incomplete escape at its end. In a text, the bytes
// after b may complete that escape and so change the end of b.
func trimEscape(b []byte) []byte {
	for _, e := range []struct {
		start byte
		long  int
	}{{'%', 2}, {'\\', 9}, {'&', 11}} {
		from := max(0, len(b)-e.long)
		if at := bytes.LastIndexByte(b[from:], e.start); at >= 0 {
			b = b[:from+at]
		}
	}
	return b
}

// pack returns a copy of b in the standard base64 alphabet. Unless keep is set, it
// leaves out white space, also in the form of JSON escapes. It replaces several
// backslashes in a row by one. of is the unfolded input whose text is b, or nil if b was
// not unfolded.
func pack(b []byte, of *unfolded, keep bool) *unfolded {
	p := &unfolded{text: make([]byte, 0, len(b)), at: make([]uint32, 0, len(b)+1)}
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch c {
		case ' ', '\t', '\r', '\n':
			if !keep {
				continue
			}
		case '\\': // perhaps escaped white space in JSON (\n, \r or \t); in a string within a string the backslash is itself escaped
			for i+1 < len(b) && b[i+1] == '\\' {
				i++
			}
			if !keep && i+1 < len(b) && (b[i+1] == 'n' || b[i+1] == 'r' || b[i+1] == 't') {
				i++
				continue
			}
		case '-':
			c = '+'
		case '_':
			c = '/'
		}
		p.push(c, of.place(i))
	}
	p.at = append(p.at, of.place(len(b)))
	return p
}

// place returns the position in the input of byte i of the text. A nil u means that the
// text is the input.
func (u *unfolded) place(i int) uint32 {
	if u == nil {
		return uint32(i)
	}
	return u.at[i]
}
