package starts

import (
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// Version is the version of Apply and of the form of Save; see snapshot.Source.
const Version = 1

// saved is the JSON form of a View in a snapshot.
type saved struct {
	At    uint64      `json:"at"`
	Calls []savedCall `json:"calls"`
}

type savedCall struct {
	CallID  string `json:"call_id"`
	Seq     uint64 `json:"seq"`
	Subject string `json:"subject"`
	Expired bool   `json:"expired"`
}

// Save returns the whole view, for Load, and the sequence of the last entry applied.
// Equal views have equal bytes.
func (v *View) Save() ([]byte, uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := saved{At: v.at}
	for _, expired := range []bool{false, true} {
		calls := v.calls
		if expired {
			calls = v.ending
		}
		for _, id := range slices.Sorted(maps.Keys(calls)) {
			d.Calls = append(d.Calls, savedCall{id, calls[id].seq, calls[id].subject, expired})
		}
	}
	b, err := json.Marshal(&d)
	return b, v.at, err
}

// Load replaces the view with one that Save returned. After an error the view is
// unchanged.
func (v *View) Load(b []byte) error {
	var d saved
	if err := json.Unmarshal(b, &d); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at, v.calls, v.ending = d.At, map[string]held{}, map[string]held{}
	for _, c := range d.Calls {
		h := held{seq: c.Seq, subject: c.Subject, since: time.Now()}
		if c.Expired {
			v.ending[c.CallID] = h
		} else {
			v.calls[c.CallID] = h
		}
	}
	return nil
}
