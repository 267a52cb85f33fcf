package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/strictjson"
	"github.com/binnacle-mesh/binnacle/pkg/suggest"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
)

// settingAnnotation is the flag annotation with the JSON pointer of the member of the
// configuration file that the flag overrides.
const settingAnnotation = "binnacle_setting"

// setting declares that a flag overrides the member of the configuration file at a JSON
// pointer, and adds the member's variable, if there is one, to the flag's help text.
func setting(f *pflag.FlagSet, flag, pointer string) {
	x := f.Lookup(flag)
	if v := config.Find(pointer).Variable; v != "" && !strings.Contains(x.Usage, v) {
		x.Usage += " (" + v + ")"
	}
	_ = f.SetAnnotation(flag, settingAnnotation, []string{pointer}) // cannot fail, because the flag exists
}

// configFlag declares the flag --config.
func configFlag(f *pflag.FlagSet, file *string) {
	f.StringVar(file, "config", "", "configuration `FILE` (YAML); flags and variables override it, 'binnacle config show' lists what is in force")
	variable(f, "config", "BINNACLE_CONFIG_FILE")
}

// overrides returns the members of the configuration that flags on the command line set,
// by JSON pointer.
func (c *env) overrides() map[string]config.Flag {
	out := map[string]config.Flag{}
	if c.flags == nil {
		return out
	}
	c.flags.VisitAll(func(f *pflag.Flag) {
		at := f.Annotations[settingAnnotation]
		if !f.Changed || len(at) == 0 {
			return
		}
		x := config.Flag{Name: "--" + f.Name, Text: f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			x.List = list.GetSlice()
		}
		out[at[0]] = x
	})
	return out
}

// load reads the configuration of a program from a file, the environment and flags. If
// flags is nil, it uses the flags of the command line. If --data is given, load adds it
// to flags. Its error has exit code 2 and lists the problems that config.Load found.
func (c *env) load(program, file string, flags map[string]config.Flag) (*config.Loaded, error) {
	if flags == nil {
		flags = c.overrides()
	}
	if c.given("data") {
		flags["/data"] = config.Flag{Name: "--data", Text: c.data}
	}
	l, err := config.Load(config.Source{Program: program, File: file, Getenv: os.Getenv, Flags: flags})
	if err != nil {
		return nil, wrongConfig(err)
	}
	return l, nil
}

// wrongConfig returns the error for an invalid configuration, with exit code 2. Its text
// has a line for each problem, and its document lists the problems.
func wrongConfig(err error) error {
	found := config.Problems(err)
	var lines []string
	var docs []map[string]any
	for _, p := range found {
		lines = append(lines, p.Error())
		docs = append(docs, map[string]any{"file": p.File, "line": p.Line, "pointer": p.Pointer, "value": p.Value, "message": p.Message})
	}
	return &exitError{code: exitUsage, err: errors.New(strings.Join(lines, "\n")), doc: map[string]any{"problems": docs}}
}

// readLLM reads the llm document that a configuration contains or refers to by file
// name. Errors about an inline document contain its JSON pointer in the configuration
// file, and errors about a file contain the file's name.
func readLLM(d config.Document) (llmrouter.Config, error) {
	doc, where, err := d.Read("/llm-router/document")
	if err != nil {
		return llmrouter.Config{}, err
	}
	cfg, err := llmrouter.ReadConfig(doc)
	var at *strictjson.Error
	switch {
	case err == nil:
	case d.Inline != nil && errors.As(err, &at):
		err = fmt.Errorf("%s%w", where, err)
	default:
		err = fmt.Errorf("%s: %w", where, err)
	}
	return cfg, err
}

// newConfigCmd returns the command config, which checks and shows configuration.
func newConfigCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "config COMMAND",
		Short: "Check a configuration file, and show what is in force",
		Long: `Check a configuration file, and show the configuration in force. Flags come before
BINNACLE_* variables, those before the file, and defaults are last. The file's JSON
Schema is schemas/config/binnacle.v1.json; 'binnacle config schema' prints it.`,
		Example: "  binnacle config check binnacle.yaml\n  binnacle config show --config binnacle.yaml --power",
	}, newConfigCheckCmd(c), newConfigShowCmd(c), newConfigSchemaCmd(c))
}

func newConfigCheckCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file without running anything",
		Long: `Check a configuration file: its members, their values, and the llm document that it
names or holds. Each problem is a line with the JSON pointer of the member, its value
and what to write instead, and the exit code is 2.`,
		Example: "  binnacle config check binnacle.yaml",
		Args:    takes(1, 1),
		RunE:    func(_ *cobra.Command, args []string) error { return runConfigCheck(c, args[0]) },
	}
}

// runConfigCheck checks a file, including the llm document, as the command up reads it
// without flags and variables, and prints the file's digest.
func runConfigCheck(c *env, file string) error {
	digest, err := config.Check(file)
	if err != nil {
		return wrongConfig(err)
	}
	l, err := config.Load(config.Source{Program: config.Up, File: file})
	if err != nil {
		return wrongConfig(err)
	}
	if d := l.Config.LLMRouter.Document; d.Given() {
		if _, err := readLLM(d); err != nil {
			return fail(exitUsage, "%s: %v", file, err)
		}
	}
	return c.print(map[string]string{"file": file, "digest": digest}, func() { fmt.Fprintf(c.out, "%s is valid; its digest is %s\n", file, digest) })
}

// settingRow is one member of the effective configuration, as 'config show' prints it.
type settingRow struct {
	Pointer string `json:"pointer"`
	Value   any    `json:"value"` // null if the member has no value
	Origin  string `json:"origin"`
	Reload  bool   `json:"reload"` // whether a running program applies a change without a restart
}

func newConfigShowCmd(c *env) *cobra.Command {
	var o meshOptions
	var program, listen, level string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the configuration in force and where each value is from",
		Long: `Show the configuration that a program would start with here: each member, its value and
whether it is from a flag, a variable, the file or a default. It takes the flags of up.
Secrets are never shown, only where they are.`,
		Example:           "  binnacle config show --config binnacle.yaml --power\n  binnacle config show --config binnacle.yaml --program gateway --output yaml",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return runConfigShow(c, program, &o) },
	}
	cmd.Flags().StringVar(&program, "program", config.Up, "`NAME` of the program: up, provision or a service")
	flagWords(cmd, "program", config.Programs()...)
	declareListen(cmd.Flags(), &listen)
	declareLevel(cmd, &level)
	o.declare(cmd)
	return cmd
}

// runConfigShow prints the configuration with which a program would start with the
// current flags, variables and file.
func runConfigShow(c *env, program string, o *meshOptions) error {
	if !slices.Contains(config.Programs(), program) {
		return fail(exitUsage, "--program: %q is none of %s%s", program, strings.Join(config.Programs(), ", "), didYouMean(suggest.Near(program, config.Programs())))
	}
	l, err := o.load(c, program)
	if err != nil {
		return err
	}
	rows := []settingRow{}
	for i := range l.Values {
		v := &l.Values[i]
		rows = append(rows, settingRow{v.Pointer, v.Shown(), v.Origin, v.Reload})
	}
	doc := map[string]any{"program": program, "file": l.File, "digest": l.Digest, "settings": rows}
	columns := []output.Column{{Heading: "SETTING", Min: 28}, {Heading: "VALUE", Min: 24}, {Heading: "ORIGIN"}}
	return c.table(doc, columns, func(g *output.Grid) {
		for i := range l.Values {
			v := &l.Values[i]
			g.Add(v.Pointer, v.Text(), v.Origin)
		}
	})
}

func newConfigSchemaCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:               "schema",
		Short:             "Print the JSON Schema of the configuration file",
		Example:           "  binnacle config schema > binnacle.schema.json",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			schema, err := config.Schema()
			if err != nil {
				return err
			}
			return c.printRaw(schema, func() { _, _ = c.out.Write(schema) })
		},
	}
}
