package llm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
)

// Head is what is known of an answer when its first bytes go out.
type Head struct {
	Status   int               `json:"status"`            // HTTP status for the caller
	Headers  map[string]string `json:"headers,omitempty"` // for the caller
	Instance string            `json:"instance"`          // who sends, and takes credit
	Fault    *Fault            `json:"fault,omitempty"`   // an error without words of its own API
}

// Fault is an error that the caller gets in the shape of its API.
type Fault struct {
	Type    string `json:"type,omitempty"`
	Code    string `json:"code"`
	Param   string `json:"param,omitempty"`
	Message string `json:"message"`
}

// Frame is one piece of an answer on its way to the caller.
type Frame struct {
	Head *Head // in the first frame only
	Data []byte
	End  []byte // comes behind Data, to be shown only once the outcome is on the ledger
}

// Append writes the frame behind b: the head as JSON, and Data, each behind its
// length, then End.
func (f *Frame) Append(b []byte) ([]byte, error) {
	var head []byte
	if f.Head != nil {
		var err error
		if head, err = json.Marshal(f.Head); err != nil {
			return nil, err
		}
	}
	b = slices.Grow(b, len(head)+len(f.Data)+len(f.End)+2*binary.MaxVarintLen32)
	b = append(binary.AppendUvarint(b, uint64(len(head))), head...)
	b = append(binary.AppendUvarint(b, uint64(len(f.Data))), f.Data...)
	return append(b, f.End...), nil
}

// ParseFrame reads a frame; Data and End point into b.
func ParseFrame(b []byte) (*Frame, error) {
	head, b, err := cut(b)
	if err != nil {
		return nil, err
	}
	f := &Frame{}
	if len(head) > 0 {
		f.Head = &Head{}
		if err := json.Unmarshal(head, f.Head); err != nil {
			return nil, err
		}
	}
	f.Data, f.End, err = cut(b)
	return f, err
}

// cut takes what stands behind its length off b.
func cut(b []byte) (part, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, errors.New("llm: a frame is cut")
	}
	b = b[size:]
	return b[:n], b[n:], nil
}

// Window is how many bytes may be on their way to a caller that does not read:
// whoever sends stops there until the gateway gives credit.
const Window = 256 << 10

// CreditID is the mailbox id under which a call's credit comes.
func CreditID(call string) string { return "credit-" + call }
