package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// env holds the state of one invocation, such as its input and outputs, and the flags
// that every command accepts.
type env struct {
	out    io.Writer
	errOut io.Writer
	in     io.Reader

	addr, token, data, context string
	json                       bool
	output                     string
	operator                   bool           // requests are an operator's; see bearer
	flags                      *pflag.FlagSet // flags of the running command; nil before start

	kept   *http.Transport // transport of all requests; nil: each has its own
	format output.Format
	target *target // the mesh to use; set on first use by the method mesh
}

// globalFlags declares the flags that every command accepts.
func globalFlags(c *env, f *pflag.FlagSet) {
	f.StringVar(&c.addr, "addr", "", "`ADDRESS` of the mesh's gateway, host:port or a URL, or several with commas, of which the next is used if one accepts no connection; for up, the one to listen on (default: BINNACLE_ADDR, the context's, "+defaultAddr+")")
	f.StringVar(&c.token, "token", "", "bearer `TOKEN`; others on this machine may see it: BINNACLE_TOKEN and login are better (default: BINNACLE_TOKEN, the context's, DATA/admin.token; for what concerns the whole mesh BINNACLE_OPERATOR_TOKEN, DATA/operator.token)")
	f.StringVar(&c.data, "data", "", "state `FOLDER` of a mesh on this machine (default: BINNACLE_DATA, data)")
	f.StringVar(&c.context, "context", "", "`NAME` of the context that gives address and token (default: BINNACLE_CONTEXT, the one in use)")
	f.BoolVar(&c.json, "json", false, "the same as --output json")
	f.StringVarP(&c.output, "output", "o", "", "form of the output: `FORMAT` is table, json, jsonl or yaml (default table)")
}

// start sets the values that depend on the parsed flags, before the command runs: the
// data folder, flags with environment variables, and the output format.
func (c *env) start(flags *pflag.FlagSet) error {
	c.flags = flags
	if c.data == "" {
		c.data = envOr("BINNACLE_DATA", "data")
	}
	if err := fromEnvironment(flags); err != nil {
		return err
	}
	return chooseFormat(c)
}

// chooseFormat sets the output format from --output and --json.
func chooseFormat(c *env) error {
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

// formatOf returns the output format in a command line that may be invalid, so that an
// error about it has that format. The default is table.
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

// structured reports whether the output is a document (JSON, JSON lines or YAML) and not
// text for people.
func (c *env) structured() bool { return c.format != output.Table }

// withHeadings reports whether a table has a heading line: if the output is a terminal or
// the command line selects the format table. Otherwise a table has only rows, so that
// programs that read lines need not skip the heading.
func withHeadings(c *env) bool {
	return c.output == string(output.Table) || output.Terminal(c.terminal())
}

// terminal returns the writer that c.out wraps, so that callers can test whether
// standard output is a terminal.
func (c *env) terminal() io.Writer {
	if w, ok := c.out.(*written); ok {
		return w.w
	}
	return c.out
}

// style returns the text style for standard output.
func (c *env) style() output.Style { return output.StyleFor(c.terminal(), os.Getenv) }

// print writes doc in the selected output format or, for the table format, calls human.
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

// printRaw is like print, for a document that was received from the mesh: the JSON
// format writes its bytes unchanged.
func (c *env) printRaw(raw []byte, human func()) error {
	if c.format == output.JSON {
		_, err := c.out.Write(raw)
		return err
	}
	return c.print(json.RawMessage(raw), human)
}

// table writes a document or, for the table format, one table, to which the function
// rows adds the rows.
func (c *env) table(doc any, columns []output.Column, rows func(g *output.Grid)) error {
	g := output.Grid{Columns: columns}
	rows(&g)
	return c.tables(doc, &g)
}

// listed writes the items of a list in JSON Lines, one on each line, and otherwise does what table
// does. It is for commands whose document contains more than the list.
func listed(c *env, doc, items any, columns []output.Column, rows func(g *output.Grid)) error {
	if c.format == output.JSONL {
		doc = items
	}
	return c.table(doc, columns, rows)
}

// tables writes a document or, for the table format, several tables.
func (c *env) tables(doc any, grids ...*output.Grid) error {
	var failed error
	err := c.print(doc, func() {
		for _, g := range grids {
			failed = errors.Join(failed, g.Write(c.out, withHeadings(c), c.style()))
		}
	})
	return errors.Join(err, failed)
}

// written is a writer that counts the bytes written to w.
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

// envOr returns the value of an environment variable, or def if it is unset or empty.
func envOr(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

// envAnnotation is the flag annotation with the name of the flag's environment variable.
const envAnnotation = "binnacle_variable"

// variable binds an environment variable to a flag: the variable, unless it is empty,
// sets the value if the command line does not. The value is not the flag's default,
// because help texts show defaults and the value may be secret.
func variable(f *pflag.FlagSet, flag, name string) {
	x := f.Lookup(flag)
	x.Usage += " (" + name + ")"
	_ = f.SetAnnotation(flag, envAnnotation, []string{name}) // cannot fail, because the flag exists
}

// fromEnvironment sets flags that are not on the command line from their environment
// variables. Empty variables are ignored. The error for an invalid value has exit code
// 2.
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

// given reports whether a flag is on the command line. It is false for a flag that only
// its variable sets.
func (c *env) given(flag string) bool { return c.flags != nil && c.flags.Changed(flag) }
