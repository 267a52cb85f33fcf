package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/manual"
)

// newManualCmd returns the command manual, which writes manual pages or the reference of
// commands in the documentation.
func newManualCmd(c *env) *cobra.Command {
	var reference string
	cmd := &cobra.Command{
		Use:     "manual DIR",
		Short:   "Write a manual page for each command to a folder",
		Long:    "Write a manual page (man 1) for each command to a folder, which is made. With --reference,\nrewrite the list of commands in a Markdown file instead.",
		Example: "  binnacle manual ~/.local/share/man/man1\n  man binnacle-policy-activate",
		Args:    takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (reference != "") {
				return wrongUsage(cmd)
			}
			if reference != "" {
				return writeReference(c, cmd.Root(), reference)
			}
			return writeManual(c, cmd.Root(), args[0])
		},
	}
	cmd.Flags().StringVar(&reference, "reference", "", "Markdown `FILE` whose list of commands to rewrite")
	return cmd
}

func writeManual(c *env, root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	pages := manual.Pages(root)
	for name, page := range pages {
		if err := os.WriteFile(filepath.Join(dir, name), page, 0o644); err != nil {
			return err
		}
	}
	return c.print(map[string]any{"folder": dir, "pages": len(pages)}, func() { fmt.Fprintf(c.out, "%s: %d pages\n", dir, len(pages)) })
}

// writeReference replaces the list of commands in a Markdown file. It does not write
// the file if the list has not changed.
func writeReference(c *env, root *cobra.Command, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := manual.Replace(b, manual.Markdown(root))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if !bytes.Equal(b, text) {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		return err
	}
	return c.print(map[string]string{"file": file}, func() { fmt.Fprintf(c.out, "wrote %s\n", file) })
}
