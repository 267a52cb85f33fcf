// Package draft reads, builds, tests, checks and compares policy documents before
// they are in force, for the command line. Nothing in it reaches the mesh.
package draft

import (
	"context"
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/state"
)

// Stack is policies that are not in force. The zero value has none.
type Stack struct{ in stack.Stack }

// InForce is a policy document in force, as the mesh returns it.
type InForce = state.InForce

// NewStack starts from the documents in force; nil starts from nothing.
func NewStack(inForce []InForce) (*Stack, error) {
	s := &Stack{}
	for _, x := range inForce {
		if err := s.Put(&Document{Layer: x.Layer, Name: x.Name, Precedence: x.Precedence, Body: x.Body}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Put places a document in the stack, in place of the one of its layer and name.
// Ceilings may be unsigned; their signature is checked when they are activated.
func (s *Stack) Put(d *Document) (err error) {
	s.in, err = With(s.in, d)
	return err
}

// With returns a stack with a document in it.
func With(s stack.Stack, d *Document) (stack.Stack, error) {
	doc, err := compile(d)
	if err != nil {
		return s, err
	}
	return s.With(&contract.Activated{Layer: d.Layer, Name: d.Name, Precedence: d.Precedence, Digest: d.Layer + d.Name}, doc)
}

// compile reads a document. The faults of ceilings and overlays are Validate's to
// name.
func compile(d *Document) (any, error) {
	switch d.Layer {
	case "p0":
		var c guard.Ceilings
		var signed guard.SignedCeilings
		if contract.Decode(d.Body, &signed) == nil {
			c = signed.Ceilings
		} else if err := contract.Decode(d.Body, &c); err != nil {
			return nil, fmt.Errorf("p0: %w", err)
		}
		return &c, nil
	case "p2":
		var o guard.Overlay
		if err := contract.Decode(d.Body, &o); err != nil {
			return nil, fmt.Errorf("overlay: %w", err)
		}
		return &o, nil
	}
	return stack.Compile(d.Layer, d.Body, 0, nil)
}

// Finding is one thing wrong with a stack.
type Finding = cpi.Finding

// Validate runs the consistency check, without what only the mesh knows: whether
// what the documents name exists.
func (s *Stack) Validate() []Finding { return s.in.Validate(nil, nil) }

// Fatal reports whether a finding forbids the activation of the stack.
func Fatal(fs []Finding) bool { return len(cpi.Errors(fs)) > 0 }

// Diff compares two stacks rule by rule.
func Diff(old, next *Stack) (removed, added []string) {
	a, b := old.in.Lines(), next.in.Lines()
	for _, l := range a {
		if !slices.Contains(b, l) {
			removed = append(removed, l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			added = append(added, l)
		}
	}
	return removed, added
}

// TestResult is how one Rego test ended.
type TestResult = rego.TestResult

// Test runs the Rego tests (rules named test_…) of a folder with OPA's own
// runner.
func Test(ctx context.Context, path string) ([]TestResult, error) {
	files, err := bundleFiles(path, true)
	if err != nil {
		return nil, err
	}
	return rego.Test(ctx, files)
}
