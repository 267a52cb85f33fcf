package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newApprovalsCmd returns the command approvals, whose subcommands list and show the
// calls that wait for approval, and vote on them.
func newApprovalsCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:     "approvals COMMAND",
		Short:   "List calls that wait for approval, and grant or deny them",
		Example: "  binnacle approvals list\n  binnacle approvals grant c-0123456789 --reason 'seen with the owner'",
	},
		&cobra.Command{
			Use:               "list",
			Short:             "List the calls that wait for approval",
			Example:           "  binnacle approvals list",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return listApprovals(cmd.Context(), c) },
		},
		&cobra.Command{
			Use:               "show CALL",
			Short:             "Show a waiting call: its arguments, rules and votes",
			Example:           "  binnacle approvals show c-0123456789",
			Args:              takes(1, 1),
			ValidArgsFunction: completeApprovals(c),
			RunE:              func(cmd *cobra.Command, args []string) error { return showApproval(cmd.Context(), c, args[0]) },
		},
		newVoteCmd(c, "grant", "Vote for a waiting call"),
		newVoteCmd(c, "deny", "Vote against a waiting call"),
	)
}

type voteOptions struct{ vote, reason, key, as string }

// newVoteCmd returns the command approvals grant or approvals deny. vote is the
// command's name and the recorded vote.
func newVoteCmd(c *env, vote, short string) *cobra.Command {
	o := voteOptions{vote: vote}
	cmd := &cobra.Command{
		Use:   vote + " CALL --reason WHY",
		Short: short,
		Long:  short + ". With --key the ballot is signed with the approver's own key,\nwhich never leaves this machine.",
		Example: "  binnacle approvals " + vote + " c-0123456789 --reason seen\n" +
			"  binnacle approvals " + vote + " c-0123456789 --reason seen --key carol.seed --as carol",
		Args:              takes(1, 1),
		ValidArgsFunction: completeApprovals(c),
		RunE:              func(cmd *cobra.Command, args []string) error { return runVote(cmd.Context(), c, args[0], &o) },
	}
	reasonFlag(cmd, &o.reason)
	cmd.Flags().StringVar(&o.key, "key", "", "`FILE` of the approver's own key, 32 bytes in hex: sign the ballot with it")
	cmd.Flags().StringVar(&o.as, "as", "", "`APPROVER` that the key belongs to, with --key")
	complete(cmd, "as", cobra.NoFileCompletions)
	return cmd
}

// completeApprovals returns a completer for the first argument, with the ids of the
// calls that wait for approval.
func completeApprovals(c *env) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return fromMesh(c, func(ctx context.Context, c *env) (ids []string, err error) {
			var all []waiting
			err = c.get(ctx, "/api/v1/approvals", &all)
			for i := range all {
				ids = append(ids, cobra.CompletionWithDesc(all[i].CallID, all[i].Kind+" by "+all[i].Actor))
			}
			return ids, err
		})(cmd, args, word)
	}
}

// waiting is a call that waits for approval.
type waiting struct {
	CallID  string                  `json:"call_id"`
	Kind    string                  `json:"kind"`
	Actor   string                  `json:"actor"`
	Tenant  string                  `json:"tenant"`
	Reason  string                  `json:"reason_code"`
	Since   string                  `json:"since"`
	Expires string                  `json:"expires"`
	Rules   []contract.ApprovalRule `json:"rules"`
	Votes   []contract.Approval     `json:"votes"`
	Args    json.RawMessage         `json:"args,omitempty"`
	Digest  string                  `json:"decision_digest"`
}

func listApprovals(ctx context.Context, c *env) error {
	var all []json.RawMessage
	if err := c.get(ctx, "/api/v1/approvals", &all); err != nil {
		return err
	}
	columns := []output.Column{{Heading: "CALL"}, {Heading: "KIND", Min: 23}, {Heading: "PROPOSED", Min: 18}, {Heading: "REASON", Min: 27}, {Heading: "UNTIL"}, {Heading: "VOTES"}}
	return c.table(all, columns, func(g *output.Grid) {
		for _, raw := range all {
			var w waiting
			if json.Unmarshal(raw, &w) == nil {
				g.Add(w.CallID, w.Kind, "by "+w.Actor, w.Reason, "until "+w.Expires+",", strconv.Itoa(len(w.Votes))+" votes")
			}
		}
	})
}

func showApproval(ctx context.Context, c *env, call string) error {
	var raw json.RawMessage
	if err := c.get(ctx, "/api/v1/approvals/"+url.PathEscape(call), &raw); err != nil {
		return err
	}
	return c.print(raw, func() { fmt.Fprintln(c.out, indent(raw)) })
}

// runVote sends a vote on a waiting call, with the approver's signature if --key is
// set, and prints the output.
func runVote(ctx context.Context, c *env, call string, o *voteOptions) error {
	body := map[string]string{"vote": o.vote, "reason": o.reason}
	if o.key != "" {
		if err := signBallot(ctx, c, call, o.key, o.as, body); err != nil {
			return err
		}
	}
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/approvals/"+url.PathEscape(call)+"/votes", body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var doc struct {
		Output json.RawMessage `json:"output"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return err
	}
	return c.say(doc.Output, nil)
}

// signBallot signs the vote with the approver's own key, read from file, and adds kid
// and sig to body. The key is not sent.
func signBallot(ctx context.Context, c *env, call, file, as string, body map[string]string) error {
	seed, err := keyring.ReadSeed(file)
	if err != nil {
		return err
	}
	if as == "" {
		return fail(exitUsage, "--key requires --as: whose key it is")
	}
	k, err := sign.NewKey(seed)
	if err != nil {
		return err
	}
	var w waiting
	if err := c.get(ctx, "/api/v1/approvals/"+url.PathEscape(call), &w); err != nil {
		return err
	}
	b := contract.Ballot{Approver: as, CallID: call, DecisionDigest: w.Digest, KID: k.KID, Reason: body["reason"], Tenant: w.Tenant, Vote: body["vote"]}
	body["kid"], body["sig"] = k.KID, k.Sign(sign.DomainApproval, contract.Bytes(&b))
	return nil
}
