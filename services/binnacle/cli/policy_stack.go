package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/policy/draft"
)

// validatePolicies checks documents as one policy stack, offline, and prints the
// findings. It uses the default ceilings if none of the documents are ceilings. It
// returns an error if the stack is not consistent.
func validatePolicies(c *env, paths []string) error {
	w, err := draft.NewStack(nil)
	if err != nil {
		return err
	}
	ceilings := false
	for _, p := range paths {
		d, err := draft.Read(p)
		if err == nil {
			err = w.Put(d)
		}
		if err != nil {
			return fail(exitFailed, "%v", err)
		}
		ceilings = ceilings || d.Layer == "p0"
	}
	if !ceilings {
		if err := w.Put(&draft.Document{Layer: "p0", Body: contract.Bytes(&keyring.DefaultCeilings)}); err != nil {
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
	if draft.Fatal(findings) {
		return fail(exitFailed, "the stack is not consistent")
	}
	if !c.structured() {
		fmt.Fprintln(c.out, "consistent")
	}
	return nil
}

// testPolicy runs the tests of a bundle and prints their results. It returns an error if
// a test fails or the bundle has no tests.
func testPolicy(ctx context.Context, c *env, dir string) error {
	results, err := draft.Test(ctx, dir)
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
		return fail(exitFailed, "%s contains no test_… rule", dir)
	case failed > 0:
		return fail(exitFailed, "%d of %d tests failed", failed, len(results))
	}
	return nil
}

// buildBundle builds a bundle from a folder and writes it to a file. Without a seed
// file the bundle is not signed.
func buildBundle(c *env, dir, out, seedFile string) error {
	if out == "" {
		return fail(exitUsage, "policy build requires --out")
	}
	var kid string
	var seed []byte
	if seedFile != "" {
		var err error
		if seed, err = keyring.ReadSeed(seedFile); err != nil {
			return err
		}
		k, err := sign.NewKey(seed)
		if err != nil {
			return err
		}
		kid = k.KID
	}
	b, err := draft.Build(dir, kid, seed)
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	if err := private.Write(out, b); err != nil {
		return err
	}
	return c.print(map[string]string{"file": out, "digest": sign.Digest(b), "kid": kid}, func() { fmt.Fprintf(c.out, "wrote %s\n%s\n", out, sign.Digest(b)) })
}

// policiesInForce returns the stack of the mesh's active policies.
func policiesInForce(ctx context.Context, c *env) (*draft.Stack, error) {
	var docs []draft.InForce
	if err := c.get(ctx, "/api/v1/policies", &docs); err != nil {
		return nil, err
	}
	return draft.NewStack(docs)
}

// diffPolicy compares a document with the active one that it would replace, or two
// documents with each other.
func diffPolicy(ctx context.Context, c *env, paths []string) error {
	var old, next *draft.Stack
	var err error
	if len(paths) == 1 {
		if old, err = policiesInForce(ctx, c); err != nil {
			return err
		}
		if next, err = policiesInForce(ctx, c); err != nil {
			return err
		}
	} else {
		old, next = &draft.Stack{}, &draft.Stack{}
		d, err := draft.Read(paths[0])
		if err == nil {
			d.Name = ""
			err = old.Put(d)
		}
		if err != nil {
			return fail(exitFailed, "%v", err)
		}
	}
	d, err := draft.Read(paths[len(paths)-1])
	if err == nil {
		if len(paths) == 2 {
			d.Name = ""
		}
		err = next.Put(d)
	}
	if err != nil {
		return fail(exitFailed, "%v", err)
	}
	removed, added := draft.Diff(old, next)
	return c.print(map[string][]string{"removed": removed, "added": added}, func() {
		for _, l := range removed {
			fmt.Fprintln(c.out, "-", l)
		}
		for _, l := range added {
			fmt.Fprintln(c.out, "+", l)
		}
	})
}

func showPolicies(ctx context.Context, c *env) error {
	var docs []draft.InForce
	if err := c.get(ctx, "/api/v1/policies", &docs); err != nil {
		return err
	}
	columns := []output.Column{{Heading: "LAYER"}, {Heading: "NAME", Min: 20}, {Heading: "PRECEDENCE", Min: 5}, {Heading: "DIGEST"}, {Heading: "SOURCE"}}
	return c.table(docs, columns, func(g *output.Grid) {
		for _, d := range docs {
			g.Add(d.Layer, d.Name, fmt.Sprintf("%5d", d.Precedence), d.Digest, d.Source)
			if d.Layer != "p1" {
				g.Note(strings.ReplaceAll("    "+indent(d.Body), "\n", "\n    "))
			}
		}
	})
}
