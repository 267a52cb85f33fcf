package starts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Version is the version of Apply and of the form of Save; see snapshot.Source. Version 1
// identified a call by its id alone, so it listed only one of two tenants' calls with the
// same id.
const Version = 2

// saved is the JSON form of a View in a snapshot.
type saved struct {
	At    uint64      `json:"at"`
	Calls []savedCall `json:"calls"`
}

type savedCall struct {
	CallID  string `json:"call_id"`
	Seq     uint64 `json:"seq"`
	Subject string `json:"subject"` // of the event that allows the call; contains the tenant
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
		for _, id := range slices.SortedFunc(maps.Keys(calls), order) {
			d.Calls = append(d.Calls, savedCall{id.id, calls[id].seq, calls[id].subject, expired})
		}
	}
	b, err := json.Marshal(&d)
	return b, v.at, err
}

// order compares calls by tenant, then by id.
func order(a, b call) int {
	return cmp.Or(strings.Compare(a.tenant, b.tenant), strings.Compare(a.id, b.id))
}

// Load replaces the view with one that Save returned. After an error the view is
// unchanged.
func (v *View) Load(b []byte) error {
	var d saved
	if err := json.Unmarshal(b, &d); err != nil {
		return err
	}
	calls, ending := map[call]held{}, map[call]held{}
	for _, c := range d.Calls {
		subject := strings.Split(c.Subject, ".")
		if len(subject) != 6 {
			return fmt.Errorf("call %s: malformed subject %q", c.CallID, c.Subject)
		}
		to := calls
		if c.Expired {
			to = ending
		}
		to[call{subject[1], c.CallID}] = held{seq: c.Seq, subject: c.Subject, since: time.Now()}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at, v.calls, v.ending = d.At, calls, ending
	return nil
}
