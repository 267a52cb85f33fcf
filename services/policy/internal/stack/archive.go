package stack

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// Archive holds, by digest, the policy documents that were ever in force and the tool
// documents that were ever registered, so that recorded decisions can be taken again.
// The zero value is empty. It is not safe for concurrent use.
type Archive struct {
	documents map[string]any // key is the layer followed by the digest
	tools     map[string]*contract.Tool
}

// Add stores a policy document of a layer. doc is the result of Compile, or an
// Erased value for a document whose content cannot be read.
func (a *Archive) Add(layer, digest string, doc any) {
	if a.documents == nil {
		a.documents = map[string]any{}
	}
	a.documents[layer+digest] = doc
}

// AddStack stores the policy documents of s whose content is not erased.
func (a *Archive) AddStack(s *Stack) {
	if s.ceilings != nil {
		a.Add("p0", s.digest, s.ceilings)
	}
	for _, b := range s.all() {
		if b.engine != nil {
			a.Add("p1", b.Digest, b.engine)
		}
	}
	for _, o := range s.overlays {
		if o.doc != nil {
			a.Add("p2", o.digest, o.doc)
		}
	}
}

// Lacks reports whether the decision d names a policy document of a layer by this digest
// that is not in the archive.
func (a *Archive) Lacks(d *contract.Decision, layer, digest string) bool {
	named := map[string]string{"p0": d.Policies.P0, "p1": d.Policies.P1, "p2": d.Policies.P2}[layer]
	return slices.Contains(split(named), digest) && a.documents[layer+digest] == nil
}

// AddTool stores a tool document under its digest. Documents are never removed.
func (a *Archive) AddTool(t *contract.Tool) {
	if a.tools == nil {
		a.tools = map[string]*contract.Tool{}
	}
	a.tools[contract.Digest(t)] = t
}

// Basis returns the documents that the recorded decision d names, and the rules by which
// the release that recorded d applied schemas. e is the event that recorded d, and f
// holds the facts of d, which name the tool document. Basis fails with
// contract.ErrErased if the content of a policy document cannot be read, and with
// another error if a document is not in the archive.
func (a *Archive) Basis(e *contract.Event, d *contract.Decision, f *guard.Facts) (Basis, error) {
	b := Basis{Digests: d.Policies, Rules: rulesOf(e)}
	for _, x := range []struct{ layer, digests string }{{"p0", d.Policies.P0}, {"p1", d.Policies.P1}, {"p2", d.Policies.P2}} {
		for _, digest := range split(x.digests) {
			switch doc := a.documents[x.layer+digest].(type) {
			case *guard.Ceilings:
				b.Ceilings = doc
			case *rego.Engine:
				b.Bundles = append(b.Bundles, doc)
			case *guard.Overlay:
				b.Overlays = append(b.Overlays, doc)
			case Erased:
				return b, fmt.Errorf("policy %s: %w", digest, contract.ErrErased)
			default:
				return b, errors.New("a policy it names was never activated")
			}
		}
	}
	if f.ToolDigest != "none" {
		if b.Tool = a.tools[f.ToolDigest]; b.Tool == nil {
			return b, errors.New("the tool document it names was never registered")
		}
	}
	return b, nil
}

// rulesOf returns the rules by which the release that recorded a decision applied
// schemas. Only release 0.1 wrote version 1 of allowed and effect_recorded.
func rulesOf(e *contract.Event) toolschema.Rules {
	if e.Version == 1 && (e.Name == contract.EventAllowed || e.Name == contract.EventEffectRecorded) {
		return toolschema.Open
	}
	return toolschema.Closed
}

// split returns the digests in one field of contract.PolicyDigests, which joins
// them by "+".
func split(digests string) []string {
	if digests == "" {
		return nil
	}
	return strings.Split(digests, "+")
}
