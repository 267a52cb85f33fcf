package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
)

// Results of an example.
const (
	examplePassed = "passed"
	exampleFailed = "failed"
	exampleValid  = "input valid" // the pack was not called
)

// packTestOptions are the flags of pack test.
type packTestOptions struct {
	packPlaces
	session string
	connect bool
}

// exampleResult is the result of an example of a pack.
type exampleResult struct {
	Pack   string `json:"pack"`
	About  string `json:"about"`
	Result string `json:"result"`
	Error  string `json:"error,omitempty"`
}

// newPackTestCmd returns the command pack test.
func newPackTestCmd(c *env) *cobra.Command {
	var o packTestOptions
	cmd := &cobra.Command{
		Use:   "test FOLDER [NAME…]",
		Short: "Call packs with the examples of their manifests",
		Long: `Check the examples in the manifests of a folder of packs, or of the named ones, against
their schemas, and call the packs of the mesh with them, each in its sandbox. The mesh
must have the packs of the folder. An example fails if the call fails, or if the
manifest states another output. A pack that connects to a service, or receives a secret,
is called only with --connect.`,
		Example: "  binnacle pack test packs\n  binnacle pack test packs image.convert cmd.count",
		Args: func(cmd *cobra.Command, args []string) error {
			return takes(1, max(1, len(args)))(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return testPacks(cmd.Context(), c, &o, args[0], args[1:])
		},
	}
	f := cmd.Flags()
	o.flags(f)
	f.StringVar(&o.session, "session", "", "`NAME` of the session of the calls (s-…), or its id")
	f.BoolVar(&o.connect, "connect", false, "also call packs that connect to a service or receive a secret")
	return cmd
}

// testPacks prints the result of each example of the named packs, or of all packs if names is
// empty, and returns an error if one has failed. It prints nothing if a pack in the folder is
// invalid or a name is unknown.
func testPacks(ctx context.Context, c *env, o *packTestOptions, dir string, names []string) error {
	packs, problems := o.check(dir)
	if len(problems) > 0 {
		return fail(exitFailed, "%v", errors.Join(problems...))
	}
	for _, n := range names {
		if !slices.ContainsFunc(packs, func(p sessionrunner.Checked) bool { return p.Tool.Tool == n }) {
			return fail(exitFailed, "no pack %s in %s; `binnacle pack validate %s` lists them", n, dir, dir)
		}
	}
	results, failed := []exampleResult{}, 0
	for i := range packs {
		if len(names) > 0 && !slices.Contains(names, packs[i].Tool.Tool) {
			continue
		}
		for _, e := range packs[i].Examples {
			r := exampleResult{Pack: packs[i].Tool.Tool, About: e.About, Result: exampleFailed, Error: e.Invalid}
			if r.Error == "" {
				r.Result, r.Error = testExample(ctx, c, o, &packs[i], e)
			}
			if r.Result == exampleFailed {
				failed++
			}
			results = append(results, r)
		}
	}
	err := c.table(results, []output.Column{{Heading: "PACK", Min: 20}, {Heading: "RESULT", Min: 11}, {Heading: "EXAMPLE"}}, func(g *output.Grid) {
		for _, r := range results {
			about := r.About
			if r.Error != "" {
				about += ": " + r.Error
			}
			g.Add(r.Pack, r.Result, about)
		}
	})
	if err == nil && failed > 0 {
		err = fail(exitFailed, "%d of %d examples failed", failed, len(results))
	}
	return err
}

// testExample calls a pack with the input of an example, and returns the result and why the
// example failed, or "". Without --connect, it does not call a pack that has egress or
// secrets.
func testExample(ctx context.Context, c *env, o *packTestOptions, p *sessionrunner.Checked, e sessionrunner.Example) (result, why string) {
	t := &p.Tool
	if !o.connect && len(t.Egress)+len(t.EgressRules)+len(t.Secrets) > 0 {
		return exampleValid, ""
	}
	var doc struct {
		Output json.RawMessage `json:"output"`
		Status string          `json:"status"`
		CallID string          `json:"call_id"`
	}
	if _, err := c.post(ctx, "/api/v1/calls", map[string]any{"kind": t.Kind, "tool": t.Tool, "args": e.Input}, session(o.session), &doc); err != nil {
		return exampleFailed, err.Error()
	}
	switch {
	case doc.Output == nil:
		return exampleFailed, fmt.Sprintf("call %s has no output yet: %s", doc.CallID, doc.Status)
	case e.Output == nil:
		return examplePassed, ""
	}
	raw, err := json.Marshal(e.Output)
	if err != nil {
		return exampleFailed, err.Error()
	}
	want, err := canon.Transform(nil, raw)
	if err != nil {
		return exampleFailed, err.Error()
	}
	got, err := canon.Transform(nil, doc.Output)
	if err != nil || string(got) != string(want) {
		return exampleFailed, fmt.Sprintf("the output is %.300s, the manifest states %.300s", got, want)
	}
	return examplePassed, ""
}
