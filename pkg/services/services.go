// Package services is the registry of the mesh's services: for each service its name,
// the calls that it executes, the uses of its signing key, the files of the key ring
// that it reads, the number of its instances, the views that it serves, the services
// that may query it, the folder of its data, and whether it may decrypt content.
//
// The registry holds data and no logic. Other lists of services are derived from it,
// such as the key ring, the executors that an intent may name, the readers of content
// keys, the paths of views, the kind families in metrics, the scopes of the built-in
// policy and the test harness, or compared with it by a test, such as the one-process
// mesh, docker-compose.yaml, the build list and each service's bus declaration. Of this
// repository the package imports package contract only, so that every module can
// import it.
//
// To add a service, add its value to all in registry.go; CONTRIBUTING.md lists the
// other places.
package services

import (
	"cmp"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Service holds the static properties of one service.
type Service struct {
	// Name is the name of the program, of its folder below services, and of its NATS
	// identity. It is also the producer in the subjects of its events.
	Name string
	// Reserved is true for a name that has no program yet but that intents and kinds may
	// already contain. Of the other fields, only Name, Executes and Kinds are then set.
	Reserved bool
	// Executes is true if an intent may name the service as its executor. A service with a
	// program then takes allowed calls and has a key for receipts.
	Executes bool
	// Kinds lists the families of calls that the service executes. Those of a service that
	// executes none are reserved.
	Kinds []Kind
	// Uses lists the uses of its signing key (contract.UseReceipt and so on). A service
	// without uses has no signing key.
	Uses []string
	// Files lists the files of the key ring that it reads besides root.kid, nats.ca, its
	// NATS identity and its signing key. A name that ends in "/" is a folder.
	Files []string
	// Instance is the prefix of the names of its instances, to which a number from 1 to
	// Slots is appended. "" means Name and a hyphen.
	Instance string
	// Slots is the maximum number of instances at a time. A service with one slot does
	// not scale out.
	Slots int
	// Views lists the views of the ledger that its instances serve, besides the view of
	// the key registry that every service has (KeysView).
	Views []View
	// Content is true if it may fetch the tenants' content keys, and so decrypt content.
	Content bool
	// State is the name of the folder, below the mesh's folder of data, that holds its
	// data. The data must survive a restart. State is "" for a service without such
	// data.
	State string
	// Elsewhere is true if the service can be configured to store its data elsewhere than
	// in the folder of State. If an instance uses the folder, it is the only one; otherwise
	// up to Slots instances may run.
	Elsewhere bool
	// Rebuilt is true if a restore makes the folder of State from the ledger and the newest
	// checkpoint, so that a backup does not contain it.
	Rebuilt bool
	// Queried lists the names of the services that may query this one, besides the
	// gateway.
	Queried []string
}

// Kind is a family of calls: those whose kind begins with Prefix and a dot.
type Kind struct {
	Prefix string
	// Scope is the scope that a caller's token needs for the built-in policy to allow a
	// call of the family. It is "" for a family that has no calls.
	Scope string
	// Callers is true for the family of functions that callers define in their requests.
	// They have no tool document in the mesh and cannot be proposed by name.
	Callers bool
	Names   []string // names of its kinds after the prefix, if tools may have names that begin with the prefix; nil means any
}

// View describes a view of the ledger and how clients reach it.
type View struct {
	Name string // name in reports, such as "policy.state"
	Path string // last element of the path of the view, /api/v1/views/<Path>
	Verb string // verb of the query that returns it; "" if the gateway itself holds the view
	// Lines is true for a view whose response is the dump itself, as lines, with the
	// position in the first line. The response of any other view is one JSON object with
	// the members name, position and dump.
	Lines bool
	// Optional is true for a view whose service need not run: if the view cannot be
	// read, in general because no instance runs, replay reports it as not compared and
	// does not fail.
	Optional bool
	// Snapshot is the name of the view under which snapshots of this one are stored, or ""
	// if there are none. It differs from Name if one reader serves several views.
	Snapshot string
}

// All returns every service, reserved names included, sorted by name. The caller owns
// the slice but must not change the slices in its elements.
func All() []Service {
	out := slices.Clone(all)
	slices.SortFunc(out, func(a, b Service) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Programs returns the services that have a program, which are all but the reserved
// ones, sorted by name. The caller owns the slice but must not change the slices in its
// elements.
func Programs() []Service {
	return slices.DeleteFunc(All(), func(s Service) bool { return s.Reserved })
}

// Get returns the service with the given name, reserved or not, and whether there is
// one.
func Get(name string) (Service, bool) {
	i := slices.IndexFunc(all, func(s Service) bool { return s.Name == name })
	if i < 0 {
		return Service{}, false
	}
	return all[i], true
}

// names returns the names of the services in a list for which holds returns true, in the
// order of the list.
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

// Executors returns the names that an intent may have as its executor, sorted. The
// gateway is one of them although it executes nothing: an intent for the gateway is
// handed out to the caller, who executes the call.
func Executors() []string { return names(All(), func(s *Service) bool { return s.Executes }) }

// ContentReaders returns the names of the services that may fetch content keys, sorted.
func ContentReaders() []string { return names(All(), func(s *Service) bool { return s.Content }) }

// Expected returns the names of the services that, by default, must run before a gateway
// is ready, sorted: every service that has a program, except the gateway.
func Expected() []string {
	return names(Programs(), func(s *Service) bool { return s.Name != Gateway })
}

// Snapshots returns the names of the services that take snapshots of their views.
func Snapshots() []string {
	return names(Programs(), func(s *Service) bool { return slices.Contains(s.Uses, contract.UseSnapshot) })
}

// Stateful returns the names of the services whose folder must survive a restart,
// sorted.
func Stateful() []string { return names(All(), func(s *Service) bool { return s.State != "" }) }

// Families returns the prefixes of all families of kinds, reserved ones included,
// sorted.
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

// KindOf returns the family that a kind such as "llm.chat" belongs to, and whether there
// is one.
func KindOf(kind string) (Kind, bool) {
	prefix, name, ok := strings.Cut(kind, ".")
	for _, s := range all {
		for _, k := range s.Kinds {
			if ok && k.Prefix == prefix && (k.Names == nil || slices.Contains(k.Names, name)) {
				return k, true
			}
		}
	}
	return Kind{}, false
}

// Kinds returns the families that have a scope, and so calls, in the order of the
// built-in policy's list.
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

// Views returns the views of all services in the order of replay's report, without the
// views of the key registry.
func Views() []View {
	var out []View
	for _, s := range all {
		out = append(out, s.Views...)
	}
	return out
}

// ViewAt returns the view with the given View.Path, including views of the key registry,
// and the service that serves it; ok is false if there is none.
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

// KeysView returns the description of the service's view of the key registry. It is
// optional, because an executor may be down while other views are compared.
func (s *Service) KeysView() View {
	return View{Name: "keys." + s.Name, Path: "keys-" + s.Name, Verb: KeysVerb, Optional: true}
}

// Account returns the name of the service's NATS account. The account owns no stream: it
// imports the subjects that the service may use.
func (s *Service) Account() string { return AccountOf(s.Name) }

// AccountOf returns the name of the NATS account of a service or of another identity,
// such as Provision.
func AccountOf(name string) string {
	return "SVC_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
