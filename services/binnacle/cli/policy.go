package cli

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
)

const policyVerbs = `VERB
  offline:   validate PATH… | test DIR | diff PATH PATH | build DIR --out FILE [--sign SEEDFILE]
  the mesh:  show | activate PATH|--url URL|--object COMMITMENT --size N | rollback LAYER [NAME] | retire LAYER NAME
             diff PATH | simulate PATH | explain CALL | approve-tool KIND [DIGEST] | limits | set-limits FILE`

// policyCmd looks at policies and puts them in force.
func policyCmd(ctx context.Context, c *env) error {
	f := policyFlags{
		layer: c.fs.String("layer", "", "p0, p1 or p2 (default: what the document is)"), name: c.fs.String("name", "", "name of the bundle (default: of the file)"),
		precedence: c.fs.Int64("precedence", 500, "of the bundle; the lower speaks first"), url: c.fs.String("url", "", "bundle server's address of the bundle"),
		object: c.fs.String("object", "", "commitment of a bundle in the object store"), size: c.fs.Int64("size", 0, "of the object, in bytes"),
		out: c.fs.String("out", "", "file to write"), seed: c.fs.String("sign", "", "file of the signing seed, 32 bytes in hex"),
	}
	verb, rest, err := c.verb(policyVerbs)
	if err != nil {
		return err
	}
	switch n := len(rest); {
	case verb == "validate" && n > 0:
		return c.validate(rest)
	case verb == "test" && n == 1:
		return c.policyTest(ctx, rest[0])
	case verb == "build" && n == 1:
		return c.build(rest[0], &f)
	case verb == "diff" && (n == 1 || n == 2):
		return c.diff(ctx, rest)
	case verb == "simulate" && n == 1:
		return c.simulate(ctx, rest[0], &f)
	case verb == "explain" && n == 1:
		return c.explain(ctx, rest[0])
	case verb == "show" && n == 0:
		return c.show(ctx)
	case verb == "activate" && n <= 1:
		return c.activate(ctx, rest, &f)
	case verb == "rollback" && (n == 1 || n == 2):
		args := map[string]string{"layer": rest[0]}
		if n == 2 {
			args["name"] = rest[1]
		}
		return c.say(c.governed(ctx, "policy.rollback", args))
	case verb == "retire" && n == 2:
		return c.say(c.governed(ctx, "policy.retire", map[string]string{"layer": rest[0], "name": rest[1]}))
	case verb == "approve-tool" && (n == 1 || n == 2):
		return c.approveTool(ctx, rest)
	case verb == "limits" && n == 0:
		return c.limits(ctx)
	case verb == "set-limits" && n == 1:
		b, err := os.ReadFile(rest[0])
		if err != nil {
			return err
		}
		var doc guard.Limits
		if err := strictJSON(b, &doc); err != nil {
			return fail(exitUsage, "%s: want {\"limits\": […]}: %v", rest[0], err)
		}
		if doc.Limits == nil {
			doc.Limits = []guard.Limit{}
		}
		return c.say(c.governed(ctx, "policy.set_limits", map[string]any{"limits": doc.Limits}))
	}
	return fail(exitUsage, "usage: binnacle policy %s", policyVerbs)
}

type policyFlags struct {
	layer, name, url, object, out, seed *string
	precedence, size                    *int64
}

// validate checks documents as one stack, offline. Without ceilings among them
// the default ones stand in.
func (c *env) validate(paths []string) error {
	w, err := policy.NewWorkbench(nil)
	if err != nil {
		return err
	}
	ceilings := false
	for _, p := range paths {
		d, err := policy.ReadDocument(p)
		if err == nil {
			err = w.Put(d)
		}
		if err != nil {
			return fail(exitFailed, "%v", err)
		}
		ceilings = ceilings || d.Layer == "p0"
	}
	if !ceilings {
		if err := w.Put(&policy.Document{Layer: "p0", Body: contract.Bytes(&keyring.DefaultCeilings)}); err != nil {
			return err
		}
	}
	findings := w.Validate()
	if err := c.print(findings, func() {
		for _, f := range findings {
			fmt.Fprintln(c.out, f)
		}
	}); err != nil {
		return err
	}
	if policy.Fatal(findings) {
		return fail(exitFailed, "the stack is not consistent")
	}
	if !*c.json {
		fmt.Fprintln(c.out, "consistent")
	}
	return nil
}

