package evidence

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// The parts of a call that can be withheld from a pack.
const (
	PartArgs   = "args"
	PartOutput = "output"
)

// Redact removes from src the payloads for which show returns false. show is called with
// the id of a call, and with PartArgs or PartOutput. Redact removes the payloads from
// the events and from the objects, but leaves the ciphertext of encrypted inline
// content. The commitments remain in the events, and in the decisions and receipts whose
// signatures cover them. If Redact changed an event, the pack that Build makes of src
// has FormatRedacted. After an error src may be partly redacted and must not be used.
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

// withhold calls take for every content in the data of a proposal, decision or outcome.
// take returns true if it changed the content; in that case withhold encodes the data
// again and reports the change.
func withhold(e *contract.Event, take func(c *contract.Content, part string) bool) (changed bool, err error) {
	var (
		doc  canon.Document
		call *contract.Call // the call in doc; nil if doc contains none
		rec  *contract.Recorded
	)
	switch e.Name {
	case contract.EventCallProposed:
		call = &contract.Call{}
		doc = call
	case contract.EventAllowed:
		a := &contract.Allowed{}
		doc, call = a, &a.Call
	case contract.EventEscalated:
		x := &contract.Escalated{}
		doc, call = x, &x.Call
	case contract.EventEffectRecorded:
		rec = &contract.Recorded{}
		doc = rec
	default:
		return false, nil
	}
	if err := contract.Decode(e.Data, doc); err != nil {
		return false, fmt.Errorf("event %s: %w", e.ID, err)
	}
	if call != nil {
		changed = payloads(call, take)
	} else if rec.Output != nil {
		changed = take(rec.Output, PartOutput)
	}
	if changed {
		e.Data = contract.Bytes(doc)
	}
	return changed, nil
}

// payloads calls take for a call's args and body. The body belongs to
// PartArgs. payloads reports whether take returned true for one of them.
func payloads(c *contract.Call, take func(*contract.Content, string) bool) bool {
	args := take(&c.Args, PartArgs)
	return c.Body != nil && take(c.Body, PartArgs) || args
}

// leafLines returns the lines of pathLeaves: one for each redacted event.
func leafLines(stored []Stored, events []*contract.Event) []byte {
	var b []byte
	for i, s := range stored {
		if s.leaf != nil {
			b = append(canon.Append(b, &redaction{events[i].ID, hex.EncodeToString(s.leaf[:])}), '\n')
		}
	}
	return b
}

// leavesOf returns the leaf hash of each event, and the number of redacted events. The
// leaf of a redacted event is the one that the pack names; the leaf of any other event
// is computed from its bytes. A pack may name a leaf only for an event from which a
// payload is withheld, and must have FormatRedacted if and only if it names one;
// otherwise leavesOf returns an error.
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
			h, err := redactedLeaf(b, named[redacted])
			if err != nil {
				return nil, 0, err
			}
			if h != nil {
				leaf, redacted = *h, redacted+1
			}
		}
		leaves = append(leaves, leaf)
	}
	if redacted != len(named) {
		return nil, 0, errors.New("names events that are not there, or not in this order")
	}
	return leaves, redacted, nil
}

// redactedLeaf returns the leaf hash in a line of pathLeaves if the line is about this
// event, and otherwise nil. It returns an error if the line or the event is malformed, or
// if nothing is withheld from the event.
func redactedLeaf(event, line []byte) (*translog.Hash, error) {
	var r redaction
	if err := contract.Decode(line, &r); err != nil {
		return nil, err
	}
	e, err := openEvent(event)
	if err != nil || e.ID != r.ID {
		return nil, err
	}
	leaf, ok := parseHash(r.Leaf)
	if !ok {
		return nil, errors.New("leaf is not lower-case hex of 32 bytes")
	}
	missing := false
	_, err = withhold(e, func(c *contract.Content, _ string) bool {
		missing = missing || c.Store == contract.StoreInline && c.Salt == "" && c.Encryption == nil
		return false
	})
	if err == nil && !missing {
		err = fmt.Errorf("event %s: nothing is withheld from it", e.ID)
	}
	return &leaf, err
}
