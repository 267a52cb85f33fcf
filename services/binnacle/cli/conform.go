package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/gateway/conform"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

type conformOptions struct{ level, endpoint, root, tool, args, model string }

// newConformCmd returns the command conform, which runs the conformance tests against an
// endpoint.
func newConformCmd(c *env) *cobra.Command {
	var o conformOptions
	cmd := &cobra.Command{
		Use:   "conform",
		Short: "Drive an endpoint through the conformance gates",
		Long: `Drive an endpoint through the conformance gates and print how each ended. A level
includes those before it: L1 is the surface, L2 receipts and chains, L3 proofs. Gates
about what covers all tenants run only with an operator's token.`,
		Example:           "  binnacle conform --level L3\n  binnacle conform --level L1 --endpoint https://mesh.example --output json",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runConform(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.level, "level", "L3", "`LEVEL`: L1, L2 or L3")
	f.StringVar(&o.endpoint, "endpoint", "", "`URL` of the endpoint (default the mesh at --addr)")
	rootFlag(cmd, &o.root)
	f.StringVar(&o.tool, "tool", "cmd.upper", "a `TOOL` that the token may call")
	f.StringVar(&o.args, "args", `{"text":"conform"}`, "its arguments, `JSON`")
	f.StringVar(&o.model, "model", llm.DemoModel, "a `MODEL` that the token may use")
	flagWords(cmd, "level", "L1", "L2", "L3")
	complete(cmd, "tool", completeTools(c))
	complete(cmd, "model", completeModels(c))
	return cmd
}

// check returns an error with exit code 2 if the endpoint is not an HTTP URL, or if the
// tool's arguments are not JSON.
func (o *conformOptions) check() error {
	if u, err := url.Parse(o.endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fail(exitUsage, "--endpoint: want http(s)://host[:port], not %q", o.endpoint)
	}
	if !json.Valid([]byte(o.args)) {
		return fail(exitUsage, "--args: not JSON")
	}
	return nil
}

// hint returns the end of the message about gates that do not hold: a tool or a model
// that the mesh does not offer, with similar names, or "" if there is none. Another
// endpoint's names are not known.
func (o *conformOptions) hint(ctx context.Context, c *env) string {
	if o.endpoint != c.base() {
		return ""
	}
	if h := near(ctx, c, o.tool, toolNames); h != "" {
		return "; there is no tool " + o.tool + h
	}
	if h := near(ctx, c, o.model, modelNames); h != "" {
		return "; there is no model " + o.model + h
	}
	return ""
}

// printGate prints the result of one gate.
func printGate(c *env, r *conform.Result) {
	word := c.style().Good("pass")
	if !r.Pass {
		word = c.style().Bad("FAIL")
	}
	fmt.Fprintf(c.out, "%s  %s %-20s %5d ms  %s\n", word, r.Level, r.Gate, r.MS, r.Claim)
	if !r.Pass {
		fmt.Fprintf(c.out, "      %s\n", r.Detail)
	}
}

// runConform prints the result of each gate, in the table format as soon as the result
// is known. It returns an error with exit code 1 if a gate failed. L1 needs no trusted
// root.
func runConform(ctx context.Context, c *env, o *conformOptions) error {
	if o.endpoint == "" {
		o.endpoint = c.base()
	}
	if err := o.check(); err != nil {
		return err
	}
	usual, err := c.bearer()
	if err != nil {
		return err
	}
	c.operator = true
	operator, err := c.bearer()
	if err != nil {
		return err
	}
	if token.ID(operator) != operator && !token.Has(operator, token.CellAudit) { // a token of this mesh, and not an operator's
		operator = ""
	}
	t := conform.Target{Endpoint: strings.TrimSuffix(o.endpoint, "/"), Token: usual, Operator: operator, Tool: o.tool, Args: json.RawMessage(o.args), Model: o.model}
	if o.level != "L1" {
		if t.Root, err = rootKID(c, o.root); err != nil {
			return err
		}
	}
	failed := 0
	results := []conform.Result{}
	err = conform.Run(ctx, t, o.level, func(r conform.Result) {
		results = append(results, r)
		if !r.Pass {
			failed++
		}
		if !c.structured() {
			printGate(c, &r)
		}
	})
	if err != nil {
		return err
	}
	doc := map[string]any{"level": o.level, "endpoint": o.endpoint, "gates": results, "failed": failed}
	if err := c.print(doc, func() { fmt.Fprintf(c.out, "%s: %d gates, %d failed\n", o.level, len(results), failed) }); err != nil {
		return err
	}
	if failed > 0 {
		return fail(exitFailed, "%d of %d gates do not hold%s", failed, len(results), o.hint(ctx, c))
	}
	return nil
}
