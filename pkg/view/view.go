// Package view declares views of the ledger, so that what rebuilds and compares
// them needs to know none by name: each service exports a Declaration per view,
// and replay loops over them.
//
// A view is a fold of the entries that its reader selects, in ledger order. It is
// rebuilt by one goroutine and dumped in a canonical form, which is byte for byte
// the live view's at the same position. The package holds no view itself. To add
// one, add it to the service's value in package services and to the declarations
// of the service.
package view

import (
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Declaration is one view: what it is called, what it reads, and how to begin it.
type Declaration struct {
	services.View // its name, and where the live view is that it is compared with
	// Reader selects the entries that the live view is built from. Only its filters
	// are used here.
	Reader bus.Reader
	// Empty begins the view before the ledger's first entry. The caller closes the
	// state if it implements io.Closer.
	Empty func(o *Origin) (State, error)
}

// Origin is what a view may be built from besides entries.
type Origin struct {
	RootKID string      // the trust anchor
	Keys    guard.KeyAt // keys as the registry has them so far
	// Open returns the content of a document. It returns contract.ErrErased or
	// contract.ErrEncrypted where the content is gone.
	Open func(*contract.Content) ([]byte, error)
	Dir  string // an empty folder that the view may fill
}

// State is a view under construction. It is not safe for concurrent use.
type State interface {
	// Apply folds one entry in that the reader selects. e is its event, or nil where
	// the entry holds none. Apply keeps nothing of en.Data. It returns an error only
	// where the view cannot be rebuilt; what a live view refuses, it refuses in
	// silence.
	Apply(en eventlog.Entry, e *contract.Event) error
	// Dump returns the canonical form of what was applied.
	Dump() ([]byte, error)
}

// Of declares a view of a service of the registry, with that name. It panics where
// the registry does not have the view: declarations are made at start, by hand.
func Of(service, name string, r bus.Reader, empty func(*Origin) (State, error)) Declaration {
	s, _ := services.Get(service)
	for _, v := range append(s.Views, s.KeysView()) {
		if v.Name == name {
			return Declaration{View: v, Reader: r, Empty: empty}
		}
	}
	panic(fmt.Sprintf("view %s is not in the registry's value of service %q", name, service))
}

// Fold makes a state of two functions: one that folds an event in, and one that
// returns the canonical form. Entries that hold no event are left out.
func Fold(apply func(*contract.Event) error, dump func() []byte) State { return &fold{apply, dump} }

type fold struct {
	apply func(*contract.Event) error
	dump  func() []byte
}

func (f *fold) Apply(_ eventlog.Entry, e *contract.Event) error {
	if e == nil {
		return nil
	}
	return f.apply(e)
}

func (f *fold) Dump() ([]byte, error) { return f.dump(), nil }

// Keys returns the declaration of the view that holds the key registry. Every instance
// of a service has this view (see package run).
func Keys(service string) Declaration {
	return Of(service, "keys."+service, bus.Trust, func(o *Origin) (State, error) {
		reg := &trust.Registry{Root: o.RootKID}
		return Fold(func(e *contract.Event) error {
			if k, ok := Key(e); ok {
				_ = reg.Apply(k, e.Lamport) // a service refuses what the registry refuses, and goes on
			}
			return nil
		}, reg.Dump), nil
	})
}

// Key returns the document of an event that publishes or revokes a key. ok is false
// for any other event, and for a document that cannot be read.
func Key(e *contract.Event) (k contract.TrustKey, ok bool) {
	if e.Service() != services.Provision || e.Name != contract.EventKeyPublished && e.Name != contract.EventKeyRevoked {
		return k, false
	}
	return k, contract.Decode(e.Data, &k) == nil
}

// Selection tells which of some views read an entry. It remembers what it found
// for each service and event, since a ledger has few of them and many entries. It
// is not safe for concurrent use.
type Selection struct {
	views []Declaration
	found map[string][]int // by service and event: the indexes of the views
}

// Select prepares a selection. The filters of the views' readers may name a service
// and an event, as all views' do; Select returns an error for one that names
// anything more, such as a tenant or a session.
func Select(views []Declaration) (*Selection, error) {
	for _, v := range views {
		for _, f := range v.Reader.Filters {
			p := bus.ParseFilter(f)
			if p.Tenant+p.Origin+p.Key != "" || p.String() != f {
				return nil, fmt.Errorf("view %s reads %s: a view's filter names a service and an event at most", v.Name, f)
			}
		}
	}
	return &Selection{views: views, found: map[string][]int{}}, nil
}

// Of returns the indexes of the views that read an entry with this subject, in the
// order of the views. An entry without an event has the subject "", and is read by
// the views that read everything.
func (s *Selection) Of(subject string) []int {
	p := bus.ParseFilter(subject)
	id := p.Service + "." + p.Event
	found, ok := s.found[id]
	if !ok {
		for i := range s.views {
			if selects(&s.views[i].Reader, p) {
				found = append(found, i)
			}
		}
		s.found[strings.Clone(id)] = found
	}
	return found
}

func selects(r *bus.Reader, p bus.Filter) bool {
	for _, f := range r.Filters {
		if want := bus.ParseFilter(f); (want.Service == "" || want.Service == p.Service) && (want.Event == "" || want.Event == p.Event) {
			return true
		}
	}
	return false
}
