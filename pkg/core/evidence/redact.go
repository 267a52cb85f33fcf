package evidence

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// Parts of a call that can be withheld.
const (
	PartArgs   = "args"
	PartOutput = "output"
)

// Redact takes payloads out of a session's events, and objects out of the
// pack: those for which show says no. Their commitments stay, in the events and
// in the decisions and receipts that are signed over them. A pack of a redacted
// source has FormatRedacted.
func Redact(src *Source, show func(callID, part string) bool) error {
	for i := range src.Events {
		s := &src.Events[i]
		e, err := openEvent(s.Bytes)
		if err != nil {
			return err
		}
		changed, err := withhold(e, func(c *contract.Content, part string) bool {
			if show(e.CallID, part) {
				return false
			}
			delete(src.Objects, c.Commitment)
			inline := c.Store == contract.StoreInline && c.Salt != ""
			if inline {
				c.Salt, c.Text = "", ""
			}
			return inline
		})
		if err != nil {
			return err
		}
		if !changed {
			continue
		}
		leaf := translog.LeafHash(s.Bytes)
		if s.Bytes, err = e.Encode(); err != nil {
			return err
		}
		s.leaf = &leaf
	}
	return nil
}

// withhold hands every content of an event's data to take, and writes the data
// anew if that changed one.
func withhold(e *contract.Event, take func(c *contract.Content, part string) bool) (changed bool, err error) {
	var doc canon.Document
	switch e.Name {
	case "call_proposed":
		var c contract.Call
		doc, err = &c, contract.Decode(e.Data, &c)
		changed = err == nil && payloads(&c, take)
	case "allowed":
		var a contract.Allowed
		doc, err = &a, contract.Decode(e.Data, &a)
		changed = err == nil && payloads(&a.Call, take)
	case "escalated":
		var x contract.Escalated
		doc, err = &x, contract.Decode(e.Data, &x)
		changed = err == nil && payloads(&x.Call, take)
	case "effect_recorded":
		var r contract.Recorded
		doc, err = &r, contract.Decode(e.Data, &r)
		changed = err == nil && r.Output != nil && take(r.Output, PartOutput)
	}
	if err != nil {
		return false, fmt.Errorf("event %s: %w", e.ID, err)
	}
	if changed {
		e.Data = contract.Bytes(doc)
	}
	return changed, nil
}

// payloads hands a call's args and body to take; the body is the args' part.
func payloads(c *contract.Call, take func(*contract.Content, string) bool) bool {
	args := take(&c.Args, PartArgs)
	return c.Body != nil && take(c.Body, PartArgs) || args
}

func leafLines(stored []Stored, events []*contract.Event) []byte {
	var b []byte
	for i, s := range stored {
		if s.leaf != nil {
			b = append(canon.Append(b, &redaction{events[i].ID, hex.EncodeToString(s.leaf[:])}), '\n')
		}
	}
	return b
}

// leavesOf is the leaf hash of each event: that of its bytes, or, where
// payloads are withheld from them, the one the pack names. An event is let off
// its own hash only where something really is withheld from it.
func leavesOf(m *Manifest, files map[string][]byte, events [][]byte) (leaves []translog.Hash, redacted int, err error) {
	named, err := lines(files[pathLeaves])
	if err != nil {
		return nil, 0, err
	}
	if (m.Format == FormatRedacted) != (len(named) > 0) {
		return nil, 0, fmt.Errorf("%d events are redacted in a pack of format %s", len(named), m.Format)
	}
	for _, b := range events {
		leaf := translog.LeafHash(b)
		if redacted < len(named) {
			var r redaction
			if err := contract.Decode(named[redacted], &r); err != nil {
				return nil, 0, err
			}
			e, err := openEvent(b)
			if err != nil {
				return nil, 0, err
			}
			if e.ID == r.ID {
				h, err := hex.DecodeString(r.Leaf)
				if err != nil || len(h) != len(leaf) || hex.EncodeToString(h) != r.Leaf {
					return nil, 0, errors.New("leaf is not lower-case hex of 32 bytes")
				}
				missing := false
				if _, err := withhold(e, func(c *contract.Content, _ string) bool {
					missing = missing || c.Store == contract.StoreInline && c.Salt == "" && c.Encryption == nil
					return false
				}); err != nil {
					return nil, 0, err
				}
				if !missing {
					return nil, 0, fmt.Errorf("event %s: nothing is withheld from it", e.ID)
				}
				leaf, redacted = translog.Hash(h), redacted+1
			}
		}
		leaves = append(leaves, leaf)
	}
	if redacted != len(named) {
		return nil, 0, errors.New("names events that are not there, or not in this order")
	}
	return leaves, redacted, nil
}
