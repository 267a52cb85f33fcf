package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// help prints a command's help on standard output.
func (c *env) help(cmd *cobra.Command) error {
	if c.json || c.output != "" {
		if err := chooseFormat(c); err != nil {
			return err
		}
	}
	text := helpText(cmd)
	return c.print(map[string]string{"usage": text}, func() { _, _ = c.out.Write([]byte(text)) })
}

// helpWidth is the width, in characters, to which the descriptions of flags in help
// texts are wrapped.
const helpWidth = 100

// helpText returns the help text of a command.
func helpText(cmd *cobra.Command) string {
	var b strings.Builder
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	_, names, _ := strings.Cut(cmd.Use, " ")
	fmt.Fprintf(&b, "%s\n\nUsage:\n  %s [flags]\n\nExamples:\n%s\n", strings.TrimSpace(text), strings.TrimSpace(cmd.CommandPath()+" "+names), cmd.Example)
	if len(cmd.Groups()) == 0 {
		listCommands(&b, "Commands:", cmd.Commands())
	}
	for _, g := range cmd.Groups() {
		listCommands(&b, g.Title, slices.DeleteFunc(slices.Clone(cmd.Commands()), func(sub *cobra.Command) bool { return sub.GroupID != g.ID }))
	}
	if cmd.HasParent() {
		listFlags(&b, "Flags:", cmd.LocalFlags())
		listFlags(&b, "Flags of every command:", cmd.InheritedFlags())
	} else {
		listFlags(&b, "Flags of every command:", cmd.PersistentFlags())
	}
	return b.String()
}

// listCommands writes a list of commands under a title. It writes nothing if there are
// no commands.
func listCommands(b *strings.Builder, title string, cmds []*cobra.Command) {
	width := 0
	for _, sub := range cmds {
		width = max(width, len(sub.Name()))
	}
	if len(cmds) > 0 {
		fmt.Fprintf(b, "\n%s\n", title)
	}
	for _, sub := range cmds {
		fmt.Fprintf(b, "  %-*s  %s\n", width, sub.Name(), sub.Short)
	}
}

// listFlags writes a list of flags under a title. It writes nothing if there are no
// flags.
func listFlags(b *strings.Builder, title string, flags *pflag.FlagSet) {
	if flags.HasAvailableFlags() {
		fmt.Fprintf(b, "\n%s\n%s", title, flags.FlagUsagesWrapped(helpWidth))
	}
}

// newHelpCmd returns the command help, which prints the help text of a command.
func newHelpCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]…",
		Short:   "Explain a command",
		Example: "  binnacle help\n  binnacle help policy activate",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			at := cmd.Root()
			for _, a := range args {
				if at = subcommand(at, a); at == nil {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
			}
			var names []string
			for _, sub := range at.Commands() {
				if !sub.Hidden {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return starting(names, word), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at := cmd.Root()
			for _, word := range args {
				next := subcommand(at, word)
				if next == nil {
					return unknownCommand(at, word)
				}
				at = next
			}
			return c.help(at)
		},
	}
}
