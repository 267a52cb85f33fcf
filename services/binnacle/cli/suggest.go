package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/binnacle-mesh/binnacle/pkg/suggest"
)

// unknownCommand returns the error for a word that is not a subcommand of at, with
// suggestions.
func unknownCommand(at *cobra.Command, word string) error {
	var names []string
	for _, sub := range at.Commands() {
		names = append(names, sub.Name())
		names = append(names, sub.Aliases...)
	}
	what := "unknown command " + fmt.Sprintf("%q", word)
	if at.HasParent() {
		what += " of " + at.CommandPath()
	}
	return fail(exitUsage, "%s%s; '%s' lists them", what, didYouMean(suggest.Near(word, names)), strings.TrimSpace(at.Root().Name()+" help "+path(at)))
}

// path returns a command's path without the name of the root command.
func path(cmd *cobra.Command) string {
	_, p, _ := strings.Cut(cmd.CommandPath(), " ")
	return p
}

// wrongFlag returns the error for an unknown flag, with suggestions, or for a flag's
// invalid value. It returns pflag.ErrHelp unchanged.
func wrongFlag(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	hint := ""
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		found := suggest.Near(unknown.GetSpecifiedName(), names)
		for i := range found {
			found[i] = "--" + found[i]
		}
		hint = didYouMean(found)
	}
	return fail(exitUsage, "%v%s; '%s --help' lists the flags", err, hint, cmd.CommandPath())
}

// suggestNames adds to err the existing names that are similar to name, if the function unknown
// returns true for the code and reason of err. The function list returns the existing names. If
// unknown returns false, err already has suggestions, list fails or no name is similar, err is
// returned unchanged.
func suggestNames(ctx context.Context, c *env, err error, unknown func(code, reason string) bool, name string, list func(context.Context, *env) ([]string, error)) error {
	var x *exitError
	if !errors.As(err, &x) {
		return err
	}
	code, _ := x.doc["code"].(string)
	reason, _ := x.doc["reason_code"].(string)
	if !unknown(code, reason) || x.doc["did_you_mean"] != nil {
		return err
	}
	names, failed := list(ctx, c)
	if failed != nil {
		return err
	}
	found := suggest.Near(name, names)
	if len(found) == 0 {
		return err
	}
	x.doc["did_you_mean"] = found
	return &exitError{code: x.code, err: fmt.Errorf("%w%s", x.err, didYouMean(found)), doc: x.doc}
}

// didYouMean returns the question that ends an error message with suggestions, or "" if
// there are no names.
func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(names, " or ") + "?"
}
