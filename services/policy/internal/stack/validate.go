package stack

import (
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
)

// Validate checks the stack, which must be Readable, together with the limits, for
// consistency, and returns the findings. known holds the names that exist in the mesh;
// if it is nil, neither the existence of names nor the expiry of overlays is checked.
func (s *Stack) Validate(known *cpi.Known, limits []guard.Limit) []cpi.Finding {
	c := cpi.Stack{P0: s.ceilings, Known: known, Limits: limits}
	for i, b := range s.all() {
		c.Bundles = append(c.Bundles, cpi.Bundle{Name: b.Name, Clauses: b.engine.Clauses(), References: b.engine.References(), Own: i >= len(s.bundles)})
	}
	for _, o := range s.overlays {
		c.Overlays = append(c.Overlays, *o.doc)
	}
	return cpi.Validate(&c)
}

// Lines returns the stack, which must be Readable, as lines of text, for comparing two
// stacks: one for the ceilings, one for each rule of a bundle and one for each overlay.
func (s *Stack) Lines() []string {
	var out []string
	if s.ceilings != nil {
		out = append(out, "p0 "+string(contract.Bytes(s.ceilings)))
	}
	for _, b := range s.all() {
		for _, c := range b.engine.Clauses() {
			out = append(out, fmt.Sprintf("p1 %s: %s %s for %s if %s", b.Name, c.Verdict, c.Reason, c.Kind, strings.Join(c.Conds, " and ")))
		}
	}
	for _, o := range s.overlays {
		out = append(out, "p2 "+string(contract.Bytes(o.doc)))
	}
	return out
}
