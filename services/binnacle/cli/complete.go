package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/contexts"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// completionTimeout bounds the time that a completion waits for the mesh.
const completionTimeout = 800 * time.Millisecond

// completer completes one word.
type completer = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective)

// complete completes the values of a flag that the command declares.
func complete(cmd *cobra.Command, flag string, f completer) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // the flag is not declared, or completed twice
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

// flagWords completes a flag's values from a list.
func flagWords(cmd *cobra.Command, flag string, list ...string) { complete(cmd, flag, words(list...)) }

// byPosition completes each argument by the completer of its position, and no argument
// after the last.
func byPosition(list ...completer) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(list) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list[len(args)](cmd, args, word)
	}
}

// files completes paths of this machine.
func files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// directories completes the values of flags to folders.
func directories(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		if err := cmd.MarkFlagDirname(flag); err != nil {
			panic(err)
		}
	}
}

// completeGlobalFlags completes the values of the flags that every command takes.
func completeGlobalFlags(c *env, root *cobra.Command) {
	flagWords(root, "output", output.Formats...)
	complete(root, "context", completeContexts)
	for _, flag := range []string{"addr", "token"} {
		complete(root, flag, cobra.NoFileCompletions)
	}
	if err := root.MarkPersistentFlagDirname("data"); err != nil {
		panic(err)
	}
}

// completeContexts completes the name of a context.
func completeContexts(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	return starting(contextNames(), word), cobra.ShellCompDirectiveNoFileComp
}

// contextNames returns the names of the stored contexts, or none where they cannot be
// read.
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

// fromMesh completes the first argument, or a flag, from names that the mesh lists. It
// completes nothing if the mesh does not respond in time.
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

// completeTools completes the first argument to a tool.
func completeTools(c *env) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return fromMesh(c, describedTools)(cmd, args, word)
	}
}

// completeModels completes a model's name.
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

// suggestTool adds the tools with a similar name to the denial of an unknown one.
func suggestTool(ctx context.Context, c *env, err error, name string) error {
	return suggestNames(ctx, c, err, func(_, reason string) bool { return reason == "UNKNOWN_TOOL" }, name, toolNames)
}

// suggestModel adds the models with a similar name to the error about an unknown one.
func suggestModel(ctx context.Context, c *env, err error, name string) error {
	return suggestNames(ctx, c, err, func(code, _ string) bool { return code == "model_not_found" }, name, modelNames)
}
