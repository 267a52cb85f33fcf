package redact

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// secret is one compiled value.
type secret struct {
	mark    []byte
	plain   [][]byte // the value and its lines, as they are
	folded  [][]byte // the same, unfolded
	base64  []aligned
	hex     [][]byte // lower case
	whole   bool     // found only where no letter or digit adjoins
	special bool     // holds a character that strings of JSON escape
	marked  bool     // holds a character that an escape begins with
	digits  string   // of a value of digits alone, without leading zeros

	grams  map[uint32]struct{} // four bytes each
	bloom  [bloomBits / 64]uint64
	stride int
}

// aligned is the part of a base64 encoding that the value alone determines, and the
// number of characters at each side that it determines in part.
type aligned struct {
	text          []byte
	before, after int
}

const (
	bloomBits = 1 << 14
	wholeLen  = 6  // shorter values must not adjoin letters and digits
	lineLen   = 16 // shorter lines are not searched for by themselves
)

var (
	cacheMu sync.Mutex
	cache   map[[32]byte]*secret
)

const maxCached = 512

// compiled returns the compiled value, or nil for one that is too short. The
// same name and value give the same pointer while they are cached.
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

func compile(name, value string) *secret {
	s := &secret{mark: []byte("[secret:" + name + "]"), whole: len(value) < wholeLen}
	parts := []string{value}
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= lineLen && line != value {
			parts = append(parts, line)
		}
	}
	for _, p := range parts {
		s.plain = append(s.plain, []byte(p))
		if strings.Contains(p, " ") { // with blanks as forms encode them
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

// fold adds an unfolded value, also with its blanks encoded as in forms.
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

// alignments encodes v as it appears after 0, 1 and 2 other bytes of a group.
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
		if whole { // such a short value must match its whole encoding
			out = append(out, aligned{text: e})
			break
		}
		if len(a.text) >= MinLen {
			out = append(out, a)
		}
	}
	return out
}

// index computes which four bytes any spelling must show at one of the
// positions that suspects looks at. A base64 or hexadecimal spelling may be
// broken into lines: one of its fragments is at least a third of it.
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

// packed lists the encodings that may be broken into lines, in every alphabet.
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

// suspects reports whether b may spell the secret without exotic escapes. It
// looks at every stride-th position alone.
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

// find appends the spans of b that spell the secret. u caches b unfolded.
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

// inPacked appends the spans of b whose packed form contains the secret.
func (s *secret) inPacked(out []span, p *unfolded, b []byte) []span {
	before := len(out)
	for _, a := range s.base64 {
		out = s.all(out, p.text, a.text, a, p.span)
	}
	lower(p.text)
	for _, h := range s.hex {
		out = s.all(out, p.text, h, aligned{}, p.span)
	}
	for i := before; i < len(out); i++ { // white space after the last character
		for f := &out[i]; f.to > f.from && (b[f.to-1] == ' ' || b[f.to-1] == '\n'); f.to-- {
		}
	}
	return out
}

// all appends every occurrence of pattern in view, at the places of the input
// that at returns for those of the view.
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

// adjoined reports whether a letter or digit adjoins the part of view.
func adjoined(view []byte, from, to int) bool {
	return from > 0 && alphanumeric(view[from-1]) || to < len(view) && alphanumeric(view[to])
}

// widen adds to an occurrence in base64 the characters beside it that hold bits of it,
// and the padding.
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

// spelledBy reports whether a JSON number has the digits of the secret, or is
// the number that is left of them.
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
