package stack

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// Stack is a set of policy documents, such as those in force. It is an immutable value:
// With returns a new one, so that a decision uses the same stack throughout. The zero
// value has no documents and denies every call.
type Stack struct {
	ceilings *guard.Ceilings // nil if there are none, or their content is erased
	digest   string          // digest of the ceilings; "" if there are none
	bundles  []bundle        // bundles in increasing order of precedence, then of name
	own      []bundle        // bundles of a tenant, in the same order, which can only narrow what bundles permit; see Over
	over     bool            // the stack is a result of Over, to which With adds bundles of the tenant
	overlays []overlay       // overlays in order of name; doc is nil if the content is erased
	history  []*contract.Activated
}

type bundle struct {
	*contract.Activated
	engine *rego.Engine // nil if the content is erased
}

type overlay struct {
	name, digest string
	doc          *guard.Overlay
}

// With returns the stack after the activation or retirement that a describes. doc is a
// result of Compile or an Erased value, and is ignored for a retirement. With returns an
// error if a retires the ceilings.
func (s Stack) With(a *contract.Activated, doc any) (Stack, error) {
	s.history = append(slices.Clip(s.history), a)
	mine := &s.bundles
	if s.over {
		mine = &s.own
	}
	*mine = slices.DeleteFunc(slices.Clone(*mine), func(b bundle) bool { return a.Layer == "p1" && b.Name == a.Name })
	s.overlays = slices.DeleteFunc(slices.Clone(s.overlays), func(o overlay) bool { return a.Layer == "p2" && o.name == a.Name })
	if a.Retired {
		if a.Layer == "p0" {
			return s, errors.New("the ceilings cannot be retired")
		}
		return s, nil
	}
	if x, ok := doc.(Erased); ok {
		doc = x.empty()
	}
	switch d := doc.(type) {
	case *guard.Ceilings:
		s.ceilings, s.digest = d, a.Digest
	case *rego.Engine:
		*mine = append(*mine, bundle{a, d})
		slices.SortFunc(*mine, ordered)
	case *guard.Overlay:
		s.overlays = append(s.overlays, overlay{a.Name, a.Digest, d})
		slices.SortFunc(s.overlays, func(x, y overlay) int { return cmp.Compare(x.name, y.name) })
	}
	return s, nil
}

// Empty reports whether the stack has no activations, not even retired ones.
func (s *Stack) Empty() bool { return len(s.history) == 0 }

// Over returns the documents in force for a tenant of a cell that is opened. s holds the
// tenant's own bundles and overlays, and base the ceilings and bundles of the cell, which
// apply whatever s holds: a bundle of s replaces none of base, also if it has the same name
// or a lower precedence, a retirement in s retires none, and an answer of the bundles of s
// only narrows that of the bundles of base. base has no overlays. Activations that With
// adds to the result are the tenant's.
func (s Stack) Over(base Stack) Stack {
	s.ceilings, s.digest = base.ceilings, base.digest
	s.bundles, s.own, s.over = base.bundles, s.bundles, true
	s.history = slices.Concat(base.history, s.history)
	return s
}

// Under returns the documents in force before the cell is opened, when all of them are
// those of the one tenant: the bundles and overlays of s and the ceilings of base.
func (s Stack) Under(base Stack) Stack {
	s.ceilings, s.digest = base.ceilings, base.digest
	s.history = slices.Concat(base.history, s.history)
	return s
}

// Of returns a copy of s to which With adds bundles of the cell or, if cell is false, of a
// tenant, as to a result of Over.
func (s Stack) Of(cell bool) Stack {
	s.over = !cell
	return s
}

// all returns the bundles in the order in which they are evaluated: the tenant's own last.
func (s *Stack) all() []bundle { return slices.Concat(s.bundles, s.own) }

