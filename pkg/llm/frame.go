package llm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
)

// Head is the metadata of an answer at its first byte.
type Head struct {
	Status   int               `json:"status"`            // HTTP status for the caller
	Headers  map[string]string `json:"headers,omitempty"` // for the caller
	Instance string            `json:"instance"`          // the instance that sends, and receives credit
	Fault    *Fault            `json:"fault,omitempty"`   // an error without a text in the caller's API
}

// Fault is an error that the gateway encodes in the format of the caller's API.
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
	End  []byte // follows Data, and is sent only after the outcome is on the ledger
}

// Append appends the frame to b: the head as JSON and Data, each after its length, then
// End.
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

// cut splits a value off b that follows its length.
func cut(b []byte) (part, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, errors.New("llm: a frame is cut")
	}
	b = b[size:]
	return b[:n], b[n:], nil
}

// Window is the number of bytes that may be in transit to a caller that does not read:
// the sender stops there until the gateway gives credit.
const Window = 256 << 10

// CreditID is the id of a call's credit frames.
func CreditID(call string) string { return "credit-" + call }
