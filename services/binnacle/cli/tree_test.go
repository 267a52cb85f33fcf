package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/manual"
)

// commands holds the top-level commands by name.
var commands = func() map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	for _, cmd := range testRoot().Commands() {
		all[cmd.Name()] = cmd
	}
	return all
}()

func testRoot() *cobra.Command {
	return newRoot(&env{out: io.Discard, errOut: io.Discard, in: strings.NewReader("")})
}

// TestTree checks that every command has a short description of at most 90 bytes without
// a full stop, an example and a function to run; that every command without subcommands,
// except help, checks its arguments; and that the help of each contains its example and
// describes all its flags and those of every command.
func TestTree(t *testing.T) {
	n := 0
	manual.Walk(testRoot(), func(cmd *cobra.Command) {
		n++
		at := cmd.CommandPath()
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") || len(cmd.Short) > 90 {
			t.Errorf("%s: its short text is %q", at, cmd.Short)
		}
		if !strings.Contains(cmd.Example, "binnacle ") {
			t.Errorf("%s has no example", at)
		}
		if cmd.RunE == nil {
			t.Errorf("%s does nothing", at)
		}
		if !cmd.HasSubCommands() && cmd.Args == nil && cmd.Name() != "help" {
			t.Errorf("%s takes any arguments", at)
		}
		help := helpText(cmd)
		for _, want := range []string{cmd.Example, "--token", "--output"} {
			if !strings.Contains(help, want) {
				t.Errorf("%s --help does not hold %q", at, want)
			}
		}
		for _, f := range manual.Flags(cmd) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no text", at, f.Name)
			}
			if !strings.Contains(help, "--"+f.Name) {
				t.Errorf("%s --help does not hold --%s", at, f.Name)
			}
		}
	})
	if n < 90 {
		t.Errorf("only %d commands", n)
	}
}

// TestExamples checks that every example is a valid command line, whose command, flags
// and arguments can be parsed, and that each command has an example of itself or of one
// of its subcommands.
func TestExamples(t *testing.T) {
	manual.Walk(testRoot(), func(cmd *cobra.Command) {
		own := 0
		for _, line := range strings.Split(cmd.Example, "\n") {
			words := exampleWords(strings.TrimSpace(line))
			if len(words) == 0 {
				continue
			}
			root := testRoot()
			found, rest, err := root.Find(normalize(root, words))
			if err == nil {
				found.InitDefaultHelpFlag()
				err = found.ParseFlags(rest)
			}
			if err == nil && found.Args != nil {
				err = found.Args(found, found.Flags().Args())
			}
			if err == nil && found.HasSubCommands() && found.Name() != "provision" && len(words) > 0 && found.HasParent() {
				err = unknownCommand(found, strings.Join(found.Flags().Args(), " "))
			}
			if err != nil {
				t.Errorf("%s: example %q: %v", cmd.CommandPath(), line, err)
				continue
			}
			if strings.HasPrefix(found.CommandPath(), cmd.CommandPath()) {
				own++
			}
		}
		if own == 0 {
			t.Errorf("%s: no example of it", cmd.CommandPath())
		}
	})
}

// exampleWords returns the arguments in a line of an example, up to a redirection, or
// nil if the line runs another program.
func exampleWords(line string) []string {
	line = strings.TrimSuffix(strings.TrimPrefix(line, "source <("), ")")
	if !strings.HasPrefix(line, "binnacle ") {
		return nil
	}
	var out []string
	word, quote := "", rune(0)
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote = r
		case r == ' ':
			if word == ">" || word == "<" {
				return out[1:]
			}
			if word != "" {
				out = append(out, word)
			}
			word = ""
		default:
			word += string(r)
		}
	}
	return out[1:]
}
