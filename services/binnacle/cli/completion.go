package cli

import (
	"bytes"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/suggest"
)

// shells lists the shells that have a completion script.
var shells = []string{"bash", "zsh", "fish", "powershell"}

// newCompletionCmd returns the command completion, which prints a shell's script for the
// completion of command lines.
func newCompletionCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a script that completes command lines in a shell",
		Long: `Print a script that completes command lines in a shell: commands, flags and their
values and, while a mesh answers, its tools, models and waiting calls. The script for
bash needs the package bash-completion.`,
		Example: `  source <(binnacle completion bash)
  binnacle completion zsh > "${fpath[1]}/_binnacle"
  binnacle completion fish > ~/.config/fish/completions/binnacle.fish`,
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(words(shells...)),
		RunE: func(cmd *cobra.Command, args []string) error {
			script, err := completionScript(cmd.Root(), args[0])
			if err != nil {
				return err
			}
			return c.print(map[string]string{"shell": args[0], "script": script}, func() { _, _ = c.out.Write([]byte(script)) })
		},
	}
}

// completionScript returns the completion script for a shell.
func completionScript(root *cobra.Command, shell string) (string, error) {
	var b bytes.Buffer
	var err error
	switch shell {
	case "bash":
		err = root.GenBashCompletionV2(&b, true)
	case "zsh":
		err = root.GenZshCompletion(&b)
	case "fish":
		err = root.GenFishCompletion(&b, true)
	case "powershell":
		err = root.GenPowerShellCompletionWithDesc(&b)
	default:
		err = fail(exitUsage, "shell %q: want bash, zsh, fish or powershell%s", shell, didYouMean(suggest.Near(shell, shells)))
	}
	return b.String(), err
}
