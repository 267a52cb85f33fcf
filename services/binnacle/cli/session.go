package cli

import (
	"time"

	"github.com/spf13/cobra"
)

// newSessionCmd returns the command session, by which the caller permits other
// principals to make calls in a session of the caller's.
func newSessionCmd(c *env) *cobra.Command {
	var ttl time.Duration
	grant := governedCmd(c, &cobra.Command{
		Use:     "grant SESSION WHO",
		Short:   "Let a principal make calls in a session of yours",
		Example: "  binnacle session grant s-shared robot --ttl 1h",
		Args:    takes(2, 2),
	}, "policy.grant_session", func(pos []string) any {
		return map[string]any{"session": pos[0], "principal": pos[1], "ttl_ms": ttl.Milliseconds()}
	})
	grant.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long")
	return group(&cobra.Command{
		Use:     "session COMMAND",
		Short:   "Let another principal make calls in a session of yours",
		Example: "  binnacle session grant s-shared robot --ttl 1h\n  binnacle session list",
	},
		newIdentityListCmd(c, "session", "session", "List who may call in whose sessions"),
		grant,
		governedCmd(c, &cobra.Command{
			Use:     "revoke SESSION WHO",
			Short:   "End the grant of a session",
			Example: "  binnacle session revoke s-shared robot",
			Args:    takes(2, 2),
		}, "policy.revoke_session", func(pos []string) any { return map[string]string{"session": pos[0], "principal": pos[1]} }),
	)
}
