package budget

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/services/policy/internal/limit"
)

// saved is the JSON form of the budget ledgers in a snapshot.
type saved struct {
	At      uint64        `json:"at"` // sequence of the last entry applied
	Ledgers []savedLedger `json:"ledgers"`
}

// savedLedger is the JSON form of a budget ledger in a snapshot.
type savedLedger struct {
	Tenant string          `json:"tenant"`
	Last   uint64          `json:"last"` // sequence of the last event of the ledger that was applied
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

// Save calls Read, and returns the states of the ledgers and the sequence of the last
// entry applied. It returns the error of Read.
func (x *Ledgers) Save(ctx context.Context) ([]byte, uint64, error) {
	if err := x.Read(ctx); err != nil {
		return nil, 0, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	d := saved{At: x.position, Ledgers: []savedLedger{}}
	for _, tenant := range slices.Sorted(maps.Keys(x.book.by)) {
		if x.book.by[tenant].Changed() {
			one, err := x.in(tenant).save()
			if err != nil {
				return nil, 0, err
			}
			d.Ledgers = append(d.Ledgers, one)
		}
	}
	raw, err := json.Marshal(&d)
	return raw, d.At, err
}

// save returns the form of the ledger in a snapshot. The caller holds x.mu.
func (b *Ledger) save() (savedLedger, error) {
	state, err := b.state().Save()
	d := savedLedger{Tenant: b.tenant, Last: b.last, Open: []savedOpen{}, State: state}
	for _, call := range slices.SortedFunc(maps.Keys(b.since), limit.Call.Compare) {
		s := b.since[call]
		d.Open = append(d.Open, savedOpen{call.Tenant, call.ID, s.seq, s.from})
	}
	return d, err
}

// Load replaces the states, which must be empty, with the states that Save returned.
// After an error the states must not be used.
func (x *Ledgers) Load(raw []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	d, err := x.book.load(raw)
	if err != nil {
		return err
	}
	x.position = d.At
	for _, one := range d.Ledgers {
		b := x.in(one.Tenant)
		b.last = one.Last
		for _, o := range one.Open {
			b.since[limit.Call{Tenant: o.Tenant, ID: o.CallID}] = openSince{o.Seq, o.From, time.Now()}
		}
	}
	return nil
}

// load replaces the book with the states that Ledgers.Save returned.
func (k *book) load(raw []byte) (d saved, err error) {
	if err := json.Unmarshal(raw, &d); err != nil {
		return d, err
	}
	var n book
	for i := range d.Ledgers {
		if err := n.in(d.Ledgers[i].Tenant).Load(d.Ledgers[i].State); err != nil {
			return d, err
		}
	}
	n.index()
	*k = n
	return d, nil
}

// Load replaces the view with the states that Ledgers.Save returned.
func (v *View) Load(raw []byte) error {
	_, err := v.book.load(raw)
	return err
}

// Version is the version of the result of Save and of the code that computes the states;
// see snapshot.Source.
const Version = limit.Version
