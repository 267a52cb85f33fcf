package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// newMembersCmd returns the command members, which invites persons to log in by the identity
// provider, and maps its groups to roles.
func newMembersCmd(c *env) *cobra.Command {
	var reason, why string
	withdraw := governedCmd(c, &cobra.Command{
		Use:     "withdraw ID --reason WHY",
		Short:   "End an invitation that was not accepted",
		Example: "  binnacle members withdraw iv-ABCDEFGHIJKLMNOPQRSTUVWXYZ --reason 'sent to the wrong address'",
		Args:    takes(1, 1),
	}, "policy.withdraw_invitation", func(pos []string) any { return map[string]string{"id": pos[0], "reason": reason} })
	reasonFlag(withdraw, &reason)
	unlink := governedCmd(c, &cobra.Command{
		Use:     "unlink WHO --reason WHY",
		Short:   "End the link of a person to an identity, and all credentials of the person",
		Example: "  binnacle members unlink ann --reason 'left the company'",
		Args:    takes(1, 1),
	}, "policy.unlink_identity", func(pos []string) any { return map[string]string{"principal": pos[0], "reason": why} })
	reasonFlag(unlink, &why)
	mapping := func(pos []string) any { return map[string]string{"group": pos[0], "role": pos[1]} }
	return group(&cobra.Command{
		Use:     "members COMMAND",
		Short:   "Invite persons to log in by the identity provider; map its groups to roles",
		Example: "  binnacle members invite ann --ttl 72h\n  binnacle members map engineers developer",
	},
		newIdentityListCmd(c, "members", "invitation", "List the invitations"),
		newInviteCmd(c),
		withdraw,
		unlink,
		governedCmd(c, &cobra.Command{
			Use:     "map GROUP ROLE",
			Short:   "Give a role to the persons whose identity provider reports a group",
			Example: "  binnacle members map engineers developer",
			Args:    takes(2, 2),
		}, "policy.map_group", mapping),
		governedCmd(c, &cobra.Command{
			Use:     "unmap GROUP ROLE",
			Short:   "End the mapping of a group to a role",
			Example: "  binnacle members unmap engineers developer",
			Args:    takes(2, 2),
		}, "policy.unmap_group", mapping),
	)
}

func newInviteCmd(c *env) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:               "invite WHO",
		Short:             "Invite a person, and print the code of the invitation; it cannot be shown again",
		Example:           "  binnacle members invite ann --ttl 72h",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return invite(cmd.Context(), c, args[0], ttl) },
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 72*time.Hour, "until when the invitation must be accepted")
	return cmd
}

// invite invites a person and prints the code of the invitation, of which the ledger holds
// only a digest. If the call waits for approval, the code is printed to standard error, because
// it is valid once the call is approved.
func invite(ctx context.Context, c *env, who string, ttl time.Duration) error {
	id, code := contract.IDInvitation+rand.Text(), rand.Text()
	out, err := c.governed(ctx, "policy.invite_member", map[string]any{"id": id, "principal": who, "code": sign.Digest([]byte(code)), "ttl_ms": ttl.Milliseconds()})
	var waits *exitError
	if errors.As(err, &waits) && waits.code == exitPending {
		fmt.Fprintf(c.errOut, "the code of invitation %s, valid once the call is approved: %s\n", id, code)
	}
	if err != nil {
		return err
	}
	var doc struct {
		Result struct {
			Expires string `json:"expires"`
		} `json:"result"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return err
	}
	return c.print(map[string]string{"id": id, "principal": who, "code": code, "expires": doc.Result.Expires}, func() {
		fmt.Fprintf(c.out, "invitation %s of %s, until %s\ncode: %s\n", id, who, doc.Result.Expires, code)
	})
}
