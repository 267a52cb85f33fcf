package limit

import (
	"encoding/json"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Version is the version of the code that applies events, and of the result of Save; see
// snapshot.Source.
const Version = 3

// saved is the JSON form of a State in a snapshot.
type saved struct {
	Now     string            `json:"now"`
	Changes int               `json:"changes"`
	Rows    []Row             `json:"rows"`
	Open    []json.RawMessage `json:"open"` // canonical documents events.Reserved

	Allotments []savedAllotment `json:"allotments,omitempty"`
	Drawn      []savedDrawn     `json:"drawn,omitempty"`
}

// Save returns the whole state in the form that Load reads. Equal states have equal
// bytes.
func (s *State) Save() ([]byte, error) {
	d := saved{Now: s.now, Changes: s.changes, Rows: s.Rows(), Allotments: saveAllotments(s), Drawn: saveDrawn(s)}
	for _, call := range s.Open() {
		r := s.open[call]
		d.Open = append(d.Open, canon.Append(nil, &r))
	}
	return json.Marshal(&d)
}

// Load replaces the state with one that Save returned. After an error the state is
// unchanged.
func (s *State) Load(b []byte) error {
	var d saved
	if err := json.Unmarshal(b, &d); err != nil {
		return err
	}
	n := State{now: d.Now, changes: d.Changes, accounts: map[key]*account{}, open: map[Call]events.Reserved{}}
	for _, r := range d.Rows {
		n.accounts[key{r.Account, r.Window}] = &account{r.Reserved, r.Committed, r.Unused}
	}
	for _, raw := range d.Open {
		var r events.Reserved
		if err := contract.Decode(raw, &r); err != nil {
			return err
		}
		n.open[Call{r.Tenant, r.CallID}] = r
	}
	loadAllotments(&n, d.Allotments, d.Drawn)
	*s = n
	return nil
}
