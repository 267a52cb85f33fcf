// Package services is the registry of the mesh's services: one value per service
// that says its name, what it executes, which keys it signs with and reads, how
// many instances may run, which views it serves and what it may open.
//
// It holds facts and decides nothing. What else lists services is derived from it
// (the key ring, the executors that an intent may name, readers of content keys,
// the paths of views, metrics' kind families, the scopes of the built-in policy,
// the test harness) or compared with it by a test (the one-process mesh,
// docker-compose.yaml, the build list, each service's bus declaration). It may
// import package contract and nothing else of this repository, so that every
// module can import it.
//
// To add a service, add its value to all in registry.go; CONTRIBUTING.md lists the
// other places.
package services

import (
	"cmp"
	"slices"
	"strings"
)

// Service is what the mesh knows of one service before any of its code runs.
type Service struct {
	// Name is the name of the program, of its folder below services, of its NATS
	// identity and of the producer in the subjects of its events.
	Name string
	// Reserved is true for a name that intents and kinds may use already and that
	// has no program. The other fields but Executes and Kinds are then empty.
	Reserved bool
	// Executes is true if an intent may name the service as its executor.
	Executes bool
	// Kinds are the families of calls that it executes.
	Kinds []Kind
	// Uses are the uses of its signing key (contract.UseReceipt and so on); a
	// service without one has no signing key.
	Uses []string
	// Files are the files of the key ring that it reads besides root.kid, nats.ca,
	// its NATS identity and its signing key. A name that ends in "/" is a folder.
	Files []string
	// Instance begins the names of its instances, which a number from 1 to Slots
	// ends; "" stands for Name and a hyphen.
	Instance string
	// Slots is how many instances may run at a time. A service with one slot runs
	// once: it does not scale.
	Slots int
	// Views are the views of the ledger that its instances serve, besides the view
	// of keys that every service has (KeysView).
	Views []View
	// Content is true if it may hold the tenants' content keys, and so read what is
	// encrypted under them.
	Content bool
	// State is true if it has a folder that outlives its process. Where the folder
	// is lost, a service without State loses nothing.
	State bool
	// Queried are the services that may query it, besides the gateway.
	Queried []string
}

// Kind is a family of calls: those whose kind begins with Prefix and a dot.
type Kind struct {
	Prefix string
	// Scope is what a caller's token must hold for the built-in policy to allow a
	// call of the family; "" for a reserved family, of which there is no call.
	Scope string
	// Callers is true for the family of functions that callers bring along, which
	// have no document of the mesh's own and cannot be proposed by name.
	Callers bool
}

// View is a view of the ledger as callers find it.
type View struct {
	Name string // as reports name it: "policy.state"
	Path string // last element of its path, /api/v1/views/<Path>
	Verb string // the query that returns it; "" where the gateway has it itself
	// Lines is true for a view whose response is the dump itself, line by line, with
	// the position in the first line. The response of any other view is one object
	// that holds name, position and dump.
	Lines bool
	// Optional is true for a view that replay reports as not compared, instead of
	// failing, where no instance serves it.
	Optional bool
}

// All returns every service, by name, reserved names among them. The caller owns
// the slice and must not change what its elements refer to.
func All() []Service {
	out := slices.Clone(all)
	slices.SortFunc(out, func(a, b Service) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Programs returns the services that have a program, by name: all but the reserved.
func Programs() []Service {
	return slices.DeleteFunc(All(), func(s Service) bool { return s.Reserved })
}

// Get returns the service of that name, reserved or not.
func Get(name string) (Service, bool) {
	i := slices.IndexFunc(all, func(s Service) bool { return s.Name == name })
	if i < 0 {
		return Service{}, false
	}
	return all[i], true
}

// names returns the names of the services that a condition holds for, sorted.
func names(of []Service, holds func(*Service) bool) []string {
	var out []string
	for i := range of {
		if holds(&of[i]) {
			out = append(out, of[i].Name)
		}
	}
	return out
}

// Names returns the names of the services that have a program, sorted.
func Names() []string { return names(Programs(), func(*Service) bool { return true }) }

// Executors returns the names that an intent may name as its executor, sorted. The
// gateway is among them and executes nothing: an intent that names it is handed
// out to the caller, who executes the call.
func Executors() []string { return names(All(), func(s *Service) bool { return s.Executes }) }

// ContentReaders returns the names of the services that may hold content keys,
// sorted.
func ContentReaders() []string { return names(All(), func(s *Service) bool { return s.Content }) }

// Expected returns the names of the services without which a gateway is not ready,
// sorted: every service that has a program, but the gateway.
func Expected() []string {
	return names(Programs(), func(s *Service) bool { return s.Name != Gateway })
}

// Stateful returns the names of the services with a folder that outlives them,
// sorted.
func Stateful() []string { return names(All(), func(s *Service) bool { return s.State }) }

// Families returns the prefixes of all families of kinds, reserved ones among
// them, sorted.
func Families() []string {
	var out []string
	for _, s := range all {
		for _, k := range s.Kinds {
			out = append(out, k.Prefix)
		}
	}
	slices.Sort(out)
	return out
}

// KindOf returns the family that a kind belongs to.
func KindOf(kind string) (Kind, bool) {
	prefix, _, ok := strings.Cut(kind, ".")
	for _, s := range all {
		for _, k := range s.Kinds {
			if ok && k.Prefix == prefix {
				return k, true
			}
		}
	}
	return Kind{}, false
}

// Kinds returns the families of which there are calls, in the order in which the
// built-in policy lists them.
func Kinds() []Kind {
	var out []Kind
	for _, s := range all {
		for _, k := range s.Kinds {
			if k.Scope != "" {
				out = append(out, k)
			}
		}
	}
	return out
}

// Views returns the views of all services, in the order in which replay reports
// them, without the views of keys.
func Views() []View {
	var out []View
	for _, s := range all {
		out = append(out, s.Views...)
	}
	return out
}

// ViewAt returns the view whose path ends in path, and the service that serves it.
func ViewAt(path string) (v View, service string, ok bool) {
	for _, s := range all {
		for _, v := range append(slices.Clone(s.Views), s.KeysView()) {
			if v.Path == path && !s.Reserved {
				return v, s.Name, true
			}
		}
	}
	return View{}, "", false
}

// KeysView returns the view of the registry of keys that each instance of a service
// has. An executor may be down while the others are compared, so it is optional.
func (s *Service) KeysView() View {
	return View{Name: "keys." + s.Name, Path: "keys-" + s.Name, Verb: KeysVerb, Optional: true}
}

// Account returns the name of the service's NATS account, which imports what the
// service may use and holds no stream.
func (s *Service) Account() string { return AccountOf(s.Name) }

// AccountOf returns the name of the NATS account of an identity.
func AccountOf(name string) string {
	return "SVC_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
