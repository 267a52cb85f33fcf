package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// normalize rewrites a command line into the form that cobra parses: the names of
// commands come first, and each flag has the dashes that pflag requires, since earlier
// releases accepted a long flag with a single dash.
func normalize(root *cobra.Command, args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return args
	}
	var path, rest []string
	at, verbs := root, true
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			return slices.Concat(path, rest, args[i:])
		}
		if len(a) > 1 && a[0] == '-' {
			rest = append(rest, dashes(a))
			if takesValue(at, a) && i+1 < len(args) {
				i++
				rest = append(rest, args[i])
			}
			continue
		}
		next := subcommand(at, a)
		if verbs = verbs && next != nil; verbs {
			at, path = next, append(path, a)
			continue
		}
		rest = append(rest, a)
	}
	return slices.Concat(path, rest)
}

// dashes returns a flag with the dashes that pflag requires: two before a name, one
// before a letter.
func dashes(arg string) string {
	name := strings.TrimLeft(arg, "-")
	if word, _, _ := strings.Cut(name, "="); len(word) == 1 {
		return "-" + name
	}
	return "--" + name
}

// takesValue reports whether the argument after the flag arg is the flag's value.
func takesValue(at *cobra.Command, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return false
	}
	f := flagOf(at, name)
	return f != nil && f.NoOptDefVal == ""
}

// flagOf returns the flag of a command with the given letter or name, or nil if there is
// none. It searches for a name also in the command's direct subcommands, since flags may
// precede the name of the subcommand.
func flagOf(at *cobra.Command, name string) *pflag.Flag {
	if len(name) == 1 {
		at.InheritedFlags() // merges the inherited flags into Flags
		return at.Flags().ShorthandLookup(name)
	}
	if f := at.Flag(name); f != nil {
		return f
	}
	for _, sub := range at.Commands() {
		if f := sub.Flags().Lookup(name); f != nil {
			return f
		}
	}
	return nil
}

// subcommand returns the subcommand of at with a name or alias, or nil.
func subcommand(at *cobra.Command, name string) *cobra.Command {
	for _, sub := range at.Commands() {
		if sub.Name() == name || sub.HasAlias(name) {
			return sub
		}
	}
	return nil
}

// takes returns a function that requires between lo and hi arguments; hi = -1 means no
// upper bound.
func takes(lo, hi int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < lo || hi >= 0 && len(args) > hi {
			return wrongUsage(cmd)
		}
		return nil
	}
}

// wrongUsage returns the error for a command line with missing or surplus arguments. It
// has exit code 2.
func wrongUsage(cmd *cobra.Command) error {
	_, names, _ := strings.Cut(cmd.Use, " ")
	return fail(exitUsage, "usage: %s; '%s --help' explains it", strings.TrimSpace(cmd.CommandPath()+" "+names), cmd.CommandPath())
}
