package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/install"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// hookTarget holds the flags of commands that read or change a client's configuration.
type hookTarget struct {
	project, state string
	yes            bool
}

func (o *hookTarget) flags(f *pflag.FlagSet) {
	f.StringVar(&o.project, "project", "", "`FOLDER` of a project: its configuration instead of the user's")
}

// target returns the place of a client's configuration and the command of its hooks. The hooks
// run the program that hookProgram returns. If run is not nil, they pass the flags that are
// set on the command line, except project and yes.
func (o *hookTarget) target(client string, run *hookOptions, flags *pflag.FlagSet) (*install.Target, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := &install.Target{Client: client, Home: home, State: o.state, Command: quoted(hookProgram(self)) + " hook run " + client}
	if t.State == "" {
		t.State = hookState(home)
	}
	if o.project != "" {
		if t.Project, err = filepath.Abs(o.project); err != nil {
			return nil, err
		}
	}
	if run != nil {
		t.Timeout = int(hook.Timeout(run.wait) / time.Second)
		flags.VisitAll(func(f *pflag.Flag) { // Visit visits none, because cobra parses another set with the same flags
			if f.Changed && f.Name != "project" && f.Name != "yes" {
				t.Command += " --" + f.Name + "=" + quoted(f.Value.String())
			}
		})
	}
	return t, nil
}

// hookProgram returns the path of the program that a client runs for its hooks: binnacle-hook
// in the folder of self, the path of this program, or self if the folder has no such
// executable.
func hookProgram(self string) string {
	small := filepath.Join(filepath.Dir(self), "binnacle-hook")
	if info, err := os.Stat(small); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
		return small
	}
	return self
}

// quoted returns s in quotes for a POSIX shell, or s itself if it needs no quotes.
func quoted(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-:=+") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// hookState returns the folder in which hooks keep their state.
func hookState(home string) string {
	return filepath.Join(envOr("XDG_STATE_HOME", filepath.Join(home, ".local", "state")), "binnacle", "hooks")
}

func newHookInstallCmd(c *env) *cobra.Command {
	var o hookTarget
	var run hookOptions
	cmd := &cobra.Command{
		Use:   "install CLIENT",
		Short: "Add the hooks to a client's configuration",
		Long: `Show what would change in the configuration of a client, and change it with --yes. What
is there stays. The other flags become those of 'binnacle hook run'; credentials are not
written: the hooks use BINNACLE_TOKEN or the context in use.`,
		Example:           "  binnacle hook install claude-code\n  binnacle hook install claude-code --project . --yes",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(words(install.Clients()...)),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.state = run.state
			if _, err := newHookRunner(c, &run); err != nil {
				return err
			}
			t, err := o.target(args[0], &run, cmd.LocalFlags())
			if err != nil {
				return err
			}
			return changeHooks(c, t, o.yes, true)
		},
	}
	hookFlags(cmd, &run)
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&o.yes, "yes", false, "make the change")
	return cmd
}

func newHookUninstallCmd(c *env) *cobra.Command {
	var o hookTarget
	cmd := &cobra.Command{
		Use:               "uninstall CLIENT",
		Short:             "Remove the hooks from a client's configuration",
		Long:              "Show what would change, and change it with --yes. A configuration that was not edited\nsince the installation gets its original bytes; otherwise only our entries are removed.",
		Example:           "  binnacle hook uninstall claude-code --yes",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(words(install.Clients()...)),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := o.target(args[0], nil, nil)
			if err != nil {
				return err
			}
			return changeHooks(c, t, o.yes, false)
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().StringVar(&o.state, "state", "", "`FOLDER` that install was given")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "make the change")
	return cmd
}

// changeHooks shows the change of a client's configuration that installs the hooks or, if
// installed is false, removes them. It makes the change if yes is set.
func changeHooks(c *env, t *install.Target, yes, installed bool) error {
	compute := t.Uninstall
	if installed {
		compute = t.Install
	}
	change, err := compute()
	if errors.Is(err, install.ErrUnknown) {
		return fail(exitUsage, "%v", err)
	}
	if err != nil {
		return err
	}
	if yes {
		if err := t.Apply(change, installed); err != nil {
			return err
		}
	}
	doc := map[string]any{"client": t.Client, "path": change.Path, "changed": yes, "diff": change.Diff()}
	return c.print(doc, func() {
		fmt.Fprint(c.out, change.Diff())
		if !yes {
			fmt.Fprintln(c.out, "nothing was changed; --yes makes the change")
		}
	})
}

