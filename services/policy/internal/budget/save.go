package budget

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

// saved is the JSON form of a budget ledger in a snapshot.
type saved struct {
	Tenant string          `json:"tenant"`
	Last   uint64          `json:"last"` // sequence of the last change
	Open   []savedOpen     `json:"open"`
	State  json.RawMessage `json:"state"`
}

// savedOpen is the JSON form of openSince.
type savedOpen struct {
	Tenant string `json:"tenant,omitempty"`
	CallID string `json:"call_id"`
	Seq    uint64 `json:"seq"`
	From   uint64 `json:"from"`
}

// Save reads the ledgers to their end, and returns their states and the sequence of the
// last change in them. It returns the errors of Read.
func (x *Ledgers) Save(ctx context.Context) ([]byte, uint64, error) {
	if err := x.Read(ctx); err != nil {
		return nil, 0, err
	}
	all, last := []saved{}, uint64(0)
	for _, b := range x.sorted() {
		d, err := b.save()
		if err != nil {
			return nil, 0, err
		}
		if d.Last > 0 {
			all, last = append(all, d), max(last, d.Last)
		}
	}
	raw, err := json.Marshal(all)
	return raw, last, err
}

// save returns the form of the ledger in a snapshot.
func (b *Ledger) save() (saved, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	state, err := b.state.Save()
	d := saved{Tenant: b.tenant, Last: b.last, Open: []savedOpen{}, State: state}
	for _, call := range slices.SortedFunc(maps.Keys(b.since), limit.Call.Compare) {
		s := b.since[call]
		d.Open = append(d.Open, savedOpen{call.Tenant, call.ID, s.seq, s.from})
	}
	return d, err
}

// Load replaces the states, which must be empty, with the states that Save returned.
// After an error the states must not be used.
func (x *Ledgers) Load(raw []byte) error {
	var all []saved
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	for i := range all {
		if err := x.in(all[i].Tenant).load(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// load replaces the state of the ledger.
func (b *Ledger) load(d *saved) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.state.Load(d.State); err != nil {
		return err
	}
	b.last = d.Last
	for _, o := range d.Open {
		b.since[limit.Call{Tenant: o.Tenant, ID: o.CallID}] = openSince{o.Seq, o.From, time.Now()}
	}
	return nil
}

// Load replaces the view with the states that Ledgers.Save returned.
func (v *View) Load(raw []byte) error {
	var all []saved
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	v.by = map[string]*limit.State{}
	for i := range all {
		s := &limit.State{}
		if err := s.Load(all[i].State); err != nil {
			return err
		}
		v.by[all[i].Tenant] = s
	}
	return nil
}

// Version is the version of the form of Save and of the folding code.
const Version = limit.Version
