package redact

import "bytes"

const (
	heldPrefix  = 4        // Stream holds back the end of the input only if at least this many first characters of a secret's encoding have arrived
	streamPast  = 96       // bytes of past input in which Stream finds the beginning of a secret
	maxHeld     = 32 << 10 // bytes that a Stream holds back
	windowScale = 16       // bytes of input that encode one byte of a secret, at most
)

// Stream removes secrets from a stream of bytes that arrives in pieces. It finds a secret that
// extends over several pieces if its encoding has at most 32 KiB, except that the first three
// characters of the encoding may be returned unchanged with the piece that they end. It holds
// back at most 32 KiB, and only while they may be the beginning of a secret, so it delays no
// other bytes. A Stream is for one goroutine.
type Stream struct {
	r     *Redactor
	buf   []byte // past input, then the bytes that are held back
	past  int    // length of the past input in buf
	mark  bool   // the past input ends with a secret that has been replaced
	found bool
}

// Stream returns a Stream that removes the secrets of r.
func (r *Redactor) Stream() *Stream { return &Stream{r: r} }

// Next takes the next piece of input and returns the bytes that may be passed on. If s
// has no secrets, that is b itself. Next does not change b.
func (s *Stream) Next(b []byte) []byte {
	if s.r == nil {
		return b
	}
	return s.advance(b, false)
}

// End returns the bytes that were held back, at the end of the input.
func (s *Stream) End() []byte { return s.advance(nil, true) }

// Found reports whether a secret was found in the input so far.
func (s *Stream) Found() bool { return s.found }

func (s *Stream) advance(b []byte, end bool) []byte {
	in := append(bytes.Clone(s.buf), b...)
	cut := len(in)
	if !end {
		if n := s.r.pending(in); n <= maxHeld {
			cut = max(len(in)-n, s.past)
		}
	}
	var out []byte
	at := s.past
	for _, f := range s.r.find(in) {
		if f.to <= at {
			continue
		}
		s.found = true
		if f.from >= cut {
			break
		}
		if f.from > at {
			out = append(out, in[at:f.from]...)
		}
		if !s.mark || at > s.past || f.from >= s.past { // else the mark is in the output, and padding follows
			out = append(out, f.mark...)
		}
		at, cut = f.to, max(cut, f.to)
	}
	s.mark = at == cut && (at > s.past || s.mark)
	out = append(out, in[min(at, cut):cut]...)
	from := max(0, cut-streamPast)
	s.buf, s.past = in[from:], cut-from
	return out
}

// pending returns the length of the end of b that may be the beginning of a secret's
// encoding of which at least heldPrefix characters have arrived, or 0 if there is no such
// end.
func (r *Redactor) pending(b []byte) int {
	if r == nil {
		return 0
	}
	n := 0
	for _, s := range r.secrets {
		tail := b[max(0, len(b)-min(windowScale*len(s.plain[0])+256, maxHeld)):]
		n = max(n, len(tail)-s.begins(tail))
	}
	return n
}

// begins returns the position in b at which a part of the secret begins that extends to
// the end of b, or len(b) if there is none.
func (s *secret) begins(b []byte) int {
	at := len(b)
	test := func(view *unfolded, patterns ...[]byte) {
		for _, p := range patterns {
			for n := min(len(p)-1, len(view.text)); n >= heldPrefix; n-- {
				if bytes.HasSuffix(view.text, p[:n]) {
					at = min(at, int(view.at[len(view.text)-n]))
					break
				}
			}
		}
	}
	packed := func(of *unfolded, text []byte) {
		p := pack(text, of, s.whole)
		for _, a := range s.base64 {
			test(p, a.text)
		}
		lower(p.text)
		test(p, s.hex...)
	}
	raw := &unfolded{text: b, at: make([]uint32, len(b)+1)}
	for i := range raw.at {
		raw.at[i] = uint32(i)
	}
	test(raw, s.plain...)
	packed(nil, b)
	if !bytes.ContainsAny(b, `\%&`) {
		return at
	}
	// The end of the input, and of the text after a decoding, may be an incomplete escape.
	for _, b := range [][]byte{b, trimEscape(b)} {
		u := unfold(b)
		for _, u.text = range [][]byte{u.text, trimEscape(u.text)} {
			test(u, s.folded...)
			packed(u, u.text)
		}
		if !s.marked {
			continue
		}
		for _, kinds := range decoders {
			d := decode(b, kinds)
			for _, d.text = range [][]byte{d.text, trimEscape(d.text)} {
				test(d, s.plain...)
			}
		}
	}
	return at
}
