package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// newPolicyCmd returns the command policy, with subcommands for policies, for the
// approval of tools and for limits.
func newPolicyCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "policy COMMAND",
		Short: "Show, activate and roll back policies",
		Long: `Show, activate and roll back policies. validate, test, build and a diff of two
files work offline; the other commands require a mesh.`,
		Example: "  binnacle policy validate policies/*.json\n  binnacle policy activate overlay.json\n  binnacle policy rollback p1 default",
	},
		policyFiles("validate PATH…", "Check documents as one stack, offline", "  binnacle policy validate bundle/ overlay.json", -1,
			func(_ context.Context, pos []string) error { return validatePolicies(c, pos) }),
		policyFiles("test DIR", "Run the test_… rules of a bundle, offline", "  binnacle policy test bundle/", 1,
			func(ctx context.Context, pos []string) error { return testPolicy(ctx, c, pos[0]) }),
		newPolicyBuildCmd(c),
		policyFiles("diff PATH [PATH]", "Compare a document with what is in force, or two documents", "  binnacle policy diff bundle.tar.gz\n  binnacle policy diff old/ new/", 2,
			func(ctx context.Context, pos []string) error { return diffPolicy(ctx, c, pos) }),
		&cobra.Command{
			Use:               "show",
			Short:             "Show the policies in force",
			Example:           "  binnacle policy show",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return showPolicies(cmd.Context(), c) },
		},
		newPolicyActivateCmd(c),
		newPolicySimulateCmd(c),
		&cobra.Command{
			Use:               "explain CALL",
			Short:             "Show the answer of each layer to a recorded call",
			Long:              "Show the answer of each layer to a recorded call. This needs a token with the\nscope audit:read.",
			Example:           "  binnacle policy explain c-0123456789",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, args []string) error { return explainCall(cmd.Context(), c, args[0]) },
		},
		governedCmd(c, &cobra.Command{
			Use:               "rollback LAYER [NAME]",
			Short:             "Put the version before the current one in force again",
			Example:           "  binnacle policy rollback p1 default",
			Args:              takes(1, 2),
			ValidArgsFunction: byPosition(words(layerP0, "p1", "p2"), cobra.NoFileCompletions),
		}, "policy.rollback", func(pos []string) any {
			c.operator = pos[0] == layerP0
			args := map[string]string{"layer": pos[0]}
			if len(pos) == 2 {
				args["name"] = pos[1]
			}
			return args
		}),
		governedCmd(c, &cobra.Command{
			Use:               "retire LAYER NAME",
			Short:             "Take a document out of force",
			Example:           "  binnacle policy retire p2 quiet-hours",
			Args:              takes(2, 2),
			ValidArgsFunction: byPosition(words("p1", "p2"), cobra.NoFileCompletions),
		}, "policy.retire", func(pos []string) any { return map[string]string{"layer": pos[0], "name": pos[1]} }),
		&cobra.Command{
			Use:               "approve-tool TOOL|KIND [DIGEST]",
			Short:             "Accept a tool's document, the one that the mesh has or the one with the digest",
			Example:           "  binnacle policy approve-tool cmd.upper",
			Args:              takes(1, 2),
			ValidArgsFunction: completeTools(c),
			RunE:              func(cmd *cobra.Command, args []string) error { return approveTool(cmd.Context(), c, args) },
		},
		&cobra.Command{
			Use:               "limits",
			Short:             "Show the limits in force and what is reserved and used",
			Example:           "  binnacle policy limits",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return showLimits(cmd.Context(), c) },
		},
		policyFiles("set-limits FILE", "Put the limits of a file in force", "  binnacle policy set-limits limits.json", 1,
			func(ctx context.Context, pos []string) error { return setLimits(ctx, c, pos[0]) }),
	)
}

// policyFiles returns a subcommand that takes one or more paths as arguments. most is
// the maximum number of paths; a negative number means no maximum.
func policyFiles(use, short, example string, most int, run func(context.Context, []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Example: example, Args: takes(1, most), ValidArgsFunction: files,
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), args) },
	}
}

func newPolicyBuildCmd(c *env) *cobra.Command {
	var out, seed string
	cmd := &cobra.Command{
		Use:     "build DIR --out FILE",
		Short:   "Build a bundle from a folder, offline, and sign it",
		Example: "  binnacle policy build bundle/ --out bundle.tar.gz --sign data/keys/bundle-extra.seed",
		Args:    takes(1, 1),
		RunE:    func(_ *cobra.Command, args []string) error { return buildBundle(c, args[0], out, seed) },
	}
	cmd.Flags().StringVar(&out, "out", "", "`FILE` to write")
	cmd.Flags().StringVar(&seed, "sign", "", "`FILE` of the signing seed, 32 bytes in hex")
	return cmd
}

func newPolicyActivateCmd(c *env) *cobra.Command {
	var o activateOptions
	cmd := &cobra.Command{
		Use:   "activate PATH | --url URL | --object COMMITMENT --size N",
		Short: "Put a document in force",
		Example: `  binnacle policy activate overlay.json
  binnacle policy activate bundle.tar.gz --name extra --precedence 10
  binnacle policy activate --url https://bundles.example/extra.tar.gz`,
		Args: takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return activatePolicy(cmd.Context(), c, args, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.layer, "layer", "", "`LAYER`: p0, p1 or p2 (default what the document is)")
	f.StringVar(&o.name, "name", "", "`NAME` of the bundle (default that of the file)")
	f.Int64Var(&o.precedence, "precedence", 500, "of the bundle; lower numbers are evaluated first")
	f.StringVar(&o.url, "url", "", "address of the bundle on a bundle server, a `URL`")
	f.StringVar(&o.object, "object", "", "`COMMITMENT` of a bundle in the object store")
	f.Int64Var(&o.size, "size", 0, "of the object, in bytes")
	flagWords(cmd, "layer", layerP0, "p1", "p2")
	return cmd
}

func newPolicySimulateCmd(c *env) *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate PATH",
		Short: "Show which recorded calls a document would have decided otherwise",
		Long: `Decide every recorded call again, under what is in force and with the document in
place, and show which verdicts differ. This reads the ledger of all tenants, so it needs
an operator's token.`,
		Example: "  binnacle policy simulate other.tar.gz --name extra --precedence 10",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return simulatePolicy(cmd.Context(), c, args[0], &o)
		},
	}
	cmd.Flags().StringVar(&o.tenant, "tenant", "", "id of the `TENANT` in which it would be in force (default the mesh's original tenant)")
	complete(cmd, "tenant", fromMesh(c, tenantNames))
	cmd.Flags().StringVar(&o.name, "name", "", "`NAME` of the bundle (default that of the file)")
	cmd.Flags().Int64Var(&o.precedence, "precedence", 500, "of the bundle; lower numbers are evaluated first")
	return cmd
}
