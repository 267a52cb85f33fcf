package stack

import (
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// History is the sequence of recorded activations of policy documents, oldest
// first.
type History []Activation

// Activation is one recorded activation with the Lamport time of its event. The
// signature of ceilings must have been valid at that time.
type Activation struct {
	*contract.Activated
	Lamport uint64
	Tenant  string // tenant in which the content of the document is stored
}

// HistoryOf decodes the activations in the events of the policy aggregate. It
// returns the first decoding error.
func HistoryOf(events []*contract.Event) (History, error) {
	var out History
	for _, e := range events {
		var a contract.Activated
		if err := contract.Decode(e.Data, &a); err != nil {
			return nil, err
		}
		out = append(out, Activation{&a, e.Lamport, e.Tenant})
	}
	return out, nil
}

// OfCell returns the activations in h that belong to the cell: those of ceilings, and those
// of bundles by the configuration; see Stack.Split. h must be the history that the original
// tenant recorded before the cell was opened.
func (h History) OfCell() History {
	return h.without(func(a *contract.Activated) bool { return a.Layer != "p0" && (a.Layer != "p1" || !configured(a)) })
}

// Own returns the activations in h that belong to the original tenant: those of overlays,
// and those of every bundle whose last activation or retirement is not by the
// configuration; see Stack.Split. h must be the history that the original tenant recorded
// before the cell was opened.
func (h History) Own() History {
	byConfig := map[string]bool{} // by name of a bundle: whether its last activation or retirement is by the configuration
	for _, x := range h {
		if x.Layer == "p1" {
			byConfig[x.Name] = configured(x.Activated)
		}
	}
	return h.without(func(a *contract.Activated) bool { return a.Layer == "p0" || a.Layer == "p1" && byConfig[a.Name] })
}

// without returns the activations for which drop returns false.
func (h History) without(drop func(*contract.Activated) bool) (out History) {
	for _, x := range h {
		if !drop(x.Activated) {
			out = append(out, x)
		}
	}
	return out
}

// Holder returns the tenant in which the content of a's document is stored: that of the last
// activation in h with the same layer and content, or "" if there is none.
func (h History) Holder(a *contract.Activated) string {
	for _, x := range slices.Backward(h) {
		if x.Layer == a.Layer && x.Bundle.Commitment == a.Bundle.Commitment {
			return x.Tenant
		}
	}
	return ""
}

// InForce returns the document in force for a layer and name, and the one that was in
// force before: the last one with another digest, or one that was retired. Either is nil
// if there is none.
func (h History) InForce(layer, name string) (now, before *contract.Activated) {
	for _, x := range h {
		a := x.Activated
		switch {
		case a.Layer != layer || a.Name != name:
		case a.Retired:
			now, before = nil, now
		case now == nil || a.Digest != now.Digest:
			if now != nil {
				before = now
			}
			now = a
		default:
			now = a
		}
	}
	return now, before
}

// configured reports whether a has the digest and precedence of the last document that
// the configuration file activated for the layer and name of a. If so, the file has not
// changed, and a later change by a person remains in force when the service restarts.
func (h History) configured(a *contract.Activated) bool {
	for _, x := range slices.Backward(h) {
		if x.Layer == a.Layer && x.Name == a.Name && x.Source == "config" {
			return x.Digest == a.Digest && x.Precedence == a.Precedence
		}
	}
	return false
}

// Resolve completes the activation a. A rollback gets the document that was in force
// before; a retirement gets the one that is in force; changes is true for both. For any
// other activation, changes is false if the document is in force already with the same
// precedence, or if it comes from the configuration file and is the last one that the
// file activated. Resolve returns an error if there is nothing to roll back to or to
// retire.
func (h History) Resolve(a *contract.Activated, rollback bool) (changes bool, err error) {
	now, before := h.InForce(a.Layer, a.Name)
	switch {
	case rollback && before == nil:
		return false, errors.New("name: there is no earlier version")
	case rollback:
		a.Bundle, a.Digest, a.Precedence, a.Source = before.Bundle, before.Digest, before.Precedence, "rollback"
	case a.Retired && now == nil:
		return false, errors.New("name: no document with this name is in force")
	case a.Retired:
		a.Bundle, a.Digest, a.Precedence = now.Bundle, now.Digest, now.Precedence
	case a.Source == "config" && h.configured(a):
		return false, nil
	case now != nil && now.Digest == a.Digest && now.Precedence == a.Precedence:
		return false, nil
	}
	return true, nil
}

// Build compiles the stack that results from the history and one more activation. Retired
// documents are omitted. open returns the content of a document that a tenant stores.
// The signature of ceilings is verified at the Lamport time of their activation, so that
// the later revocation of a root key does not invalidate them. Build returns the errors
// of open and Compile.
func (h History) Build(more Activation, open func(tenant string, c *contract.Content) ([]byte, error), keys guard.KeyAt) (*Stack, error) {
	var s Stack
	latest := map[string]int{}
	all := append(slices.Clip(h), more)
	for i, a := range all {
		latest[a.Layer+"/"+a.Name] = i
	}
	for i, a := range all {
		if latest[a.Layer+"/"+a.Name] != i || a.Retired {
			continue
		}
		body, err := open(a.Tenant, &a.Bundle)
		if err != nil {
			return nil, err
		}
		doc, err := Compile(a.Layer, body, a.Lamport, keys)
		if err != nil {
			return nil, err
		}
		if s, err = s.With(a.Activated, doc); err != nil {
			return nil, err
		}
	}
	return &s, nil
}