func (c *env) policyTest(ctx context.Context, dir string) error {
	results, err := policy.Test(ctx, dir)
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	failed := 0
	for _, r := range results {
		if !r.Passed {
			failed++
		}
	}
	if err := c.print(results, func() {
		for _, r := range results {
			state := "ok  "
			if !r.Passed {
				state = "FAIL"
			}
			fmt.Fprintf(c.out, "%s %s %s %s\n", state, r.At, r.Name, r.Error)
		}
	}); err != nil {
		return err
	}
	switch {
	case len(results) == 0:
		return fail(exitFailed, "%s holds no test_… rule", dir)
	case failed > 0:
		return fail(exitFailed, "%d of %d tests failed", failed, len(results))
	}
	return nil
}

func (c *env) build(dir string, f *policyFlags) error {
	if *f.out == "" {
		return fail(exitUsage, "policy build wants --out")
	}
	var kid string
	var seed []byte
	if *f.seed != "" {
		var err error
		if seed, err = keyring.ReadSeed(*f.seed); err != nil {
			return err
		}
		k, err := sign.NewKey(seed)
		if err != nil {
			return err
		}
		kid = k.KID
	}
	b, err := policy.BuildBundle(dir, kid, seed)
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	if err := private.Write(*f.out, b); err != nil {
		return err
	}
	return c.print(map[string]string{"file": *f.out, "digest": sign.Digest(b), "kid": kid}, func() { fmt.Fprintf(c.out, "wrote %s\n%s\n", *f.out, sign.Digest(b)) })
}

// inForce is the mesh's stack, as a workbench.
func (c *env) inForce(ctx context.Context) (*policy.Workbench, error) {
	var docs []policy.InForce
	if err := c.get(ctx, "/api/v1/policies", &docs); err != nil {
		return nil, err
	}
	return policy.NewWorkbench(docs)
}

// diff compares a document with what is in force in its place, or two
// documents with each other.
func (c *env) diff(ctx context.Context, paths []string) error {
	var old, next *policy.Workbench
	var err error
	if len(paths) == 1 {
		if old, err = c.inForce(ctx); err != nil {
			return err
		}
		if next, err = c.inForce(ctx); err != nil {
			return err
		}
	} else {
		old, next = &policy.Workbench{}, &policy.Workbench{}
		d, err := policy.ReadDocument(paths[0])
		if err == nil {
			d.Name = ""
			err = old.Put(d)
		}
		if err != nil {
			return fail(exitFailed, "%v", err)
		}
	}
	d, err := policy.ReadDocument(paths[len(paths)-1])
	if err == nil {
		if len(paths) == 2 {
			d.Name = ""
		}
		err = next.Put(d)
	}
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	removed, added := policy.Diff(old, next)
	return c.print(map[string][]string{"removed": removed, "added": added}, func() {
		for _, l := range removed {
			fmt.Fprintln(c.out, "-", l)
		}
		for _, l := range added {
			fmt.Fprintln(c.out, "+", l)
		}
	})
}

// change is one recorded call whose verdict would be another one.
type change struct {
	CallID string         `json:"call_id"`
	Actor  string         `json:"actor"`
	Kind   string         `json:"kind"`
	Was    policy.Opinion `json:"was"`
	Now    policy.Opinion `json:"now"`
	Would  policy.Opinion `json:"would"`
}

// simulation is what a candidate would change, apart from what has changed
// since the calls were recorded.
type simulation struct {
	Calls     int      `json:"calls"`
	Same      int      `json:"same"`
	Skipped   int      `json:"not_redecidable"`
	Candidate []change `json:"by_candidate"` // now and would differ
	Since     []change `json:"since"`        // was and now differ
}

func (s *simulation) add(d *contract.Decision, now, would policy.Opinion) {
	x := change{d.CallID, d.Actor, d.Kind, policy.Opinion{Verdict: d.Verdict, Reason: d.ReasonCode}, now, would}
	since, candidate := differs(x.Was, x.Now), differs(x.Now, x.Would)
	if since {
		s.Since = append(s.Since, x)
	}
	if candidate {
		s.Candidate = append(s.Candidate, x)
	}
	if !since && !candidate {
		s.Same++
	}
}

