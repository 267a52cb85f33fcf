package scan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// Actions on what is found, weakest first.
const (
	Flag   = "flag"   // say so on the ledger
	Redact = "redact" // take it out
	Block  = "block"  // end the call
)

var actions = []string{"", Flag, Redact, Block}

// Guard says what to do with each class of findings: the strictest action that the
// configuration and policy demand. A class without one is left alone.
type Guard map[string]string

// Add makes the guard at least as strict: for a class, a group of classes, or
// "all".
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

// Seen counts findings by class. Only counts are recorded: what was found never
// leaves the text that it was found in.
type Seen map[string]int

// List writes what was seen as class:count, sorted, each after a prefix that says
// where: the form of the ledger.
func (s Seen) List(prefix string) []string {
	var out []string
	for c, n := range s {
		out = append(out, fmt.Sprintf("%s%s:%d", prefix, c, n))
	}
	slices.Sort(out)
	return out
}

// Text applies the guard to one text. blocked names a class that ends the call.
func (g Guard) Text(text []byte, seen Seen) (out []byte, blocked string) {
	found := Find(text)
	if len(found) == 0 {
		return text, ""
	}
	at := 0
	for _, f := range found {
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
	if at == 0 {
		return text, blocked
	}
	return append(out, text[at:]...), blocked
}

// JSON applies the guard to every string of a document, names of members
// included, and leaves all else as it is. What is looked at is what a string
// says, not how it is escaped.
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

// Stream applies the guard to text that comes in pieces: what might be the
// beginning of a finding is held until it is known.
type Stream struct {
	held []byte
}

// Next takes a piece and returns the text that can be shown, which may be none of
// it or more than it. blocked names a class that ends the call.
func (s *Stream) Next(g Guard, piece string, seen Seen) (out string, blocked string) {
	s.held = append(s.held, piece...)
	n := safe(s.held)
	if n == 0 {
		return "", ""
	}
	t, b := g.Text(s.held[:n], seen)
	out = string(t)
	s.held = append(s.held[:0], s.held[n:]...)
	return out, b
}

// End returns what is still held, guarded, for a text that has ended. The stream
// is ready for another text then.
func (s *Stream) End(g Guard, seen Seen) (out string, blocked string) {
	t, b := g.Text(s.held, seen)
	s.held = nil
	return string(t), b
}

// numberMost is how long a number with blanks in it can be.
const numberMost = 48

// maxKey bounds how long a private key is waited for.
const maxKey = 16 << 10

// safe is how much of a text cannot be part of a finding that is not complete.
func safe(t []byte) int {
	if k := openKey(t); k >= 0 {
		return k
	}
	n := len(t)
	i := wordStart(t, n)
	// Numbers and accounts may hold blanks themselves.
	for i > 0 && n-i < numberMost && strings.IndexByte(" -+()0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", t[i-1]) >= 0 {
		i--
	}
	i = wordStart(t, i)
	for _, f := range Find(t) { // never inside of one
		if f.Start < i && i < f.End {
			i = f.Start
		}
	}
	if n-i >= Longest { // nothing that is looked for is that long
		return n
	}
	return i
}

// openKey is where a private key begins that has no end yet; negative: nowhere, or
// it is longer than keys are.
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

// wordStart goes back from i to the beginning of the word, within the longest
// finding that the end of the text can hold.
func wordStart(t []byte, i int) int {
	for i > 0 && len(t)-i < Longest && strings.IndexByte(" \n\t", t[i-1]) < 0 {
		i--
	}
	return i
}
