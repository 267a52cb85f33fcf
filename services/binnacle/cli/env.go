package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// env is one invocation: where it reads and writes, and the flags that every
// command takes.
type env struct {
	out    io.Writer
	errOut io.Writer
	in     io.Reader

	addr, token, data, context string
	json                       bool
	output                     string
	flags                      *pflag.FlagSet // of the command that runs

	format output.Format
	target *target // the mesh, once it is known
}

// globalFlags declares the flags that every command takes.
func globalFlags(c *env, f *pflag.FlagSet) {
	f.StringVar(&c.addr, "addr", "", "`ADDRESS` of the mesh's gateway, host:port or a URL; for up, the one to listen on (default: BINNACLE_ADDR, the context's, "+defaultAddr+")")
	f.StringVar(&c.token, "token", "", "bearer `TOKEN`; others on this machine may see it: BINNACLE_TOKEN and login are better (default: BINNACLE_TOKEN, the context's, DATA/admin.token)")
	f.StringVar(&c.data, "data", "", "state `FOLDER` of a mesh on this machine (default: BINNACLE_DATA, data)")
	f.StringVar(&c.context, "context", "", "`NAME` of the context that gives address and token (default: BINNACLE_CONTEXT, the one in use)")
	f.BoolVar(&c.json, "json", false, "the same as --output json")
	f.StringVarP(&c.output, "output", "o", "", "form of the output: `FORMAT` is table, json, jsonl or yaml (default table)")
}

// start completes the flags that every command takes, before a command runs.
func (c *env) start(flags *pflag.FlagSet) error {
	c.flags = flags
	if c.data == "" {
		c.data = envOr("BINNACLE_DATA", "data")
	}
	if err := fromEnvironment(flags); err != nil {
		return err
	}
	return c.chooseFormat()
}

// chooseFormat takes the form of output from --output and --json.
func (c *env) chooseFormat() error {
	if c.json && c.output != "" && c.output != string(output.JSON) {
		return fail(exitUsage, "--json and --output %s contradict each other", c.output)
	}
	c.format = output.Table
	if c.json {
		c.format = output.JSON
	}
	if c.output == "" {
		return nil
	}
	f, err := output.Parse(c.output)
	if err != nil {
		return fail(exitUsage, "--output: %v", err)
	}
	c.format = f
	return nil
}

// formatOf finds the form of output in a command line that may be wrong, so that
// an error is in that form. It is table where none is named.
func formatOf(args []string) output.Format {
	for i, a := range args {
		name, value, given := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case a == "--":
			return output.Table
		case name == a:
			continue
		case name == "json" && (!given || value == "true" || value == "1"):
			return output.JSON
		case (name == "output" || name == "o") && !given && i+1 < len(args):
			value = args[i+1]
			fallthrough
		case name == "output" || name == "o":
			if f, err := output.Parse(value); err == nil {
				return f
			}
		}
	}
	return output.Table
}

// structured reports whether the output is a document for programs.
func (c *env) structured() bool { return c.format != output.Table }

// headings reports whether a table has a line of headings: on a terminal, and where
// the command line names the format. Elsewhere the rows stand alone, so that a
// program that reads them line by line need not skip one.
func (c *env) headings() bool {
	return c.output == string(output.Table) || output.Terminal(c.terminal())
}

// terminal is the file behind standard output, if it is one.
func (c *env) terminal() io.Writer {
	if w, ok := c.out.(*written); ok {
		return w.w
	}
	return c.out
}

// style colours what goes to standard output.
func (c *env) style() output.Style { return output.StyleFor(c.terminal(), os.Getenv) }

// print writes doc in the form of output that was chosen, or calls human for
// people.
func (c *env) print(doc any, human func()) error {
	if !c.structured() {
		human()
		return nil
	}
	if w, ok := c.out.(*written); ok && w.n > 0 && c.format == output.YAML {
		fmt.Fprintln(c.out, "---")
	}
	return output.Write(c.out, c.format, doc)
}

// printRaw is print for a document that the mesh sent: as JSON it is byte for byte
// what was received.
func (c *env) printRaw(raw []byte, human func()) error {
	if c.format == output.JSON {
		_, err := c.out.Write(raw)
		return err
	}
	return c.print(json.RawMessage(raw), human)
}

// table writes a document, or its rows for people.
func (c *env) table(doc any, columns []output.Column, rows func(g *output.Grid)) error {
	g := output.Grid{Columns: columns}
	rows(&g)
	return c.tables(doc, &g)
}

// tables writes a document, or its tables for people.
func (c *env) tables(doc any, grids ...*output.Grid) error {
	var failed error
	err := c.print(doc, func() {
		for _, g := range grids {
			failed = errors.Join(failed, g.Write(c.out, c.headings(), c.style()))
		}
	})
	return errors.Join(err, failed)
}

// written counts what was written.
type written struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (w *written) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	w.n += int64(n)
	return n, err
}

func envOr(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

// envAnnotation is the annotation of a flag that names its variable.
const envAnnotation = "binnacle_variable"

// variable lets an environment variable give a flag's value where the command line
// does not. The value is no default, so that no help text shows it.
func variable(f *pflag.FlagSet, flag, name string) {
	x := f.Lookup(flag)
	x.Usage += " (" + name + ")"
	_ = f.SetAnnotation(flag, envAnnotation, []string{name}) // the flag exists
}

// fromEnvironment gives flags that were not named the values of their variables.
func fromEnvironment(f *pflag.FlagSet) (err error) {
	f.VisitAll(func(x *pflag.Flag) {
		names := x.Annotations[envAnnotation]
		if len(names) == 0 || x.Changed || err != nil {
			return
		}
		if v := os.Getenv(names[0]); v != "" {
			if bad := x.Value.Set(v); bad != nil {
				err = fail(exitUsage, "%s: %v", names[0], bad)
			}
		}
	})
	return err
}

// given reports whether the command line names a flag.
func (c *env) given(flag string) bool { return c.flags != nil && c.flags.Changed(flag) }
