package llm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
)

// Head is the metadata of an answer, sent in its first frame.
type Head struct {
	Status   int               `json:"status"`            // HTTP status for the caller
	Headers  map[string]string `json:"headers,omitempty"` // HTTP headers for the caller
	Instance string            `json:"instance"`          // the instance that sends the answer and receives credit frames
	Fault    *Fault            `json:"fault,omitempty"`   // an error that the gateway has yet to encode for the caller's API
}

// Fault is an error that the gateway encodes in the format of the caller's API.
type Fault struct {
	Type    string `json:"type,omitempty"`
	Code    string `json:"code"`
	Param   string `json:"param,omitempty"`
	Message string `json:"message"`
}

// Frame is one piece of an answer that is streamed to the caller.
type Frame struct {
	Head *Head // nil except in the first frame
	Data []byte
	End  []byte // bytes after Data; the gateway sends them to the caller only after the outcome is stored in the ledger
}

// Append appends the encoded frame to b: the head as JSON and Data, each preceded by its
// length as an unsigned varint, then End.
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

// ParseFrame decodes a frame that Append encoded. Data and End are slices of b. It
// returns an error if the frame is truncated or its head is not valid.
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

// cut returns the value at the start of b, which is preceded by its length, and the
// bytes after it. Both are slices of b.
func cut(b []byte) (part, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, errors.New("llm: truncated frame")
	}
	b = b[size:]
	return b[:n], b[n:], nil
}

// Window is the number of bytes of an answer that may be sent without credit from the
// gateway. It limits the memory that is used for a caller that does not read its answer.
const Window = 256 << 10

// CreditID returns the id under which the gateway sends the credit frames of a call.
func CreditID(call string) string { return "credit-" + call }
