package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newTrustCellCmd returns the command trust cell, which signs the document that prepares
// the ledger of an earlier release for several tenants.
func newTrustCellCmd(c *env) *cobra.Command {
	return newRingCmd(c, &cobra.Command{
		Use:   "cell",
		Short: "Prepare a mesh of an earlier release for several tenants",
		Long: `Sign the document with which the ledger of an earlier release can have several tenants.
The provisioner records it; from then on, an earlier release can only continue a backup
made before. The keys of a new mesh contain the document. It needs the root seed.`,
		Example:           "  binnacle trust cell --data data\n  binnacle token operator --data data",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(ring *keyring.Ring, _ []string) error {
		o, err := ring.OpenCell()
		if err != nil {
			return err
		}
		return c.print(o, func() {
			fmt.Fprintf(c.out, "the cell of log %s is signed; its original tenant is %s\n'binnacle token operator' prints the operator's token\n", o.Log, o.Tenant)
		})
	})
}

// newTrustOperatorCmd returns the command trust operator, which delegates the operation of
// the mesh to principals, withdraws delegations, and lists the operators.
func newTrustOperatorCmd(c *env) *cobra.Command {
	var lasts time.Duration
	add := newRingCmd(c, &cobra.Command{
		Use:               "add WHO",
		Short:             "Make a principal an operator of the mesh",
		Example:           "  binnacle trust operator add ann\n  binnacle trust operator add ann --for 8h",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(ring *keyring.Ring, pos []string) error {
		if lasts < 0 {
			return fail(exitUsage, "--for %s: want a positive duration, or 0 for no end", lasts)
		}
		return printOperator(c)(keyring.Delegate(ring, pos[0], lasts, time.Now()))
	})
	add.Flags().DurationVar(&lasts, "for", 0, "how long; 0 is without end")
	return group(&cobra.Command{
		Use:   "operator COMMAND",
		Short: "Make principals operators of the mesh (offline)",
		Long: `Make principals operators of the mesh. Operators create and suspend tenants, freeze the
mesh and read the whole ledger. Their tokens are for the tenant _cell.`,
		Example: "  binnacle trust operator add ann --for 8h\n  binnacle token create --tenant _cell --actor ann --scope cell:audit",
	},
		add,
		newRingCmd(c, &cobra.Command{
			Use:               "remove WHO",
			Short:             "End that a principal is an operator",
			Example:           "  binnacle trust operator remove ann",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.NoFileCompletions,
		}, func(ring *keyring.Ring, pos []string) error {
			return printOperator(c)(keyring.Withdraw(ring, pos[0], time.Now()))
		}),
		newRingCmd(c, &cobra.Command{
			Use:               "list",
			Short:             "List the operators, as the key ring has them",
			Example:           "  binnacle trust operator list",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
		}, func(ring *keyring.Ring, _ []string) error { return listOperators(c, ring, time.Now()) }),
	)
}

// printOperator returns a function that receives the results of a change of the ring: it
// prints the document, or returns the error.
func printOperator(c *env) func(o *contract.Operator, err error) error {
	return func(o *contract.Operator, err error) error {
		if err != nil {
			return err
		}
		return c.print(o, func() { fmt.Fprintln(c.out, o.Principal, operatorState(o, o.Issued)) })
	}
}

// operatorState returns a text about the principal's rights under a document at the time
// now, which is in contract.TimeFormat.
func operatorState(o *contract.Operator, now string) string {
	switch {
	case o.Withdrawn:
		return "withdrawn"
	case o.NotAfter == "":
		return "operator"
	case o.NotAfter < now:
		return "expired " + o.NotAfter
	}
	return "operator until " + o.NotAfter
}

// listOperators prints the newest document of the ring for each principal.
func listOperators(c *env, ring *keyring.Ring, now time.Time) error {
	all, err := keyring.Operators(ring)
	if err != nil {
		return err
	}
	newest := keyring.Newest(all)
	return c.table(newest, []output.Column{{Heading: "OPERATOR", Min: 19}, {Heading: "SINCE", Min: 24}, {Heading: "STATE"}}, func(g *output.Grid) {
		for i := range newest {
			g.Add(newest[i].Principal, newest[i].Issued, operatorState(&newest[i], contract.Time(now)))
		}
	})
}
