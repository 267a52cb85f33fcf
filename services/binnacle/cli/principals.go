package cli

import (
	"time"

	"github.com/spf13/cobra"
)

// newPrincipalsCmd returns the command principals, which lists and registers people,
// agents and services, suspends them, and ends suspensions.
func newPrincipalsCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:     "principals COMMAND",
		Short:   "Register people, agents and services; suspend them",
		Example: "  binnacle principals register robot agent\n  binnacle principals suspend robot --reason 'behaves oddly'",
	},
		newIdentityListCmd(c, "principals", "principal", "List the principals"),
		governedCmd(c, &cobra.Command{
			Use:               "register WHO person|agent|service",
			Short:             "Register a principal with its type",
			Example:           "  binnacle principals register robot agent",
			Args:              takes(2, 2),
			ValidArgsFunction: byPosition(cobra.NoFileCompletions, words("person", "agent", "service")),
		}, "policy.register_principal", func(pos []string) any { return map[string]string{"principal": pos[0], "type": pos[1]} }),
		newSuspensionCmd(c, "suspend", "Refuse every call of a principal"),
		newSuspensionCmd(c, "resume", "End a suspension"),
	)
}

// newSuspensionCmd returns the command principals suspend or principals resume.
func newSuspensionCmd(c *env, verb, short string) *cobra.Command {
	var reason string
	cmd := governedCmd(c, &cobra.Command{
		Use:     verb + " WHO --reason WHY",
		Short:   short,
		Example: "  binnacle principals " + verb + " robot --reason 'checked by its owner'",
		Args:    takes(1, 1),
	}, "policy."+verb+"_principal", func(pos []string) any { return map[string]string{"principal": pos[0], "reason": reason} })
	reasonFlag(cmd, &reason)
	return cmd
}

// newRolesCmd returns the command roles, which lists, grants and revokes roles.
func newRolesCmd(c *env) *cobra.Command {
	var ttl time.Duration
	args := func(pos []string) any {
		args := map[string]any{"principal": pos[0], "role": pos[1]}
		if ttl > 0 {
			args["ttl_ms"] = ttl.Milliseconds()
		}
		return args
	}
	grant := governedCmd(c, &cobra.Command{
		Use:     "grant WHO ROLE",
		Short:   "Give a principal a role",
		Example: "  binnacle roles grant carol approver --ttl 8h",
		Args:    takes(2, 2),
	}, "policy.grant_role", args)
	grant.Flags().DurationVar(&ttl, "ttl", 0, "how long; 0 is without end")
	return group(&cobra.Command{
		Use:     "roles COMMAND",
		Short:   "List, grant and revoke roles",
		Example: "  binnacle roles grant bob approver\n  binnacle roles list --at 100",
	},
		newIdentityListCmd(c, "roles", "role", "List who holds which role"),
		grant,
		governedCmd(c, &cobra.Command{
			Use:     "revoke WHO ROLE",
			Short:   "Take a role from a principal",
			Example: "  binnacle roles revoke bob approver",
			Args:    takes(2, 2),
		}, "policy.revoke_role", args),
	)
}

// newDelegationsCmd returns the command delegations, by which the caller permits another
// principal to act on the caller's behalf.
func newDelegationsCmd(c *env) *cobra.Command {
	var ttl time.Duration
	grant := governedCmd(c, &cobra.Command{
		Use:     "grant DELEGATE KIND…",
		Short:   "Let a principal make calls of some kinds on your behalf",
		Example: "  binnacle delegations grant robot tool.noop --ttl 1h",
		Args:    takes(2, -1),
	}, "policy.delegate", func(pos []string) any {
		return map[string]any{"delegate": pos[0], "kinds": pos[1:], "ttl_ms": ttl.Milliseconds()}
	})
	grant.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long")
	return group(&cobra.Command{
		Use:     "delegations COMMAND",
		Short:   "Let another principal act on your behalf, for a limited time",
		Example: "  binnacle delegations grant robot tool.noop --ttl 1h\n  binnacle call noop --on-behalf-of dana --delegation g-c-0123456789",
	},
		newIdentityListCmd(c, "delegations", "delegation", "List the delegations"),
		grant,
		governedCmd(c, &cobra.Command{
			Use:     "revoke ID",
			Short:   "End a delegation",
			Example: "  binnacle delegations revoke g-c-0123456789",
			Args:    takes(1, 1),
		}, "policy.revoke_delegation", func(pos []string) any { return map[string]string{"id": pos[0]} }),
	)
}