// hookRow is the state of one client, as 'hook status' prints it.
type hookRow struct {
	Client    string `json:"client"`
	Path      string `json:"path"`
	Installed bool   `json:"installed"`
}

func newHookStatusCmd(c *env) *cobra.Command {
	var o hookTarget
	cmd := &cobra.Command{
		Use:               "status",
		Short:             "List the clients, and whether their hooks are installed",
		Example:           "  binnacle hook status --project .",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			var rows []hookRow
			for _, client := range install.Clients() {
				t, err := o.target(client, nil, nil)
				if err != nil {
					return err
				}
				is, err := t.Installed()
				if err != nil {
					return err
				}
				rows = append(rows, hookRow{client, t.Path(), is})
			}
			columns := []output.Column{{Heading: "CLIENT", Min: 12}, {Heading: "HOOKS", Min: 14}, {Heading: "PATH"}}
			return c.table(rows, columns, func(g *output.Grid) {
				for _, r := range rows {
					g.Add(r.Client, map[bool]string{true: "installed", false: "not installed"}[r.Installed], r.Path)
				}
			})
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func newHookDoctorCmd(c *env) *cobra.Command {
	var o hookTarget
	cmd := &cobra.Command{
		Use:   "doctor CLIENT",
		Short: "Check the hooks of a client, and list what they cannot stop",
		Long: `Check that the hooks of a client are installed, that their program can be executed and
that the mesh decides with the token in use; the check is recorded as an event of a
session. Then list the cases in which the client runs a tool without its hook.`,
		Example:           "  binnacle hook doctor claude-code",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(words(install.Clients()...)),
		RunE:              func(cmd *cobra.Command, args []string) error { return examineHooks(cmd.Context(), c, &o, args[0]) },
	}
	o.flags(cmd.Flags())
	cmd.Flags().StringVar(&o.state, "state", "", "`FOLDER` that install was given")
	return cmd
}

func examineHooks(ctx context.Context, c *env, o *hookTarget, client string) error {
	t, err := o.target(client, nil, nil)
	if err != nil {
		return err
	}
	is, err := t.Installed()
	if errors.Is(err, install.ErrUnknown) {
		return fail(exitUsage, "%v", err)
	}
	if err != nil {
		return err
	}
	missing, err := t.Missing()
	if err != nil {
		return err
	}
	r, err := newHookRunner(c, &hookOptions{state: t.State, within: time.Minute})
	if err != nil {
		return err
	}
	checked := r.Check(ctx, client)
	doc := map[string]any{"client": client, "installed": is, "missing_program": missing, "decides": checked == nil, "limits": hook.Limits(client)}
	version, unasked, tried := hook.Unasked(client)
	failures, failed := hook.FailsOpen(client)
	if tried {
		doc["version"], doc["unasked"] = version, append([]string{}, unasked...)
	}
	if failed {
		doc["fails_open"] = append([]string{}, failures...)
	}
	if err := c.print(doc, func() {
		fmt.Fprintf(c.out, "hooks   %s in %s\n", map[bool]string{true: "installed", false: "not installed"}[is], t.Path())
		if missing != "" {
			fmt.Fprintf(c.out, "program %s is missing or cannot be executed\n", missing)
		}
		if checked == nil {
			fmt.Fprintln(c.out, "mesh    decides and records")
		}
		if tried {
			fmt.Fprintf(c.out, "unasked %s runs without its hook: %s\n", version, cmp.Or(strings.Join(unasked, ", "), "no tool that it offers to a model"))
		}
		if failed {
			fmt.Fprintf(c.out, "open    %s runs a tool although its hook failed in one of these ways: %s\n", version, cmp.Or(strings.Join(failures, ", "), "none"))
		}
		for _, l := range hook.Limits(client) {
			fmt.Fprintf(c.out, "limit   %s\n", l)
		}
	}); err != nil {
		return err
	}
	switch {
	case missing != "":
		return fail(exitFailed, "the program of the hooks, %s, is missing or cannot be executed, so some clients run every tool: `binnacle hook install %s --yes` names another one", missing, client)
	case checked != nil:
		return fail(exitFailed, "the mesh does not decide, so every tool is denied: %v", checked)
	case !is:
		return fail(exitFailed, "the hooks are not installed: `binnacle hook install %s --yes` adds them", client)
	}
	return nil
}
