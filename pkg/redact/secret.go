package redact

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// secret is a value compiled into the forms that are searched for.
type secret struct {
	mark    []byte
	plain   [][]byte // the value and its long lines and members, unchanged and with plus signs for blanks
	folded  [][]byte // the value and its long lines and members after unfold
	base64  []aligned
	hex     [][]byte // hexadecimal encodings, in lower case
	whole   bool     // the value is short: it is found only if no letter or digit adjoins it
	special bool     // the value contains a character that string literals escape
	marked  bool     // the value contains a character with which an escape begins
	digits  string   // the value without leading zeros if it has digits only, else ""

	grams  map[uint32]struct{} // the four-byte sequences that suspects looks for
	bloom  [bloomBits / 64]uint64
	stride int
}

// aligned is the part of a base64 encoding that the value alone determines. before and
// after are the numbers of adjoining characters that also encode bits of the value.
type aligned struct {
	text          []byte
	before, after int
}

const (
	bloomBits = 1 << 14
	wholeLen  = 6  // bytes; a shorter value is found only if no letter or digit adjoins it
	lineLen   = 16 // bytes; a shorter line is not searched for separately
)

var (
	cacheMu sync.Mutex
	cache   map[[32]byte]*secret
)

// maxCached is the number of cached secrets at which the cache is emptied.
const maxCached = 512

// compiled returns the compiled value, or nil if the value is too short. While it is
// cached, the same name and value return the same pointer. The cache holds at most
// maxCached secrets and is keyed by a hash, not by the value.
func compiled(name, value string) *secret {
	value = strings.TrimSpace(value)
	if len(value) < MinLen {
		return nil
	}
	key := sha256.Sum256([]byte(name + "\x00" + value))
	cacheMu.Lock()
	defer cacheMu.Unlock()
	if s := cache[key]; s != nil {
		return s
	}
	if cache == nil || len(cache) >= maxCached {
		cache = map[[32]byte]*secret{}
	}
	s := compile(name, value)
	cache[key] = s
	return s
}

// compile computes all forms in which a value is searched for. It is slow, so compiled
// caches the result.
func compile(name, value string) *secret {
	s := &secret{mark: []byte("[secret:" + name + "]"), whole: len(value) < wholeLen}
	parts := append([]string{value}, members(value)...)
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= lineLen && line != value {
			parts = append(parts, line)
		}
	}
	for _, p := range parts {
		s.plain = append(s.plain, []byte(p))
		if strings.Contains(p, " ") { // HTML forms encode a blank as a plus sign
			s.plain = append(s.plain, []byte(strings.ReplaceAll(p, " ", "+")))
		}
		s.fold(unfold([]byte(p)).text)
		s.hex = append(s.hex, []byte(hex.EncodeToString([]byte(p))))
		s.base64 = append(s.base64, alignments(p, s.whole)...)
		s.special = s.special || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r == '\'' })
		s.marked = s.marked || strings.ContainsAny(p, `\%&`)
	}
	if strings.Trim(value, "0123456789") == "" {
		s.digits = strings.TrimLeft(value, "0")
	}
	s.index()
	return s
}

// public are the names of members that are no secrets in a value that is a JSON object, such as a
// login or a cookie.
var public = []string{"domain", "name", "path", "url", "username"}

