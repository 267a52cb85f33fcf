package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/archive"
)

type archiveOptions struct {
	to      string
	segment uint64
	source  sourceOptions
}

// newArchiveCmd returns the command archive, which creates an archive of the ledger or
// extends an existing one.
func newArchiveCmd(c *env) *cobra.Command {
	var o archiveOptions
	cmd := &cobra.Command{
		Use:               "archive --to DIR",
		Short:             "Keep the ledger as a folder of sealed segments",
		Long:              "Bring a folder of sealed segments of the ledger up to date. Nothing leaves the ledger;\n'binnacle verify' checks the folder offline.",
		Example:           "  binnacle archive --to archive\n  binnacle archive --to archive --witnessed 2",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runArchive(cmd.Context(), c, &o) },
	}
	cmd.Flags().StringVar(&o.to, "to", "", "`FOLDER` of the archive")
	cmd.Flags().Uint64Var(&o.segment, "segment", 65536, "events per segment, a power of two; the same each time")
	o.source.declare(cmd)
	directories(cmd, "to")
	return cmd
}

func runArchive(ctx context.Context, c *env, o *archiveOptions) error {
	if o.to == "" {
		return fail(exitUsage, "archive requires --to DIR")
	}
	src, stop, err := openLedger(ctx, c, &o.source)
	if err != nil {
		return err
	}
	defer stop()
	ix, err := archive.Add(o.to, o.segment, src.note, src.cosigned, src.read)
	if err != nil {
		return err
	}
	return c.print(ix, func() { fmt.Fprintf(c.out, "%s: %d events in %d segments\n", o.to, src.size, len(ix.Segments)) })
}
