package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	return fail(exitUsage, "%s%s; '%s' lists them", what, didYouMean(near(word, names)), strings.TrimSpace(at.Root().Name()+" help "+path(at)))
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
		found := near(unknown.GetSpecifiedName(), names)
		for i := range found {
			found[i] = "--" + found[i]
		}
		hint = didYouMean(found)
	}
	return fail(exitUsage, "%v%s; '%s --help' lists the flags", err, hint, cmd.CommandPath())
}

// suggestNames adds to err the existing names that are similar to name, if the function
// unknown returns true for the code and reason of err. The function list returns the
// existing names. If list fails or no name is similar, err is returned unchanged.
func suggestNames(ctx context.Context, c *env, err error, unknown func(code, reason string) bool, name string, list func(context.Context, *env) ([]string, error)) error {
	var x *exitError
	if !errors.As(err, &x) {
		return err
	}
	code, _ := x.doc["code"].(string)
	reason, _ := x.doc["reason_code"].(string)
	if !unknown(code, reason) {
		return err
	}
	names, failed := list(ctx, c)
	if failed != nil {
		return err
	}
	found := near(name, names)
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

// near returns at most three names that are similar to word, the nearest first: names
// within a few edits and, if word has more than one byte, names that begin with it. It
// ignores case.
func near(word string, names []string) []string {
	type candidate struct {
		name  string
		edits int
	}
	var found []candidate
	word = strings.ToLower(word)
	for _, name := range names {
		n := distance(word, strings.ToLower(name))
		if n <= min(3, max(1, len(word)/3)) || len(word) > 1 && strings.HasPrefix(strings.ToLower(name), word) {
			found = append(found, candidate{name, n})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.edits, b.edits) })
	var out []string
	for _, f := range found[:min(len(found), 3)] {
		out = append(out, f.name)
	}
	return out
}

// distance returns the optimal string alignment distance: the smallest number of edits,
// each of which adds, removes or replaces a letter or swaps two adjacent ones, if no
// part is edited twice.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	before, last, row := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row[0] = i
		for j := 1; j <= len(y); j++ {
			replace := last[j-1]
			if x[i-1] != y[j-1] {
				replace++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replace)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(y)]
}