// members returns the long strings of a value that is a JSON object of strings, without those of
// public members.
func members(value string) (out []string) {
	var doc map[string]string
	if value[0] != '{' || json.Unmarshal([]byte(value), &doc) != nil {
		return nil
	}
	for name, v := range doc {
		if v = strings.TrimSpace(v); len(v) >= lineLen && !slices.Contains(public, name) {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
}

// fold adds f, a value after unfold, to the folded forms. It also adds f without an
// incomplete escape at its end, and each of these forms with plus signs instead of
// blanks, as HTML forms encode them.
func (s *secret) fold(f []byte) {
	for _, f := range [][]byte{f, trimEscape(f)} {
		if len(f) >= MinLen && !slices.ContainsFunc(s.folded, func(o []byte) bool { return bytes.Equal(o, f) }) {
			s.folded = append(s.folded, f)
			if bytes.IndexByte(f, ' ') >= 0 {
				s.folded = append(s.folded, bytes.ReplaceAll(f, []byte(" "), []byte("+")))
			}
		}
	}
}

// alignments returns the parts of the base64 encodings of v after 0, 1 and 2 preceding
// bytes of a three-byte group, without parts of fewer than MinLen characters. If whole
// is set, it returns only the complete encoding of v.
func alignments(v string, whole bool) []aligned {
	var out []aligned
	for k := range 3 {
		e := []byte(base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("\x00", k) + v)))
		from, to := (8*k+5)/6, (8*k+8*len(v))/6
		a := aligned{text: e[from:to]}
		if k > 0 {
			a.before = 1
		}
		if to < len(e) {
			a.after = 1
		}
		if whole { // a short value is found only as the whole encoding
			out = append(out, aligned{text: e})
			break
		}
		if len(a.text) >= MinLen {
			out = append(out, a)
		}
	}
	return out
}

// index computes the stride, and a set of four-byte sequences: each form in s.plain,
// s.folded and s.packed() contains one of them at a position that suspects tests. A
// base64 or hexadecimal encoding may be broken into lines; its longest fragment is
// assumed to be at least a third of it.
func (s *secret) index() {
	shortest := len(s.plain[0])
	for _, list := range [][][]byte{s.plain, s.folded} {
		for _, p := range list {
			shortest = min(shortest, len(p))
		}
	}
	for _, p := range s.packed() {
		shortest = min(shortest, max(len(p)/3, 4))
	}
	s.stride = max(shortest, 4) - 3
	s.grams = map[uint32]struct{}{}
	add := func(p []byte, n int) {
		for i := 0; i+4 <= len(p) && i < n; i++ {
			g := binary.LittleEndian.Uint32(p[i:])
			s.grams[g] = struct{}{}
			h := bloom(g)
			s.bloom[h/64] |= 1 << (h % 64)
		}
	}
	for _, list := range [][][]byte{s.plain, s.folded} {
		for _, p := range list {
			add(p, s.stride)
		}
	}
	for _, p := range s.packed() {
		add(p, len(p))
	}
}

// packed returns the encodings that may be broken into lines: base64 in both alphabets,
// and hexadecimal in both cases.
func (s *secret) packed() [][]byte {
	var out [][]byte
	for _, a := range s.base64 {
		out = append(out, a.text)
		if u := bytes.ReplaceAll(bytes.ReplaceAll(a.text, []byte("+"), []byte("-")), []byte("/"), []byte("_")); !bytes.Equal(u, a.text) {
			out = append(out, u)
		}
	}
	for _, h := range s.hex {
		out = append(out, h, bytes.ToUpper(h))
	}
	return out
}

func bloom(g uint32) uint32 { return g * 0x9E3779B1 >> 18 }

// suspects reports whether b may contain an encoding of the secret that needs no
// unfolding. It tests only every stride-th position. It may return true for a text
// without the secret. It may return false for a text with the secret if an encoding is
// broken into shorter fragments than index assumes, or mixes upper and lower case in
// hexadecimal or the two alphabets of base64.
func (s *secret) suspects(b []byte) bool {
	for i := 0; i+4 <= len(b); i += s.stride {
		g := binary.LittleEndian.Uint32(b[i:])
		if h := bloom(g); s.bloom[h/64]&(1<<(h%64)) != 0 {
			if _, ok := s.grams[g]; ok {
				return true
			}
		}
	}
	return false
}

