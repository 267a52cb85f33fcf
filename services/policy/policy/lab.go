package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
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
type Workbench struct{ st stack }

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
	} else if doc, err = compile(d.Layer, d.Body, 0, nil); err != nil {
		return err
	}
	w.st, err = w.st.with(&contract.Activated{Layer: d.Layer, Name: d.Name, Precedence: d.Precedence, Digest: d.Layer + d.Name}, doc)
	return err
}

// Validate runs the consistency check; kinds is the catalog's, or nil.
func (w *Workbench) Validate(kinds []string) []cpi.Finding { return w.st.validate(kinds, nil) }

// Fatal reports whether a finding keeps the stack from being activated.
func Fatal(fs []cpi.Finding) bool { return len(cpi.Errors(fs)) > 0 }

// Lines lists every rule of the stack in one line each, for comparing stacks.
func (w *Workbench) Lines() []string {
	var out []string
	if w.st.p0 != nil {
		out = append(out, "p0 "+string(contract.Bytes(w.st.p0)))
	}
	for _, b := range w.st.p1 {
		for _, c := range b.engine.Clauses() {
			out = append(out, fmt.Sprintf("p1 %s: %s %s for %s if %s", b.name, c.Verdict, c.Reason, c.Kind, strings.Join(c.Conds, " and ")))
		}
	}
	for _, o := range w.st.p2 {
		out = append(out, "p2 "+string(contract.Bytes(o.doc)))
	}
	return out
}

// Diff compares two stacks rule by rule.
func Diff(old, next *Workbench) (removed, added []string) {
	a, b := old.Lines(), next.Lines()
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

// Simulate decides a recorded call again under the bundles and overlays of a
// candidate stack; the facts and the ceilings stay the recorded ones unless
// the candidate has ceilings of its own.
func (st *State) Simulate(ctx context.Context, d *contract.Decision, args []byte, w *Workbench) (verdict, reason string, err error) {
	in := guard.Inputs{CallID: d.CallID, Policies: d.Policies, P0: w.st.p0}
	if err := contract.Decode(d.Facts, &in.Facts); err != nil {
		return "", "", err
	}
	if in.Tool, err = st.recorded(&in.Facts); err != nil {
		return "", "", err
	}
	answer(ctx, &in, w.st.engines(), w.st.overlays(&in.Facts), args)
	verdict, reason, _ = guard.Redecide(in)
	return verdict, reason, nil
}

func (st *State) recorded(f *guard.Facts) (*contract.Tool, error) {
	if f.ToolDigest == "none" {
		return nil, nil
	}
	if t := st.tools[f.ToolDigest]; t != nil {
		return t, nil
	}
	return nil, errors.New("the tool document it names was never registered")
}

// Step is one layer's part in a decision.
type Step struct {
	Layer   string `json:"layer"`
	Digest  string `json:"digest,omitempty"`
	Verdict string `json:"verdict,omitempty"` // empty: no opinion
	Reason  string `json:"reason_code,omitempty"`
	At      string `json:"at,omitempty"` // the rule that answered
}

// Explain takes a recorded decision apart: what each layer said. Keep must
// have been set.
func (st *State) Explain(ctx context.Context, d *contract.Decision, args []byte) ([]Step, error) {
	in := guard.Inputs{CallID: d.CallID, Policies: d.Policies}
	if err := contract.Decode(d.Facts, &in.Facts); err != nil {
		return nil, err
	}
	var err error
	if in.Tool, err = st.recorded(&in.Facts); err != nil {
		return nil, err
	}
	in.P0, _ = st.kept["p0"+d.Policies.P0].(*guard.Ceilings)
	out := []Step{{Layer: "gates and p0", Digest: d.Policies.P0, Verdict: d.Verdict, Reason: d.ReasonCode}}
	// What the gates say shows with every layer allowing.
	open := in
	open.P1 = guard.Answer{Verdict: contract.Allow, Reason: "RULE_OPEN"}
	gates := guard.Judge(open)
	if out[0].Verdict, out[0].Reason = gates.Verdict, gates.Reason; gates.Reason == "RULE_OPEN" {
		out[0].Verdict, out[0].Reason = "", ""
	}
	if in.Tool == nil || args == nil {
		return out, nil
	}
	reason := checker.Input(in.Facts.ToolDigest, in.Tool, args)
	s := Step{Layer: "input schema", Digest: in.Facts.ToolDigest}
	if reason != "" {
		s.Verdict, s.Reason = contract.Deny, reason
	}
	out = append(out, s)
	input := rego.NewInput(&in.Facts, in.Tool, args)
	for _, digest := range split(d.Policies.P1) {
		e, ok := st.kept["p1"+digest].(*rego.Engine)
		if !ok {
			return nil, errors.New("a policy it names was never activated")
		}
		a, at := e.Explain(ctx, input)
		out = append(out, Step{Layer: "p1", Digest: digest, Verdict: a.Verdict, Reason: a.Reason, At: at})
		if a.Verdict != "" {
			break
		}
	}
	for _, digest := range split(d.Policies.P2) {
		if o, ok := st.kept["p2"+digest].(*guard.Overlay); ok {
			a := o.Answer(&in.Facts, in.Tool)
			out = append(out, Step{Layer: "p2 " + o.ID, Digest: digest, Verdict: a.Verdict, Reason: a.Reason})
		}
	}
	if b := in.Facts.Budget; b != nil {
		s := Step{Layer: "limits " + strings.Join(b.Accounts, " ")}
		if b.Refused != "" {
			s.Verdict, s.Reason = contract.Deny, b.Refused
		}
		out = append(out, s)
	}
	if in.Facts.Resolution != "" {
		out = append(out, Step{Layer: "approvals", Reason: in.Facts.Resolution})
	}
	return append(out, Step{Layer: "decision", Verdict: d.Verdict, Reason: d.ReasonCode}), nil
}
