package cli

import (
	"context"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/schemas"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// version prints what the program was built from, and the digest of the list of
// its event schemas: two programs with one digest write the same events.
func version(_ context.Context, c *env) error {
	if _, err := c.parse(0, 0, ""); err != nil {
		return err
	}
	doc := struct {
		run.Build
		Schemas string `json:"schema_lock"`
	}{run.BuildOf(mesh.Version), sign.Digest(schemas.Lock)}
	return c.print(doc, func() {
		fmt.Fprintf(c.out, "binnacle %s\ncommit   %s\ngo       %s\nschemas  %s\n", doc.Version, doc.Commit, doc.GoVersion, doc.Schemas)
	})
}