// find appends the spans of b that encode the secret. *u caches the result of unfold for
// b.
func (s *secret) find(out []span, b []byte, u **unfolded) []span {
	if s.suspects(b) {
		for _, p := range s.plain {
			out = s.all(out, b, p, aligned{}, identity)
		}
		out = s.inPacked(out, pack(b, nil, s.whole), b)
	}
	if !escapes(b, s.special) {
		return out
	}
	if *u == nil {
		*u = unfold(b)
	}
	if s.marked {
		for _, kinds := range decoders {
			d := decode(b, kinds)
			for _, p := range s.plain {
				out = s.all(out, d.text, p, aligned{}, d.span)
			}
		}
	}
	if !s.suspects((*u).text) {
		return out
	}
	for _, p := range s.folded {
		out = s.all(out, (*u).text, p, aligned{}, (*u).span)
	}
	return s.inPacked(out, pack((*u).text, *u, s.whole), b)
}

// inPacked appends the spans of b that encode the secret in base64 or hexadecimal. p is
// the result of pack for b or for the unfolded text of b; inPacked changes its text to
// lower case.
func (s *secret) inPacked(out []span, p *unfolded, b []byte) []span {
	before := len(out)
	for _, a := range s.base64 {
		out = s.all(out, p.text, a.text, a, p.span)
	}
	lower(p.text)
	for _, h := range s.hex {
		out = s.all(out, p.text, h, aligned{}, p.span)
	}
	for i := before; i < len(out); i++ { // exclude blanks and newlines after the last character
		for f := &out[i]; f.to > f.from && (b[f.to-1] == ' ' || b[f.to-1] == '\n'); f.to-- {
		}
	}
	return out
}

// all appends the spans of the occurrences of pattern in view; for a short secret, only
// of the occurrences that no letter or digit adjoins. The function at maps a range of
// view to the range of the input that it comes from. a extends occurrences of base64
// text (see widen).
func (s *secret) all(out []span, view, pattern []byte, a aligned, at func(from, to int) (int, int)) []span {
	for i := 0; ; {
		n := bytes.Index(view[i:], pattern)
		if n < 0 {
			return out
		}
		from, to := i+n, i+n+len(pattern)
		i = from + 1
		if s.whole && adjoined(view, from, to) {
			continue
		}
		i = to
		from, to = at(a.widen(view, from, to))
		out = append(out, span{from, to, s.mark})
	}
}

// adjoined reports whether a letter or digit adjoins view[from:to].
func adjoined(view []byte, from, to int) bool {
	return from > 0 && alphanumeric(view[from-1]) || to < len(view) && alphanumeric(view[to])
}

// widen extends an occurrence of base64 text by the adjoining characters that also
// encode bits of the value, and by the padding.
func (a *aligned) widen(view []byte, from, to int) (int, int) {
	if a.before > 0 && from > 0 && inBase64(view[from-1]) {
		from--
	}
	if a.after > 0 && to < len(view) && inBase64(view[to]) {
		to++
	}
	for a.text != nil && to < len(view) && view[to] == '=' {
		to++
	}
	return from, to
}

func identity(from, to int) (int, int) { return from, to }

// spelledBy reports whether a JSON number encodes the secret, which consists of digits.
// That is the case if the digits of its mantissa equal those of the secret or, unless
// the secret is short, contain them, both without leading zeros. It is also the case if
// both numbers are equal as float64. The sign is ignored.
func (s *secret) spelledBy(token []byte) bool {
	mantissa, _, _ := bytes.Cut(bytes.ToLower(token), []byte("e"))
	got := bytes.TrimLeft(bytes.ReplaceAll(bytes.TrimPrefix(mantissa, []byte("-")), []byte("."), nil), "0")
	if string(got) == s.digits || !s.whole && bytes.Contains(got, []byte(s.digits)) {
		return true
	}
	a, errA := canon.Transform(nil, bytes.TrimPrefix(token, []byte("-")))
	b, errB := canon.Transform(nil, []byte(s.digits))
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func inBase64(c byte) bool { return alphanumeric(c) || c == '+' || c == '/' }

func lower(b []byte) {
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
}