// Split divides the documents of the original tenant when its cell is opened. The
// documents of the cell are those of base and, under each name, the bundle that the
// configuration activated last, unless the configuration retired it. Bundles whose last
// activation or retirement is not by the configuration, and the overlays in force,
// remain the tenant's own. open returns the compiled document of an activation that is
// not in force; its error is returned.
func (s Stack) Split(base Stack, open func(*contract.Activated) (any, error)) (cell, own Stack, err error) {
	latest, config := map[string]*contract.Activated{}, map[string]*contract.Activated{}
	for _, a := range s.history {
		if latest[a.Layer+a.Name] = a; a.Layer == "p1" && configured(a) {
			config[a.Name] = a
		}
	}
	cell = base
	for _, name := range slices.Sorted(maps.Keys(config)) {
		a := config[name]
		if a.Retired {
			continue
		}
		doc := s.compiled(a)
		if doc == nil {
			if doc, err = open(a); err != nil {
				return cell, own, err
			}
		}
		if cell, err = cell.With(a, doc); err != nil {
			return cell, own, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(latest)) {
		a := latest[key]
		if a.Layer == "p1" && a == config[a.Name] || a.Layer == "p2" && a.Retired {
			continue
		}
		if own, err = own.With(a, s.compiled(a)); err != nil {
			return cell, own, err
		}
	}
	return cell, own, nil
}

// configured reports whether an activation is by the configuration. The one bundle of
// release 0.1 has neither a name nor a source, and counts as configured, because the
// service retires it in the cell.
func configured(a *contract.Activated) bool {
	return a.Source == "config" || a.Layer == "p1" && a.Name == ""
}

// compiled returns the document of a bundle or overlay in force, or nil if the document of
// a is not in force.
func (s *Stack) compiled(a *contract.Activated) any {
	for _, b := range s.bundles {
		if a.Layer == "p1" && b.Name == a.Name && b.Digest == a.Digest {
			return b.engine
		}
	}
	for _, o := range s.overlays {
		if a.Layer == "p2" && o.name == a.Name && o.digest == a.Digest {
			return o.doc
		}
	}
	return nil
}

// ordered compares bundles by precedence, then by name.
func ordered(x, y bundle) int {
	return cmp.Or(cmp.Compare(x.Precedence, y.Precedence), cmp.Compare(x.Name, y.Name))
}

// WithoutExpired returns the stack without the overlays that have expired at now, a time
// in contract.TimeFormat. Overlays whose content is erased remain.
func (s Stack) WithoutExpired(now string) Stack {
	s.overlays = slices.DeleteFunc(slices.Clone(s.overlays), func(o overlay) bool {
		return o.doc != nil && o.doc.Expires != "" && o.doc.Expires <= now
	})
	return s
}

// Ceilings returns the P0 document in force, or nil if there is none or its content is
// erased. The caller must not change it.
func (s *Stack) Ceilings() *guard.Ceilings { return s.ceilings }

// InForce returns the activations of the documents in force: the ceilings, then the
// bundles in the order in which they are evaluated, then the overlays in order of name.
// Erased documents are included. The caller must not change the activations.
func (s *Stack) InForce() []*contract.Activated {
	find := func(layer, name, digest string) *contract.Activated {
		for _, a := range slices.Backward(s.history) {
			if a.Layer == layer && a.Name == name && a.Digest == digest && !a.Retired {
				return a
			}
		}
		return nil
	}
	var out []*contract.Activated
	if s.digest != "" {
		out = append(out, find("p0", "", s.digest))
	}
	for _, b := range s.all() {
		out = append(out, b.Activated)
	}
	for _, o := range s.overlays {
		out = append(out, find("p2", o.name, o.digest))
	}
	return out
}

// Readable returns nil if no document of the stack is an Erased value. Otherwise it
// returns an error that wraps contract.ErrErased and names the first such document.
func (s *Stack) Readable() error {
	if s.digest != "" && s.ceilings == nil {
		return fmt.Errorf("ceilings %s: %w", s.digest, contract.ErrErased)
	}
	for _, b := range s.all() {
		if b.engine == nil {
			return fmt.Errorf("bundle %s, %s: %w", b.Name, b.Digest, contract.ErrErased)
		}
	}
	for _, o := range s.overlays {
		if o.doc == nil {
			return fmt.Errorf("overlay %s, %s: %w", o.name, o.digest, contract.ErrErased)
		}
	}
	return nil
}

// Tools is the set of tool documents in force. catalog.Tools implements it.
type Tools interface {
	// Lookup returns the document of a kind and its digest, or nil and "none".
	Lookup(kind string) (t *contract.Tool, digest string)
	// Approved returns the digest of the tool document under which a kind may be called,
	// or "" if there is none. explicit is true if that document was approved by a
	// governing call.
	Approved(kind string) (digest string, explicit bool)
	// Digest returns a digest that covers all documents in the set.
	Digest() string
}

// Basis returns the documents by which a call with these facts is decided now. It adds to
// the facts the digests of the tool and of the catalog, and how many bundles are the
// tenant's own. For a tool of another service than policy, it also adds the approved
// digest if it differs from the tool's, or "none" if the ceilings require an approval
// that the tool lacks. If the stack is not Readable, the basis has no policy documents,
// so that the call is denied.
func (s *Stack) Basis(tools Tools, f *guard.Facts) Basis {
	f.ToolPinned, f.OwnBundles = "", 0
	tool, digest := tools.Lookup(f.Kind)
	if tool != nil && tool.Tool != f.Tool && (clientkind.Family(f.Kind) != tool.Kind || f.Tool != f.Kind) {
		tool, digest = nil, "none"
	}
	f.ToolDigest, f.CatalogDigest = digest, tools.Digest()
	if tool != nil && tool.Executor != services.Policy {
		approved, explicit := tools.Approved(f.Kind)
		switch {
		case !explicit && s.ceilings != nil && s.ceilings.ExplicitTools:
			f.ToolPinned = "none"
		case approved != digest:
			f.ToolPinned = approved
		}
	}
	if s.Readable() != nil {
		return Basis{Tool: tool, Rules: toolschema.Closed}
	}
	f.OwnBundles = int64(len(s.own))
	b := Basis{Tool: tool, Ceilings: s.ceilings, Bundles: make([]*rego.Engine, 0, len(s.bundles)+len(s.own)), Rules: toolschema.Closed}
	var p1, p2 []string
	for _, list := range [...][]bundle{s.bundles, s.own} {
		for i := range list {
			b.Bundles = append(b.Bundles, list[i].engine)
			p1 = append(p1, list[i].Digest)
		}
	}
	for i := range s.overlays {
		if o := &s.overlays[i]; o.doc.Applies(f) {
			b.Overlays = append(b.Overlays, o.doc)
			p2 = append(p2, o.digest)
		}
	}
	b.Digests = contract.PolicyDigests{P0: s.digest, P1: strings.Join(p1, "+"), P2: strings.Join(p2, "+")}
	return b
}
