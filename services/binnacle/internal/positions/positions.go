// Package positions computes from the ledger the position at which a work consumer
// continues after the server has lost the consumer's state: the position of the oldest
// item that is not completed, so that no item is lost and few completed items are
// delivered again. One pass over the ledger serves all consumers.
package positions

import (
	"hash/maphash"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Fold folds the ledger, from its first entry on, for the given work. It is not safe for
// concurrent use.
type Fold struct {
	works []bus.Work
	roles map[string][]role // results of rolesOf, by <service>.<event>
	seed  maphash.Seed
	open  []map[uint64]uint64   // by work: the sequence of the first item of each call with items that are not completed, by the hash of the call's id
	ended []map[uint64]struct{} // by work: hashes of the ids of the calls for which an event was found that completes the call's items
	last  uint64
}

// role states whether an event is an item of one work, or completes its items.
type role struct {
	work int
	item bool
}

// New returns the fold of an empty ledger for the given work.
func New(works []bus.Work) *Fold {
	f := &Fold{works: works, roles: map[string][]role{}, seed: maphash.MakeSeed()}
	for range works {
		f.open, f.ended = append(f.open, map[uint64]uint64{}), append(f.ended, map[uint64]struct{}{})
	}
	return f
}

// Apply applies the next entry. It does not retain en.Data. It does not check that the
// entry is a valid event: an item that its consumer would reject is delivered again, and
// only the services that Work.Ends names can complete an item.
func (f *Fold) Apply(en eventlog.Entry) {
	f.last = en.Seq
	roles := f.rolesOf(en.Subject)
	if len(roles) == 0 {
		return
	}
	call := maphash.String(f.seed, contract.PeekCallID(en.Data))
	for _, r := range roles {
		if !r.item {
			f.ended[r.work][call] = struct{}{}
			delete(f.open[r.work], call)
			continue
		}
		if _, ended := f.ended[r.work][call]; ended {
			continue
		}
		if _, ok := f.open[r.work][call]; !ok {
			f.open[r.work][call] = en.Seq
		}
	}
}

// rolesOf returns the roles of an entry with this subject.
func (f *Fold) rolesOf(subject string) []role {
	p := bus.ParseFilter(subject)
	id := p.Service + "." + p.Event
	roles, ok := f.roles[id]
	if !ok {
		for i := range f.works {
			if bus.MatchAny(f.works[i].Filters, subject) {
				roles = append(roles, role{i, true})
			}
			if bus.MatchAny(f.works[i].Ends, subject) {
				roles = append(roles, role{i, false})
			}
		}
		f.roles[id] = roles
	}
	return roles
}

// From returns the sequence from which the consumer of work i, by its index in New, must
// deliver: the sequence of the oldest item that is not completed, or, if there is none,
// the one after the last entry applied.
func (f *Fold) From(i int) uint64 {
	from := f.last + 1
	for _, seq := range f.open[i] {
		from = min(from, seq)
	}
	return from
}
