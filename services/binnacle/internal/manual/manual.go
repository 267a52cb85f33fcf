// Package manual writes the documentation of a command line from its commands: a
// manual page for each, and one reference in Markdown.
package manual

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Walk calls visit for a command and all below it that help lists, each after its
// parent.
func Walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			Walk(sub, visit)
		}
	}
}

// Flags are the flags that a command declares itself, without --help, sorted.
func Flags(cmd *cobra.Command) []*pflag.Flag {
	var own []*pflag.Flag
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && !f.Hidden && (!cmd.HasParent() || cmd.InheritedFlags().Lookup(f.Name) == nil) {
			own = append(own, f)
		}
	})
	return own
}

// spelling returns a flag as help shows it, with the name of its value, and its
// description.
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

// use is a command's usage line.
func use(cmd *cobra.Command) string {
	_, args, _ := strings.Cut(cmd.Use, " ")
	return strings.TrimSpace(cmd.CommandPath() + " " + args)
}

// description is what a command does, as sentences.
func description(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return cmd.Long
	}
	return cmd.Short + "."
}

// The lines between which Replace puts the reference.
const (
	begin = "<!-- commands: written by make gen -->\n"
	end   = "<!-- /commands -->\n"
)

// Replace puts the reference between the two lines of a document that mark its
// place.
func Replace(doc, reference []byte) ([]byte, error) {
	before, rest, ok := bytes.Cut(doc, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return nil, errors.New("the lines that mark the place of the commands are missing")
	}
	return bytes.Join([][]byte{before, []byte(begin), reference, []byte(end), after}, nil), nil
}
