package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/suggest"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// newTenantCmd returns the command tenant, which creates and lists tenants, suspends
// them, ends suspensions, sets quotas, and exports the evidence of a tenant.
func newTenantCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "tenant COMMAND",
		Short: "Create, suspend and limit the tenants of the mesh",
		Long: `Create, suspend and limit the tenants of the mesh. A tenant is an environment of a
project of an organization; its id is the three names, joined by "_". These commands are
for operators of the mesh; an auditor of a tenant may export it.`,
		Example: "  binnacle tenant create acme/shop/prod --admin alice\n  binnacle tenant list\n  binnacle tenant suspend acme_shop_prod --reason 'not paid'",
	},
		newTenantCreateCmd(c),
		&cobra.Command{
			Use:               "list",
			Short:             "List the tenants",
			Example:           "  binnacle tenant list\n  binnacle tenant list --output json",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return listTenants(cmd.Context(), c) },
		},
		&cobra.Command{
			Use:               "show TENANT",
			Short:             "Show a tenant",
			Example:           "  binnacle tenant show acme_shop_prod",
			Args:              takes(1, 1),
			ValidArgsFunction: byPosition(fromMesh(c, tenantNames)),
			RunE:              func(cmd *cobra.Command, pos []string) error { return showTenant(cmd.Context(), c, pos[0]) },
		},
		newTenantStateCmd(c, "suspend", "Deny the calls of a tenant, cancel those that run, and end its streams", "not paid"),
		newTenantStateCmd(c, "resume", "End a suspension", "paid"),
		newTenantEraseCmd(c),
		newTenantQuotaCmd(c),
		newTenantExportCmd(c),
	)
}

// quotaFlags declares the flags of a quota.
func quotaFlags(cmd *cobra.Command, q *contract.Quota) {
	f := cmd.Flags()
	f.Int64Var(&q.ArtifactBytes, "quota-artifact-bytes", 0, "`BYTES` of stored artifacts; 0 is the configured limit")
	f.Int64Var(&q.InFlight, "quota-in-flight", 0, "`CALLS` in flight at each gateway; 0 is no limit")
	f.Int64Var(&q.CallsPerSecond, "quota-calls-per-second", 0, "`CALLS` that each gateway accepts per second; 0 is no limit")
	f.Int64Var(&q.BodyBytes, "quota-body-bytes", 0, "`BYTES` of request bodies in flight at each gateway; 0 is no limit")
}

func newTenantCreateCmd(c *env) *cobra.Command {
	var admin string
	var quota contract.Quota
	cmd := &cobra.Command{
		Use:               "create ORGANIZATION/PROJECT/ENVIRONMENT --admin WHO",
		Short:             "Create a tenant, with its first administrator",
		Example:           "  binnacle tenant create acme/shop/prod --admin alice\n  binnacle tenant create acme/shop/test --admin alice --quota-in-flight 10",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			return createTenant(cmd.Context(), c, pos[0], admin, quota)
		},
	}
	cmd.Flags().StringVar(&admin, "admin", "", "`WHO` is registered as the tenant's first person, with every role")
	complete(cmd, "admin", cobra.NoFileCompletions)
	quotaFlags(cmd, &quota)
	return cmd
}

// createTenant proposes the creation of the tenant with the given name, which consists of
// the names of an organization, a project and an environment.
func createTenant(ctx context.Context, c *env, name, admin string, quota contract.Quota) error {
	parts := strings.Split(name, "/")
	if len(parts) != 3 || admin == "" {
		return fail(exitUsage, "tenant create requires ORGANIZATION/PROJECT/ENVIRONMENT and --admin")
	}
	if _, err := contract.TenantID(parts[0], parts[1], parts[2]); err != nil {
		return fail(exitUsage, "%v", err)
	}
	args := map[string]any{"organization": parts[0], "project": parts[1], "environment": parts[2], "admin": admin}
	if quota != (contract.Quota{}) {
		args["quota"] = quota
	}
	return c.say(c.governed(ctx, "tenant.create", args))
}

// newTenantStateCmd returns the command tenant suspend or tenant resume.
func newTenantStateCmd(c *env, verb, short, why string) *cobra.Command {
	var reason string
	cmd := governedCmd(c, &cobra.Command{
		Use:               verb + " TENANT --reason WHY",
		Short:             short,
		Example:           "  binnacle tenant " + verb + " acme_shop_prod --reason '" + why + "'",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(fromMesh(c, tenantNames)),
	}, "tenant."+verb, func(pos []string) any { return map[string]string{"tenant": pos[0], "reason": reason} })
	reasonFlag(cmd, &reason)
	return cmd
}

