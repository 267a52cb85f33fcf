// Package manual generates the documentation of a command line from its commands: a
// manual page for each command, and a reference in Markdown.
package manual

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Walk calls visit for a command and for all commands below it, each after its parent. It omits
// hidden subcommands and the commands below them.
func Walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			Walk(sub, visit)
		}
	}
}

// Flags returns the flags that a command itself declares, sorted, without --help and
// hidden ones.
func Flags(cmd *cobra.Command) []*pflag.Flag {
	var own []*pflag.Flag
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && !f.Hidden && (!cmd.HasParent() || cmd.InheritedFlags().Lookup(f.Name) == nil) {
			own = append(own, f)
		}
	})
	return own
}

// spelling returns a flag in the form of the help text, with the name of its value, and
// its description.
func spelling(f *pflag.Flag) (flag, text string) {
	value, text := pflag.UnquoteUsage(f)
	flag = "--" + f.Name
	if f.Shorthand != "" {
		flag = "-" + f.Shorthand + ", " + flag
	}
	if value != "" {
		flag += " " + value
	}
	if shownDefault(f) {
		text += fmt.Sprintf(" (default %s)", f.DefValue)
	}
	return flag, text
}

// shownDefault reports whether help shows a flag's default.
func shownDefault(f *pflag.Flag) bool {
	switch f.DefValue {
	case "", "false", "0", "0s", "[]":
		return false
	}
	return true
}

// use returns a command's usage line.
func use(cmd *cobra.Command) string {
	_, args, _ := strings.Cut(cmd.Use, " ")
	return strings.TrimSpace(cmd.CommandPath() + " " + args)
}

// description returns a command's long description or, if it has none, its short one as
// a sentence.
func description(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return cmd.Long
	}
	return cmd.Short + "."
}

// Markers in a document; Replace replaces the text between them.
const (
	begin = "<!-- commands: written by make gen -->\n"
	end   = "<!-- /commands -->\n"
)

// Replace returns doc with the reference between the lines begin and end. It returns an
// error if doc lacks the line begin, or lacks the line end after it.
func Replace(doc, reference []byte) ([]byte, error) {
	before, rest, ok := bytes.Cut(doc, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return nil, errors.New("the lines that mark the place of the commands are missing")
	}
	return bytes.Join([][]byte{before, []byte(begin), reference, []byte(end), after}, nil), nil
}
