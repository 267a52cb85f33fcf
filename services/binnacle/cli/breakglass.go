package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newBreakGlassCmd returns the command break-glass, whose subcommands permit the
// caller's escalated calls to run without approval for a time, review another person's
// use of such a permission, and list the uses.
func newBreakGlassCmd(c *env) *cobra.Command {
	var openReason, reviewReason, verdict string
	var ttl time.Duration
	open := governedCmd(c, &cobra.Command{
		Use:     "open --reason WHY",
		Short:   "Let your escalated calls run without approval for a time",
		Long:    "Let your escalated calls run without approval for a time. Another person must review what\nyou did with it; until then you cannot open another.",
		Example: "  binnacle break-glass open --reason 'pager: disk full' --ttl 10m",
		Args:    takes(0, 0),
	}, "policy.break_glass", func([]string) any { return map[string]any{"reason": openReason, "ttl_ms": ttl.Milliseconds()} })
	reasonFlag(open, &openReason)
	open.Flags().DurationVar(&ttl, "ttl", 15*time.Minute, "how long")
	review := governedCmd(c, &cobra.Command{
		Use:     "review ID --reason WHY",
		Short:   "Judge another person's use of break-glass",
		Example: "  binnacle break-glass review b-c-0123456789 --reason 'looked at every call' --verdict justified",
		Args:    takes(1, 1),
	}, "policy.review", func(pos []string) any {
		return map[string]string{"id": pos[0], "reason": reviewReason, "verdict": verdict}
	})
	reasonFlag(review, &reviewReason)
	review.Flags().StringVar(&verdict, "verdict", "justified", "`VERDICT`: justified or misused")
	flagWords(review, "verdict", "justified", "misused")
	return group(&cobra.Command{
		Use:     "break-glass COMMAND",
		Short:   "Run escalated calls without approval, under review",
		Example: "  binnacle break-glass open --reason pager\n  binnacle break-glass list",
	},
		open, review,
		&cobra.Command{
			Use:               "list",
			Short:             "List the uses of break-glass and their reviews",
			Example:           "  binnacle break-glass list",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return listBreakGlass(cmd.Context(), c) },
		},
	)
}

func listBreakGlass(ctx context.Context, c *env) error {
	var doc identities
	if err := c.get(ctx, "/api/v1/identities", &doc); err != nil {
		return err
	}
	return c.table(doc.BreakGlass, []output.Column{{Heading: "GRANT AND REVIEW"}}, func(g *output.Grid) {
		for _, grant := range doc.BreakGlass {
			g.Add(string(grant))
		}
	})
}
