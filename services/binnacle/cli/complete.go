package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/suggest"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/contexts"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// completionTimeout bounds the time that a completion waits for the mesh.
const completionTimeout = 800 * time.Millisecond

// completer returns the completions of one word on a command line, as cobra requires.
type completer = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective)

// complete sets the completer for the values of a flag. It panics if the command does
// not declare the flag, or if the flag has a completer.
func complete(cmd *cobra.Command, flag string, f completer) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // programming error: the flag is not declared, or has two completers
	}
}

// words returns a completer that offers the given words.
func words(list ...string) completer {
	return func(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return starting(list, word), cobra.ShellCompDirectiveNoFileComp
	}
}

// starting returns the completions that begin with a word.
func starting(list []string, word string) []string {
	var out []string
	for _, x := range list {
		if strings.HasPrefix(x, word) {
			out = append(out, x)
		}
	}
	return out
}

// flagWords sets the words that complete the values of a flag.
func flagWords(cmd *cobra.Command, flag string, list ...string) { complete(cmd, flag, words(list...)) }

// byPosition returns a completer that uses one completer per position, and completes no
// further arguments.
func byPosition(list ...completer) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(list) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list[len(args)](cmd, args, word)
	}
}

// files is a completer for paths on this machine.
func files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// directories declares that the values of the flags are folders, for completion.
func directories(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		if err := cmd.MarkFlagDirname(flag); err != nil {
			panic(err)
		}
	}
}

// completeGlobalFlags sets the completers of the flags that every command accepts.
func completeGlobalFlags(root *cobra.Command) {
	flagWords(root, "output", output.Formats...)
	complete(root, "context", completeContexts)
	for _, flag := range []string{"addr", "token"} {
		complete(root, flag, cobra.NoFileCompletions)
	}
	if err := root.MarkPersistentFlagDirname("data"); err != nil {
		panic(err)
	}
}

// completeContexts is a completer for the names of contexts.
func completeContexts(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	return starting(contextNames(), word), cobra.ShellCompDirectiveNoFileComp
}

// contextNames returns the names of the stored contexts. If the file cannot be read it
// returns none, because a completion must not print errors.
func contextNames() []string {
	path, err := contexts.Path()
	if err != nil {
		return nil
	}
	s, err := contexts.Load(path)
	if err != nil {
		return nil
	}
	return s.Names()
}

// fromMesh returns a completer with names that the function list reads from the mesh. It
// completes nothing if list fails, for example because the mesh does not respond within
// completionTimeout.
func fromMesh(c *env, list func(context.Context, *env) ([]string, error)) completer {
	return func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		if c.start(cmd.Flags()) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		defer cancel()
		names, err := list(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return starting(names, word), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeTools returns a completer for the first argument, with the names of tools.
func completeTools(c *env) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return fromMesh(c, describedTools)(cmd, args, word)
	}
}

// completeModels returns a completer with the names of models.
func completeModels(c *env) completer { return fromMesh(c, modelNames) }

// describedTools returns the mesh's tools as completions with descriptions.
func describedTools(ctx context.Context, c *env) ([]string, error) {
	packs, err := listTools(ctx, c)
	var out []string
	for _, p := range packs {
		out = append(out, cobra.CompletionWithDesc(p.Name, p.Description))
	}
	return out, err
}

// toolNames returns the names of the mesh's tools.
func toolNames(ctx context.Context, c *env) ([]string, error) {
	packs, err := listTools(ctx, c)
	var out []string
	for _, p := range packs {
		out = append(out, p.Name)
	}
	return out, err
}

// modelNames returns the names of the models that the mesh offers.
func modelNames(ctx context.Context, c *env) ([]string, error) {
	var doc struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	err := c.get(ctx, "/v1/models", &doc)
	var out []string
	for _, m := range doc.Data {
		out = append(out, m.ID)
	}
	return out, err
}

// suggestTool adds the names of similar tools to err if it is the denial of a call to an
// unknown tool. It returns other errors unchanged.
func suggestTool(ctx context.Context, c *env, err error, name string) error {
	return suggestNames(ctx, c, err, func(_, reason string) bool { return reason == contract.ReasonUnknownTool }, name, toolNames)
}

// near returns the question that ends a message about a name, with similar names of the
// list that list returns. It returns "" if the list contains name or nothing similar, or
// cannot be read.
func near(ctx context.Context, c *env, name string, list func(context.Context, *env) ([]string, error)) string {
	names, err := list(ctx, c)
	if err != nil || slices.Contains(names, name) {
		return ""
	}
	return didYouMean(suggest.Near(name, names))
}

// suggestModel adds the names of similar models to err if it reports an unknown model.
// It returns other errors unchanged.
func suggestModel(ctx context.Context, c *env, err error, name string) error {
	return suggestNames(ctx, c, err, func(code, _ string) bool { return code == contract.CodeModelNotFound }, name, modelNames)
}
