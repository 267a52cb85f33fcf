package llm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
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
	Head  *Head // in the first frame only
	Final bool  // to be shown only once the outcome is on the ledger
	Data  []byte
}

const (
	flagHead  = 1
	flagFinal = 2
)

// Append writes the frame behind b.
func (f *Frame) Append(b []byte) ([]byte, error) {
	flags := byte(0)
	if f.Final {
		flags |= flagFinal
	}
	if f.Head == nil {
		return append(append(b, flags), f.Data...), nil
	}
	head, err := json.Marshal(f.Head)
	if err != nil {
		return nil, err
	}
	b = binary.AppendUvarint(append(b, flags|flagHead), uint64(len(head)))
	return append(append(b, head...), f.Data...), nil
}

// ParseFrame reads a frame; Data points into b.
func ParseFrame(b []byte) (*Frame, error) {
	if len(b) == 0 {
		return nil, errors.New("llm: empty frame")
	}
	f := &Frame{Final: b[0]&flagFinal != 0}
	withHead := b[0]&flagHead != 0
	b = b[1:]
	if withHead {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return nil, errors.New("llm: frame's head is cut")
		}
		f.Head = &Head{}
		if err := json.Unmarshal(b[size:size+int(n)], f.Head); err != nil {
			return nil, err
		}
		b = b[size+int(n):]
	}
	f.Data = b
	return f, nil
}

// Window is how many bytes may be on their way to a caller that does not read:
// whoever sends stops there until the gateway gives credit.
const Window = 256 << 10

// CreditID is the mailbox id under which a call's credit comes.
func CreditID(call string) string { return "credit-" + call }
