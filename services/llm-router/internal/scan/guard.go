package scan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// Actions on findings, from the weakest to the strongest.
const (
	Flag   = "flag"   // record the finding on the ledger
	Redact = "redact" // replace the finding in the text
	Block  = "block"  // end the call
)

var actions = []string{"", Flag, Redact, Block}

// Guard maps each class of findings to the strictest action that the configuration and
// policy require. Findings of a class without an action are ignored.
type Guard map[string]string

// Add makes the guard, which must not be nil, at least as strict as action for a class,
// a group of classes, or "all". It returns an error if the class or the action is
// unknown.
func (g Guard) Add(what, action string) error {
	if !slices.Contains(actions[1:], action) {
		return fmt.Errorf("%q: want %s, %s or %s", action, Flag, Redact, Block)
	}
	n := 0
	for class, group := range Classes {
		if what == class || what == group || what == "all" {
			n++
			if slices.Index(actions, action) > slices.Index(actions, g[class]) {
				g[class] = action
			}
		}
	}
	if n == 0 {
		return fmt.Errorf("%q is neither a class, pii, secret nor all", what)
	}
	return nil
}

// Seen counts findings by class. Only the counts are recorded, never the matched text.
type Seen map[string]int

// List returns the counts as class:count, each after prefix, sorted. This is the form in
// which the ledger records them.
func (s Seen) List(prefix string) []string {
	var out []string
	for c, n := range s {
		out = append(out, fmt.Sprintf("%s%s:%d", prefix, c, n))
	}
	slices.Sort(out)
	return out
}

// Text applies the guard to one text. In seen, which must not be nil, it counts the
// findings of classes that have an action. If nothing is redacted, out aliases text.
// blocked is the class of a finding that ends the call, or "".
func (g Guard) Text(text []byte, seen Seen) (out []byte, blocked string) {
	return g.apply(find(text, 0), seen)
}

// apply applies the guard to the text that was scanned, from the position at which the
// scan began.
func (g Guard) apply(scanned *finder, seen Seen) (out []byte, blocked string) {
	text, at := scanned.text, scanned.from
	for _, f := range scanned.found {
		action := g[f.Class]
		if action == "" {
			continue
		}
		seen[f.Class]++
		switch action {
		case Block:
			blocked = f.Class
		case Redact:
			out = append(append(out, text[at:f.Start]...), "[redacted:"+f.Class+"]"...)
			at = f.End
		}
	}
	if len(out) == 0 {
		return text[at:], blocked
	}
	return append(out, text[at:]...), blocked
}

// JSON applies the guard to every string of a document, including the names of members,
// and leaves all else unchanged. Strings are unescaped before they are scanned. If
// nothing is redacted, out aliases doc. seen and blocked are as for Text.
func (g Guard) JSON(doc []byte, seen Seen) (out []byte, blocked string) {
	at := 0
	for i := 0; i < len(doc); i++ {
		if doc[i] != '"' {
			continue
		}
		end, escaped := i+1, false
		for end < len(doc) && doc[end] != '"' {
			if doc[end] == '\\' {
				escaped = true
				end++
			}
			end++
		}
		if end >= len(doc) {
			break
		}
		text := doc[i+1 : end]
		if escaped {
			var said string
			if json.Unmarshal(doc[i:end+1], &said) == nil {
				text = []byte(said)
			}
		}
		if t, b := g.Text(text, seen); b != "" {
			blocked = b
		} else if !bytes.Equal(t, text) {
			out = canon.AppendString(append(out, doc[at:i]...), string(t))
			at = end + 1
		}
		i = end
	}
	if at == 0 {
		return doc, blocked
	}
	return append(out, doc[at:]...), blocked
}

// Stream applies the guard to text that is received in pieces. It buffers text that may
// be the beginning of a finding until the finding is complete or ruled out.
type Stream struct {
	held []byte
	from int // number of bytes at the beginning of held that were already returned: at most one, which shows whether a word begins after it
}

// Next adds a piece and returns the text that may be released, with the guard applied;
// it may be empty or longer than the piece. seen and blocked are as for Text.
func (s *Stream) Next(g Guard, piece string, seen Seen) (out string, blocked string) {
	s.held = append(s.held, piece...)
	n := safe(s.held, s.from)
	if n <= s.from {
		return "", ""
	}
	t, b := g.apply(find(s.held[:n], s.from), seen)
	out = string(t)
	s.held, s.from = append(s.held[:0], s.held[n-1:]...), 1
	return out, b
}

// End returns the text that is still buffered, with the guard applied. It must be called
// when the text has ended; the stream can then be used for another text. seen and
// blocked are as for Text.
func (s *Stream) End(g Guard, seen Seen) (out string, blocked string) {
	t, b := g.apply(find(s.held, s.from), seen)
	*s = Stream{}
	return string(t), b
}

// numberMost is an upper bound of the length of a number or an IBAN that contains
// blanks, in bytes.
const numberMost = 2 * ibanMost

// maxKey is the length, in bytes, at which Stream stops waiting for the missing end of a
// private key.
const maxKey = 16 << 10

// safe returns the length of the beginning of t that cannot be part of an incomplete
// finding. No finding begins before from.
func safe(t []byte, from int) int {
	if k := openKey(t); k >= 0 {
		return k
	}
	n := len(t)
	i := wordStart(t, n)
	// Numbers and IBANs may contain blanks.
	for i > 0 && n-i < numberMost && strings.IndexByte(" -+()0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", t[i-1]) >= 0 {
		i--
	}
	i = wordStart(t, i)
	f := find(t, from)
	for _, f := range f.found { // do not cut a finding
		if f.Start < i && i < f.End {
			i = f.Start
		}
	}
	return min(i, f.open)
}

// openKey returns the index at which the last PEM block, which may be a private key,
// begins if its end is missing. It returns -1 if there is no such block, or if the block
// already has maxKey bytes.
func openKey(t []byte) int {
	k := bytes.LastIndex(t, pemBegin)
	if k < 0 || len(t)-k >= maxKey {
		return -1
	}
	e := bytes.Index(t[k:], pemEnd)
	if e >= 0 && bytes.Contains(t[k+e+len(pemEnd):], pemDashes) {
		return -1
	}
	return k
}

// wordStart returns the index after the last blank, tab or newline before i, or 0 if
// there is none. It searches no further than longest bytes from the end of t; if these
// bytes contain none, it returns the index at which the search ended.
func wordStart(t []byte, i int) int {
	for i > 0 && len(t)-i < longest && strings.IndexByte(" \n\t", t[i-1]) < 0 {
		i--
	}
	return i
}
