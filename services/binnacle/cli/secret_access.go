package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newSecretAccessCmd returns the command secret access, which shows and changes the access
// list of secrets.
func newSecretAccessCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "access COMMAND",
		Short: "Show and change who may use which secrets, with what and for what",
		Long: "Show and change the access list of secrets. A secret that the list has named is denied\n" +
			"unless an entry permits its use. Policy compares each call with the list, and the\n" +
			"vault-broker each request for a secret.",
		Example: "  binnacle secret access grant demo-api-key 'agent-*' --tool cmd.secretlen --ttl 24h\n  binnacle secret access list",
	},
		&cobra.Command{
			Use:               "list",
			Short:             "List the entries, with the number of calls that have used those with a limit",
			Example:           "  binnacle secret access list",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return listSecretAccess(cmd.Context(), c) },
		},
		newSecretGrantCmd(c),
		governedCmd(c, &cobra.Command{
			Use:     "withdraw ID",
			Short:   "Remove an entry; the secrets that it named stay denied",
			Example: "  binnacle secret access withdraw sa-ABCDEFGHIJKLMNOPQRSTUVWXYZ",
			Args:    takes(1, 1),
		}, "policy.withdraw_secret", func(pos []string) any { return map[string]string{"id": pos[0]} }),
		governedCmd(c, &cobra.Command{
			Use:               "default deny|intent",
			Short:             "Deny secrets that the list has never named, or leave them to the intent",
			Example:           "  binnacle secret access default deny",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.FixedCompletions([]string{"deny", "intent"}, cobra.ShellCompDirectiveNoFileComp),
		}, "policy.set_secret_default", func(pos []string) any { return map[string]string{"default": pos[0]} }),
	)
}

// accessEntry is an entry of the access list.
type accessEntry struct {
	Approval bool     `json:"approval,omitempty"`
	Client   string   `json:"client,omitempty"`
	Expires  string   `json:"expires,omitempty"`
	Host     string   `json:"host,omitempty"`
	ID       string   `json:"id,omitempty"`
	MaxUses  int64    `json:"max_uses,omitempty"`
	Methods  []string `json:"methods,omitempty"`
	Paths    []string `json:"paths,omitempty"`
	Secret   string   `json:"secret"`
	Subject  string   `json:"subject"`
	TTLMS    int64    `json:"ttl_ms,omitempty"`
	Tool     string   `json:"tool,omitempty"`
	Uses     int64    `json:"uses,omitempty"`
}

// newSecretGrantCmd returns the command secret access grant.
func newSecretGrantCmd(c *env) *cobra.Command {
	var e accessEntry
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "grant SECRET SUBJECT",
		Short: "Permit a principal to use a secret",
		Long: "Permit a principal to use a secret. SECRET, SUBJECT, --client and --tool are names, or\n" +
			"prefixes of names that end in *. With --host, --method or --path, the secret is permitted\n" +
			"only for requests to which the egress-broker adds it, or, with --host alone, for\n" +
			"executors that state the host for which they need it.",
		Example:           "  binnacle secret access grant demo-api-key 'agent-*' --tool cmd.secretlen --ttl 24h\n  binnacle secret access grant crm-token ann --host api.crm.example --method GET --path '/v1/**' --max-uses 100\n  binnacle secret access grant deploy '*' --approval",
		Args:              takes(2, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			e.Secret, e.Subject, e.TTLMS = args[0], args[1], ttl.Milliseconds()
			return grantSecret(cmd.Context(), c, &e)
		},
	}
	f := cmd.Flags()
	f.StringVar(&e.Client, "client", "", "client with which the call is made (default every client)")
	f.StringVar(&e.Tool, "tool", "", "tool that uses the secret (default every tool)")
	f.StringVar(&e.Host, "host", "", "host of the requests, or *. and a name for all its subdomains")
	f.StringArrayVar(&e.Methods, "method", nil, "method of the requests; repeatable")
	f.StringArrayVar(&e.Paths, "path", nil, "pattern of the paths of the requests; repeatable")
	f.DurationVar(&ttl, "ttl", 0, "how long the entry is valid (default without end)")
	f.Int64Var(&e.MaxUses, "max-uses", 0, "`NUMBER` of calls that may use the entry (default any)")
	f.BoolVar(&e.Approval, "approval", false, "another person must approve each call")
	for _, name := range []string{"client", "tool", "host", "method", "path", "max-uses"} {
		complete(cmd, name, cobra.NoFileCompletions)
	}
	return cmd
}

// grantSecret adds an entry and prints its id.
func grantSecret(ctx context.Context, c *env, e *accessEntry) error {
	raw, err := c.governed(ctx, "policy.grant_secret", e)
	if err != nil {
		return err
	}
	var doc struct {
		Result struct {
			Entry string `json:"entry"`
		} `json:"result"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	return c.print(map[string]string{"id": doc.Result.Entry}, func() { fmt.Fprintln(c.out, doc.Result.Entry) })
}

// listSecretAccess prints the access list.
func listSecretAccess(ctx context.Context, c *env) error {
	raw, err := c.governed(ctx, "vault.access", map[string]string{})
	if err != nil {
		return err
	}
	var doc struct {
		Default string        `json:"default"`
		Entries []accessEntry `json:"entries"`
		Listed  []string      `json:"listed"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	columns := []output.Column{{Heading: "ID"}, {Heading: "SECRET", Min: 8}, {Heading: "SUBJECT"}, {Heading: "CLIENT"}, {Heading: "TOOL"}, {Heading: "REQUESTS"}, {Heading: "EXPIRES"}, {Heading: "USES"}, {Heading: "APPROVAL"}}
	return c.table(raw, columns, func(g *output.Grid) {
		g.Add("default", "not listed", doc.Default, "-", "-", "-", "-", "-", "-")
		for i := range doc.Entries {
			e := &doc.Entries[i]
			uses, approval := "any", "-"
			if e.MaxUses > 0 {
				uses = strconv.FormatInt(e.Uses, 10) + " of " + strconv.FormatInt(e.MaxUses, 10)
			}
			if e.Approval {
				approval = "required"
			}
			requests := strings.Join(append(append(append([]string{}, e.Methods...), e.Host), e.Paths...), " ")
			g.Add(e.ID, e.Secret, e.Subject, e.Client, e.Tool, cmp.Or(strings.TrimSpace(requests), "-"), cmp.Or(e.Expires, "-"), uses, approval)
		}
	})
}