// differs reports whether two opinions are two decisions: of permissions, which
// rule gave them does not count.
func differs(a, b policy.Opinion) bool {
	return a.Verdict != b.Verdict || a.Verdict == contract.Deny && a.Reason != b.Reason
}

// simulate decides every recorded call again, under what is in force and with
// the candidate in place.
func (c *env) simulate(ctx context.Context, path string, f *policyFlags) error {
	d, err := policy.ReadDocument(path)
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	if *f.name != "" {
		d.Name = *f.name
	}
	d.Precedence = *f.precedence
	now, err := c.decisions(ctx, func(*policy.State, *contract.Event, *contract.Decision, []byte) error { return nil })
	if err != nil {
		return err
	}
	sim, err := policy.NewSimulation(now, d, time.Now())
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	rep := simulation{Candidate: []change{}, Since: []change{}}
	_, err = c.decisions(ctx, func(_ *policy.State, _ *contract.Event, d *contract.Decision, args []byte) error {
		rep.Calls++
		if args == nil {
			rep.Skipped++
			return nil
		}
		now, would, err := sim.Decide(ctx, d, args)
		if err == nil {
			rep.add(d, now, would)
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.print(rep, func() {
		group := func(title string, list []change, of func(*change) (from, to policy.Opinion)) {
			if len(list) > 0 {
				fmt.Fprintln(c.out, title)
			}
			for i := range list {
				from, to := of(&list[i])
				fmt.Fprintf(c.out, "  %s  %-16s %-24s %s %s -> %s %s\n", list[i].CallID, list[i].Actor, list[i].Kind, from.Verdict, from.Reason, to.Verdict, to.Reason)
			}
		}
		group("changed by the candidate:", rep.Candidate, func(x *change) (a, b policy.Opinion) { return x.Now, x.Would })
		group("changed since they were recorded, with or without it:", rep.Since, func(x *change) (a, b policy.Opinion) { return x.Was, x.Now })
		fmt.Fprintf(c.out, "%d recorded decisions: %d stay, the candidate changes %d, %d have changed since, %d cannot be decided again\n",
			rep.Calls, rep.Same, len(rep.Candidate), len(rep.Since), rep.Skipped)
	})
}

// explain takes a recorded call's decisions apart.
func (c *env) explain(ctx context.Context, call string) error {
	type explained struct {
		Decision *contract.Decision `json:"decision"`
		Steps    []guard.Step       `json:"steps"`
	}
	found := []explained{}
	_, err := c.decisions(ctx, func(st *policy.State, e *contract.Event, d *contract.Decision, args []byte) error {
		if d.CallID != call {
			return nil
		}
		steps, err := st.Explain(ctx, e, d, args)
		if err != nil {
			return err
		}
		copied := *d
		found = append(found, explained{&copied, steps})
		return nil
	})
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fail(exitFailed, "no decision on call %s is recorded", call)
	}
	return c.print(found, func() {
		for _, x := range found {
			d := x.Decision
			fmt.Fprintf(c.out, "%s  %s by %s: %s %s\n  facts %s\n", d.CallID, d.Kind, d.Actor, d.Verdict, d.ReasonCode, d.Facts)
			for _, s := range x.Steps {
				at := ""
				if s.At != "" {
					at = "  at " + s.At
				}
				fmt.Fprintf(c.out, "  %-16s %s%s\n", strings.TrimSpace(s.Part+" "+s.Name), opinion(s), at)
			}
			if info, ok := contract.Reasons[d.ReasonCode]; ok {
				fmt.Fprintf(c.out, "  %s %s\n", info.Meaning, info.Hint)
			}
		}
	})
}

// opinion is what a step of a decision answered, in words.
func opinion(s guard.Step) string {
	if s.Verdict == "" {
		return "no objection"
	}
	return s.Verdict + " " + s.Reason
}

// decisions reads the ledger and passes each recorded decision on, with its
// event and the state that knows every policy and tool up to there, which it
// returns as it is at the end. args are nil where they are gone.
func (c *env) decisions(ctx context.Context, each func(*policy.State, *contract.Event, *contract.Decision, []byte) error) (*policy.State, error) {
	to, root, err := c.ledgerEnd(ctx)
	if err != nil {
		return nil, err
	}
	r := &replayer{c: c, ctx: ctx}
	r.trust.Root = root
	r.state = &policy.State{Keep: true, Keys: r.trust.At, Open: r.open}
	r.each = func(e *contract.Event, d *contract.Decision, args []byte, err error) error {
		if err != nil {
			args = nil
		}
		return each(r.state, e, d, args)
	}
	return r.state, r.run(to)
}

func (c *env) show(ctx context.Context) error {
	var docs []policy.InForce
	if err := c.get(ctx, "/api/v1/policies", &docs); err != nil {
		return err
	}
	return c.print(docs, func() {
		for _, d := range docs {
			fmt.Fprintf(c.out, "%s  %-20s %5d  %s  %s\n", d.Layer, d.Name, d.Precedence, d.Digest, d.Source)
			if d.Layer != "p1" {
				fmt.Fprintln(c.out, "   ", strings.ReplaceAll(indent(d.Body), "\n", "\n    "))
			}
		}
	})
}

func (c *env) activate(ctx context.Context, rest []string, f *policyFlags) error {
	args := map[string]any{"layer": "p1", "precedence": *f.precedence}
	switch {
	case len(rest) == 1:
		d, err := policy.ReadDocument(rest[0])
		if err != nil {
			return fail(exitFailed, "%v", err)
		}
		args["layer"] = d.Layer
		if d.Name != "" {
			args["name"] = d.Name
		}
		if d.Layer == "p1" {
			args["bundle"] = base64.StdEncoding.EncodeToString(d.Body)
		} else {
			args["document"] = string(d.Body)
		}
	case *f.url != "":
		args["url"] = *f.url
		args["name"] = strings.TrimSuffix(filepath.Base(*f.url), ".tar.gz")
	case *f.object != "":
		args["object"] = map[string]any{"commitment": *f.object, "size": *f.size}
	default:
		return fail(exitUsage, "policy activate wants a PATH, --url or --object")
	}
	if *f.layer != "" {
		args["layer"] = *f.layer
	}
	if *f.name != "" {
		args["name"] = *f.name
	}
	return c.say(c.governed(ctx, "policy.activate", args))
}

// approveTool accepts a tool's document: the one with the digest, or the one
// the catalog holds now.
func (c *env) approveTool(ctx context.Context, rest []string) error {
	kind, digest := rest[0], ""
	if !strings.Contains(kind, ".") || !slices.Contains([]string{"tool", "llm", "client", "vault", "judge"}, strings.SplitN(kind, ".", 2)[0]) {
		kind = "tool." + kind
	}
	if len(rest) == 2 {
		digest = rest[1]
	} else {
		var p struct {
			Digest string `json:"tool_schema_digest"`
		}
		if err := c.get(ctx, "/api/v1/packs/"+strings.TrimPrefix(kind, "tool.")+"?unapproved=true", &p); err != nil {
			return err
		}
		digest = p.Digest
	}
	return c.say(c.governed(ctx, "policy.approve_tool", map[string]string{"kind": kind, "digest": digest}))
}

func (c *env) limits(ctx context.Context) error {
	var doc struct {
		Limits   []guard.Limit `json:"limits"`
		Accounts []struct {
			Account   string `json:"account"`
			Window    string `json:"window"`
			Reserved  int64  `json:"reserved"`
			Committed int64  `json:"committed"`
		} `json:"accounts"`
	}
	if err := c.get(ctx, "/api/v1/limits", &doc); err != nil {
		return err
	}
	return c.print(doc, func() {
		for _, l := range doc.Limits {
			fmt.Fprintf(c.out, "%-20s %s of each %s per %s: at most %d %s\n", l.ID, l.Measure, l.Level, l.Window, l.Max, l.OnExceed)
		}
		for _, a := range doc.Accounts {
			fmt.Fprintf(c.out, "  %-40s %-32s reserved %d, committed %d\n", a.Account, a.Window, a.Reserved, a.Committed)
		}
	})
}