func newTenantQuotaCmd(c *env) *cobra.Command {
	var quota contract.Quota
	cmd := &cobra.Command{
		Use:               "quota TENANT --quota-…",
		Short:             "Replace the quota of a tenant",
		Long:              "Replace the quota of a tenant as a whole: what no flag sets is not\nlimited any more, or for artifacts limited by the configuration.",
		Example:           "  binnacle tenant quota acme_shop_prod --quota-in-flight 100 --quota-calls-per-second 50",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(fromMesh(c, tenantNames)),
		RunE: func(cmd *cobra.Command, pos []string) error {
			if !slices.ContainsFunc([]string{"quota-artifact-bytes", "quota-in-flight", "quota-calls-per-second", "quota-body-bytes"}, c.given) {
				return fail(exitUsage, "tenant quota requires at least one of --quota-artifact-bytes, --quota-in-flight, --quota-calls-per-second and --quota-body-bytes; 0 is no limit")
			}
			return c.say(c.governed(cmd.Context(), "tenant.set_quota", map[string]any{"tenant": pos[0], "quota": quota}))
		},
	}
	quotaFlags(cmd, &quota)
	return cmd
}

// tenants returns the tenants of the mesh, sorted by id.
func tenants(ctx context.Context, c *env) (rows []policy.Tenant, err error) {
	c.operator = true
	return rows, c.get(ctx, "/api/v1/tenants", &rows)
}

// tenantNames returns the ids of the mesh's tenants.
func tenantNames(ctx context.Context, c *env) ([]string, error) {
	rows, err := tenants(ctx, c)
	var out []string
	for i := range rows {
		out = append(out, rows[i].Tenant)
	}
	return out, err
}

// tenantCells returns the cells of a tenant's row in a table.
func tenantCells(t *policy.Tenant) []string {
	state := "active"
	if t.Suspended {
		state = "suspended"
	}
	if t.Original {
		state += ", original"
	}
	var quota []string
	for _, q := range []struct {
		name  string
		limit int64
	}{{"artifact bytes", t.Quota.ArtifactBytes}, {"in flight", t.Quota.InFlight}, {"calls per second", t.Quota.CallsPerSecond}, {"body bytes", t.Quota.BodyBytes}} {
		if q.limit != 0 {
			quota = append(quota, fmt.Sprintf("%d %s", q.limit, q.name))
		}
	}
	if quota == nil {
		quota = []string{"default"}
	}
	return []string{t.Tenant, t.Since, state, strings.Join(quota, ", ")}
}

// printTenants prints the document doc or, if no structured output was requested, the rows
// as a table.
func printTenants(c *env, doc any, rows []policy.Tenant) error {
	columns := []output.Column{{Heading: "TENANT", Min: 19}, {Heading: "SINCE", Min: 24}, {Heading: "STATE", Min: 18}, {Heading: "QUOTA"}}
	return c.table(doc, columns, func(g *output.Grid) {
		for i := range rows {
			g.Add(tenantCells(&rows[i])...)
		}
	})
}

func listTenants(ctx context.Context, c *env) error {
	rows, err := tenants(ctx, c)
	if err != nil {
		return err
	}
	return printTenants(c, rows, rows)
}

// showTenant prints one tenant. It is an error if the mesh does not have the tenant.
func showTenant(ctx context.Context, c *env, id string) error {
	rows, err := tenants(ctx, c)
	if err != nil {
		return err
	}
	var names []string
	for i := range rows {
		if rows[i].Tenant == id {
			return printTenants(c, &rows[i], rows[i:i+1])
		}
		names = append(names, rows[i].Tenant)
	}
	return fail(exitFailed, "the mesh has no tenant %s%s", id, didYouMean(suggest.Near(id, names)))
}

func newTenantExportCmd(c *env) *cobra.Command {
	var out string
	var mint bool
	cmd := &cobra.Command{
		Use:   "export TENANT --out FILE",
		Short: "Write the evidence of a tenant to a file",
		Long: `Write the evidence of a tenant to a file: all its events as they are stored, with the
mesh's own events that they rest on, and hashes in place of all others. 'binnacle
verify' checks the file offline; that no whole session of the tenant is left out is
attested by audit only. The request needs a token of the tenant with the scope
audit:read, or an operator's. With --mint-token, the command mints the former with the
keys in DATA.`,
		Example:           "  binnacle tenant export acme_shop_prod --out acme.jsonl\n  binnacle tenant export acme_shop_prod --out acme.jsonl --mint-token",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(fromMesh(c, tenantNames)),
		RunE:              func(cmd *cobra.Command, pos []string) error { return exportTenant(cmd.Context(), c, pos[0], out, mint) },
	}
	cmd.Flags().StringVar(&out, "out", "", "`FILE` to write (default standard output)")
	cmd.Flags().BoolVar(&mint, "mint-token", false, "mint a token of the tenant for this request, with the keys in DATA")
	return cmd
}

// exportTenant writes the evidence of a tenant as runExport writes that of a session. If
// mint is set, the request has a new token of the tenant that is valid for five minutes.
func exportTenant(ctx context.Context, c *env, tenant, out string, mint bool) error {
	if mint {
		if c.given("token") {
			return fail(exitUsage, "--mint-token and --token contradict each other")
		}
		t, err := mintToken(c.data, tenant, &tokenOptions{actor: keyring.Operator, client: "tenant-export", scopes: []string{token.Audit}, ttl: 5 * time.Minute})
		if err != nil {
			return err
		}
		c.token = t
	}
	c.operator = true
	return save(c, out, func(w io.Writer) (int64, error) {
		return c.copyTo(ctx, w, "/api/v1/tenants/"+url.PathEscape(tenant)+"/evidence")
	})
}
