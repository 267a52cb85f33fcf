package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// This file is the workbench: what the command line needs to look at policies
// before they are in force. Nothing in it touches the mesh.

// Document is a policy document of a layer, with a name of its own.
type Document struct {
	Layer      string
	Name       string
	Precedence int64
	Body       []byte
}

// ReadDocument reads a policy document from a file or folder: a bundle
// (.tar.gz, .rego, or a folder of Rego and data), an overlay (.json with a
// scope), or ceilings (.json, signed or not).
func ReadDocument(path string) (*Document, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
	switch {
	case info.IsDir(), strings.HasSuffix(path, ".rego"):
		b, err := BuildBundle(path, "", nil)
		return &Document{Layer: "p1", Name: strings.TrimSuffix(name, ".rego"), Precedence: 500, Body: b}, err
	case strings.HasSuffix(path, ".tar.gz"):
		b, err := os.ReadFile(path)
		return &Document{Layer: "p1", Name: name, Precedence: 500, Body: b}, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	body, err := canon.Transform(nil, raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var peek map[string]json.RawMessage
	if err := json.Unmarshal(body, &peek); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if peek["scope"] != nil {
		var o guard.Overlay
		if err := contract.Decode(body, &o); err != nil {
			return nil, fmt.Errorf("%s: overlay: %w", path, err)
		}
		return &Document{Layer: "p2", Name: o.ID, Body: body}, nil
	}
	return &Document{Layer: "p0", Body: body}, nil
}

// BuildBundle packs Rego and data files into a bundle. Files that end in
// _test.rego stay outside.
func BuildBundle(path, kid string, seed []byte) ([]byte, error) {
	files, err := bundleFiles(path, false)
	if err != nil {
		return nil, err
	}
	return rego.Build(files, kid, seed)
}

func bundleFiles(path string, tests bool) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		base := filepath.Base(p)
		if !(strings.HasSuffix(base, ".rego") && (tests || !strings.HasSuffix(base, "_test.rego")) || base == "data.json" || base == ".manifest") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		if rel == "." {
			rel = base
		}
		files[filepath.ToSlash(rel)] = b
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s holds no .rego file", path)
	}
	return files, err
}

// Workbench is a stack that is not in force.
type Workbench struct{ st stack.Stack }

// NewWorkbench starts from documents in force, as the mesh tells them; nil
// starts from nothing.
func NewWorkbench(inForce []InForce) (*Workbench, error) {
	w := &Workbench{}
	for _, x := range inForce {
		if err := w.Put(&Document{Layer: x.Layer, Name: x.Name, Precedence: x.Precedence, Body: x.Body}); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Put places a document in the stack. Ceilings may be unsigned here; who signed
// them is looked at when they are activated.
func (w *Workbench) Put(d *Document) error {
	var doc any
	var err error
	if d.Layer == "p0" {
		var c guard.Ceilings
		var s guard.SignedCeilings
		if contract.Decode(d.Body, &s) == nil {
			c = s.Ceilings
		} else if err := contract.Decode(d.Body, &c); err != nil {
			return fmt.Errorf("p0: %w", err)
		}
		doc = &c
	} else if d.Layer == "p2" {
		var o guard.Overlay
		if err := contract.Decode(d.Body, &o); err != nil {
			return fmt.Errorf("overlay: %w", err)
		}
		doc = &o // its faults are the validator's to name
	} else if doc, err = stack.Compile(d.Layer, d.Body, 0, nil); err != nil {
		return err
	}
	w.st, err = w.st.With(&contract.Activated{Layer: d.Layer, Name: d.Name, Precedence: d.Precedence, Digest: d.Layer + d.Name}, doc)
	return err
}

// Validate runs the consistency check, without what only the mesh knows: whether
// what the documents name exists.
func (w *Workbench) Validate() []cpi.Finding { return w.st.Validate(nil, nil) }

// Fatal reports whether a finding keeps the stack from being activated.
func Fatal(fs []cpi.Finding) bool { return len(cpi.Errors(fs)) > 0 }

// Diff compares two stacks rule by rule.
func Diff(old, next *Workbench) (removed, added []string) {
	a, b := old.st.Lines(), next.st.Lines()
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

// Test runs the Rego tests (rules named test_…) of a folder with OPA's own
// runner.
func Test(ctx context.Context, path string) ([]rego.TestResult, error) {
	files, err := bundleFiles(path, true)
	if err != nil {
		return nil, err
	}
	return rego.Test(ctx, files)
}

// Simulation decides recorded calls again: with what is in force now, and with a
// candidate beside it. What differs between the record and now has changed
// since; what differs between now and the candidate is the candidate's doing.
type Simulation struct {
	now             *State
	force, proposed stack.Stack
}

// NewSimulation places a candidate among what is in force in now, a state at the
// end of the ledger. Overlays that have expired at the time at are left out.
func NewSimulation(now *State, candidate *Document, at time.Time) (*Simulation, error) {
	now.mu.RLock()
	w := &Workbench{st: now.stack.WithoutExpired(contract.Time(at))}
	now.mu.RUnlock()
	s := &Simulation{now: now, force: w.st}
	if err := w.Put(candidate); err != nil {
		return nil, err
	}
	s.proposed = w.st
	return s, nil
}

// Opinion is a verdict and why.
type Opinion struct {
	Verdict string `json:"verdict"`
	Reason  string `json:"reason_code"`
}

// Decide decides a recorded call under what is in force now and under the
// candidate. Tools, their approvals, policies, roles and suspensions are
// today's; what the call itself brought, its time, its labels and what its
// limits and its approvers said stay as they were recorded.
func (s *Simulation) Decide(ctx context.Context, d *contract.Decision, args []byte) (now, would Opinion, err error) {
	var f guard.Facts
	if err := contract.Decode(d.Facts, &f); err != nil {
		return now, would, err
	}
	s.now.mu.RLock()
	f.Roles = s.now.gov.People.Roles(f.Actor, f.Now)
	f.Suspended = s.now.gov.People.Suspended(f.Actor) || f.OnBehalfOf != "" && s.now.gov.People.Suspended(f.OnBehalfOf)
	s.now.mu.RUnlock()
	of := func(st *stack.Stack) Opinion {
		c := stack.Call{ID: d.CallID, Facts: f, Args: args}
		b := st.Basis(&s.now.Catalog, &c.Facts)
		ev := stack.Evaluate(ctx, b, c)
		a := ev.Verdict()
		return Opinion{a.Verdict, a.Reason}
	}
	return of(&s.force), of(&s.proposed), nil
}
