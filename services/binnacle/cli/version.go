package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/schemas"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// newVersionCmd returns the command version, which prints the program's version, commit
// and Go release, and the digest of its list of event schemas.
func newVersionCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print what the program was built from",
		Long:              "Print what the program was built from, and the digest of the list of its event schemas:\ntwo programs with one digest write the same events.",
		Example:           "  binnacle version --output json",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return runVersion(c) },
	}
}

func runVersion(c *env) error {
	doc := struct {
		run.Build
		Schemas string `json:"schema_lock"`
	}{run.BuildOf(mesh.Version), sign.Digest(schemas.Lock)}
	return c.print(doc, func() {
		fmt.Fprintf(c.out, "binnacle %s\ncommit   %s\ngo       %s\nschemas  %s\n", doc.Version, doc.Commit, doc.GoVersion, doc.Schemas)
	})
}
