package manual

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Markdown returns the reference of a command line: the flags that every command accepts
// and then, by group, each command of the group and its subcommands, with description,
// usage, flags and examples.
func Markdown(root *cobra.Command) []byte {
	var b bytes.Buffer
	b.WriteString("\n## Flags of every command\n\n")
	flagTable(&b, root)
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "## %s\n\n", strings.TrimSuffix(g.Title, ":"))
		for _, cmd := range root.Commands() {
			if cmd.GroupID == g.ID {
				Walk(cmd, func(c *cobra.Command) { section(&b, c) })
			}
		}
	}
	return b.Bytes()
}

// section writes the section about one command.
func section(b *bytes.Buffer, cmd *cobra.Command) {
	level := "###"
	if cmd.Parent().HasParent() {
		level = "####"
	}
	fmt.Fprintf(b, "%s %s\n\n%s\n\n", level, cmd.CommandPath(), escape(description(cmd)))
	fmt.Fprintf(b, "```\n%s\n```\n\n", use(cmd))
	flagTable(b, cmd)
	if cmd.Example != "" {
		fmt.Fprintf(b, "Examples:\n\n```sh\n%s\n```\n\n", unindent(cmd.Example))
	}
}

// flagTable writes a table of the flags that a command declares. It writes nothing if
// there are none.
func flagTable(b *bytes.Buffer, cmd *cobra.Command) {
	flags := Flags(cmd)
	if len(flags) == 0 {
		return
	}
	b.WriteString("| flag | |\n|---|---|\n")
	for _, f := range flags {
		flag, text := spelling(f)
		fmt.Fprintf(b, "| `%s` | %s |\n", flag, strings.ReplaceAll(escape(text), "|", `\|`))
	}
	b.WriteString("\n")
}

// escape escapes the characters *, _ and <, which are markup in Markdown.
func escape(text string) string {
	return strings.NewReplacer("*", `\*`, "_", `\_`, "<", "&lt;").Replace(text)
}

// unindent removes the two spaces before each line of an example.
func unindent(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "  "), "\n  ", "\n")
}
