// Package view declares the views of the ledger, so that the code that rebuilds and
// compares views works for all of them: each service exports a Declaration for each of
// its views, and replay processes the list of declarations.
//
// A view is a fold, in ledger order, of the entries that its reader selects. One
// goroutine rebuilds it and dumps it in a canonical form; at the same position, the
// dump equals the live view's byte for byte. The package itself contains only the view
// of the key registry. To add a view, add it to the service's value in package services
// and to the declarations of the service.
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

// Declaration describes one view: its name, the entries that it reads, and how to create
// it.
type Declaration struct {
	services.View // the name, and the path or query that returns the live view
	// Reader selects the entries that the live view is built from. This package uses its
	// filters only.
	Reader bus.Reader
	// Code is the version of the code that folds the view, if snapshots of it are taken;
	// see snapshot.Source.
	Code int64
	// Alone means that the view depends on the entries alone: it uses neither
	// Keys nor Open of its Origin. Replay builds such a view concurrently with
	// the others.
	Alone bool
	// Empty returns the state of the view before the ledger's first entry. The caller
	// closes the state if it implements io.Closer.
	Empty func(o *Origin) (State, error)
}

// Origin holds the data, besides ledger entries, from which a view may be built.
type Origin struct {
	RootKID string      // key id of the root key
	Keys    guard.KeyAt // looks up keys in the key registry as of the entries applied so far
	// Open returns the bytes of a tenant's content. It returns contract.ErrErased for an erased
	// or withheld content, contract.ErrEncrypted for an encrypted one, and another error
	// if the bytes cannot be read.
	Open func(tenant string, c *contract.Content) ([]byte, error)
	Dir  string // path of a folder for the view's files; the view creates the folder, which is empty if it exists; "" for a view that stores no files
}

// State is a view that is being rebuilt. It is not safe for concurrent use.
type State interface {
	// Apply applies one entry that the reader selects. e is the event in the entry, or
	// nil if the entry is not a valid event. Apply must not retain en.Data. It ignores
	// an event that the live view would reject; an error means that the view cannot be
	// rebuilt at all.
	Apply(en eventlog.Entry, e *contract.Event) error
	// Dump returns the canonical form of the view's current state.
	Dump() ([]byte, error)
}

// Loader is implemented by a State whose snapshots are not lists of entries.
type Loader interface {
	// Load replaces the empty view with the state in a snapshot.
	Load(state []byte) error
}

// At returns the declaration with the given version of the code that folds the view.
func (d Declaration) At(code int64) Declaration {
	d.Code = code
	return d
}

// Of returns the declaration of the view that package services lists under that service
// and name. It panics if there is no such view, because declarations are written by hand
// and made at start.
func Of(service, name string, r bus.Reader, empty func(*Origin) (State, error)) Declaration {
	s, _ := services.Get(service)
	for _, v := range append(s.Views, s.KeysView()) {
		if v.Name == name {
			return Declaration{View: v, Reader: r, Empty: empty}
		}
	}
	panic(fmt.Sprintf("view %s is not in the registry's value of service %q", name, service))
}

// Fold returns a State that is made of two functions: apply applies an event, and dump
// returns the canonical form. Entries that are not valid events are skipped.
func Fold(apply func(*contract.Event) error, dump func() []byte) State { return &fold{apply, dump} }

// fold is the State that Fold returns.
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

// FoldLoad is Fold for a view that implements Loader with the function load.
func FoldLoad(apply func(*contract.Event) error, dump func() []byte, load func([]byte) error) State {
	return &loading{fold{apply, dump}, load}
}

// loading is the State that FoldLoad returns.
type loading struct {
	fold
	load func([]byte) error
}

func (l *loading) Load(state []byte) error { return l.load(state) }

func (f *fold) Dump() ([]byte, error) { return f.dump(), nil }

// Keys returns the declaration of the view that holds the key registry. Every instance
// of a service has this view (see package run).
func Keys(service string) Declaration {
	return Of(service, "keys."+service, bus.Trust, func(o *Origin) (State, error) {
		reg := &trust.Registry{Root: o.RootKID}
		return Fold(func(e *contract.Event) error {
			if k, ok := Key(e); ok {
				_ = reg.Apply(k, e.Lamport) // a running service also ignores documents that the registry rejects
			}
			return nil
		}, reg.Dump), nil
	})
}

// Key returns the key document of an event by which Provision publishes or revokes a
// key. ok is false for any other event, and if the document cannot be decoded.
func Key(e *contract.Event) (k contract.TrustKey, ok bool) {
	if e.Service() != services.Provision || e.Name != contract.EventKeyPublished && e.Name != contract.EventKeyRevoked {
		return k, false
	}
	return k, contract.Decode(e.Data, &k) == nil
}

// Selection determines which views read an entry. It caches the result for each pair of
// service and event, because a ledger has few such pairs and many entries. It is not
// safe for concurrent use.
type Selection struct {
	views []Declaration
	found map[string][]int // indexes of the views, by service "." event
}

// Select returns a Selection of the given views. It returns an error if a filter of a
// view's reader is not a filter for events, or restricts more than service and event,
// such as a tenant or a session.
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

// Of returns the indexes of the views that read an entry with this subject, in
// increasing order. For an entry that is not a valid event, subject is ""; only views
// whose filters restrict neither service nor event read such an entry. The caller must
// not change the slice.
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

// selects reports whether one of the reader's filters matches an entry with the service
// and the event of p.
func selects(r *bus.Reader, p bus.Filter) bool {
	for _, f := range r.Filters {
		if want := bus.ParseFilter(f); (want.Service == "" || want.Service == p.Service) && (want.Event == "" || want.Event == p.Event) {
			return true
		}
	}
	return false
}
