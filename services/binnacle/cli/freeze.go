package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// newFreezeCmd returns the command freeze, which freezes the mesh.
func newFreezeCmd(c *env) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:               "freeze --reason WHY",
		Short:             "Stop everything: nothing starts until unfreeze",
		Long:              "Freeze the mesh: nothing starts any more. Fails if an executor does not acknowledge.",
		Example:           "  binnacle freeze --reason 'keys of a contractor leaked'",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runFreeze(cmd.Context(), c, reason) },
	}
	reasonFlag(cmd, &reason)
	return cmd
}

// newUnfreezeCmd returns the command unfreeze, which ends a freeze.
func newUnfreezeCmd(c *env) *cobra.Command {
	var reason string
	cmd := governedCmd(c, &cobra.Command{
		Use:     "unfreeze --reason WHY",
		Short:   "End a freeze",
		Example: "  binnacle unfreeze --reason 'the keys were revoked'",
		Args:    takes(0, 0),
	}, "policy.unfreeze", func([]string) any { return map[string]string{"reason": reason} })
	reasonFlag(cmd, &reason)
	return cmd
}

// reasonFlag declares the flag --reason.
func reasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "`WHY`; it is recorded")
	complete(cmd, "reason", cobra.NoFileCompletions)
}

// runFreeze freezes the mesh. The freeze is recorded even if some executors do not
// acknowledge it; runFreeze then returns an error that names them.
func runFreeze(ctx context.Context, c *env, reason string) error {
	out, err := c.governed(ctx, "policy.freeze", map[string]string{"reason": reason})
	if err != nil {
		return err
	}
	var doc struct {
		Acked   []string `json:"acknowledged"`
		Missing []string `json:"missing"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return err
	}
	if err := c.print(out, func() { fmt.Fprintf(c.out, "frozen; acknowledged by %s\n", strings.Join(doc.Acked, ", ")) }); err != nil {
		return err
	}
	if len(doc.Missing) > 0 {
		return fail(exitFailed, "not acknowledged by %s", strings.Join(doc.Missing, ", "))
	}
	return nil
}
