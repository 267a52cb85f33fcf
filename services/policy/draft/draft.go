// Package draft reads, builds, tests, checks and compares policy documents before they
// are in force. The command line uses it to find errors without a running mesh. The
// package makes no network connections and writes no files.
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

// Stack is a stack of policy documents, which need not be in force. The zero value has
// no documents. A Stack is not safe for concurrent use.
type Stack struct{ in stack.Stack }

// InForce is a policy document in force, as policy's query for the policies in force
// returns it.
type InForce = state.InForce

// NewStack returns a stack with these documents, or an error if one of them cannot be
// read. A nil slice results in an empty stack.
func NewStack(inForce []InForce) (*Stack, error) {
	s := &Stack{}
	for _, x := range inForce {
		if err := s.Put(&Document{Layer: x.Layer, Name: x.Name, Precedence: x.Precedence, Body: x.Body}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Put adds a document to the stack, or replaces the one with the same layer and name. It
// returns an error if the document cannot be read. Ceilings may be unsigned, because
// their signature is verified when they are activated.
func (s *Stack) Put(d *Document) (err error) {
	s.in, err = With(s.in, d)
	return err
}

// With returns s with the document added or replaced, or an error if the document cannot
// be read. s itself is not changed.
func With(s stack.Stack, d *Document) (stack.Stack, error) {
	doc, err := compile(d)
	if err != nil {
		return s, err
	}
	return s.With(&contract.Activated{Layer: d.Layer, Name: d.Name, Precedence: d.Precedence, Digest: d.Layer + d.Name}, doc)
}

// compile reads a document without validating ceilings and overlays, so that
// Validate can report all of their faults.
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

// Finding is one fault of a stack, with the place in the document where it was
// found.
type Finding = cpi.Finding

// Validate runs the consistency check on the stack. It does not check the limits of
// policy.set_limits, whether the names in the documents exist, or whether overlays have
// expired, since only a mesh has that information.
func (s *Stack) Validate() []Finding { return s.in.Validate(nil, nil) }

// Fatal reports whether any of the findings prevents the activation of the stack;
// warnings do not.
func Fatal(fs []Finding) bool { return len(cpi.Errors(fs)) > 0 }

// Diff compares the lines of two stacks. A line is a rule of a bundle, the ceilings or
// an overlay. removed holds the lines that only old has, and added those that only next
// has.
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

// TestResult is the result of one Rego test, with its name, its place and the error if
// it could not run.
type TestResult = rego.TestResult

// Test runs the Rego tests (rules named test_…) in a folder with the test runner of
// OPA, against the bundle that Build packs from the folder. A failed test is a result
// and not an error; a bundle that cannot be built or compiled is an error.
func Test(ctx context.Context, path string) ([]TestResult, error) {
	files, err := bundleFiles(path, true)
	if err != nil {
		return nil, err
	}
	return rego.Test(ctx, files)
}
