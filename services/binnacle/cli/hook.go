package cli

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/coding"
)

// newHookCmd returns the command hook, whose subcommands govern coding agents.
func newHookCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:     "hook COMMAND",
		Short:   "Govern coding agents by their hooks",
		Example: "  binnacle hook install claude-code --yes\n  binnacle hook policy guard coding\n  binnacle hook run claude-code < event.json",
	},
		newHookInstallCmd(c),
		newHookUninstallCmd(c),
		newHookStatusCmd(c),
		newHookDoctorCmd(c),
		newHookRunCmd(c),
		newHookPolicyCmd(c),
		newHookFlushCmd(c),
	)
}

// hookOptions are the options of the commands that answer hooks.
type hookOptions struct {
	state        string
	wait, within time.Duration
	replace, ask bool
	contents     bool
	away         string
}

// The values of the flag --when-away.
const (
	awayDeny  = "deny"
	awayWatch = "watch"
)

// hookFlags declares the flags of the commands that answer hooks.
func hookFlags(cmd *cobra.Command, o *hookOptions) {
	f := cmd.Flags()
	f.StringVar(&o.state, "state", "", "`FOLDER` of permits and of outcomes to report (default: binnacle/hooks in XDG_STATE_HOME or ~/.local/state)")
	f.DurationVar(&o.wait, "wait", 5*time.Minute, "how long a tool may wait for people to approve it; less than the client's timeout for hooks")
	f.DurationVar(&o.within, "report-within", time.Hour, "when the outcome of a tool is due, at most 24h")
	f.BoolVar(&o.replace, "replace-prompts", false, "let an allowed tool run without the client's own prompt, where the client supports it")
	f.BoolVar(&o.ask, "ask", false, "let the client ask its user at once about a tool that needs approval, where the client supports it")
	f.StringVar(&o.away, "when-away", awayDeny, "what happens to a tool while the mesh cannot be reached: deny, or watch, which lets it run and reports it later")
	flagWords(cmd, "when-away", awayDeny, awayWatch)
	f.BoolVar(&o.contents, "content", false, "report the output of tools and the files they edit, and not only digests")
}

func newHookRunCmd(c *env) *cobra.Command {
	var o hookOptions
	var socket string
	cmd := &cobra.Command{
		Use:   "run CLIENT",
		Short: "Answer a hook of a coding agent: decide before a tool, report after it",
		Long: `Read the document that a client passes to its hook on standard input, and write the
answer in the client's form. A tool that policy allows is answered without an objection,
so that the client's own rules and prompts apply. A hook that fails denies the tool. The
program binnacle-hook beside this one takes the same arguments and is quicker: a helper,
which it starts, answers until no hook was run for 10 minutes.`,
		Example:           "  binnacle hook run claude-code < event.json",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(words(hook.Clients()...)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if socket != "" {
				return serveHooks(cmd.Context(), c, &o, args[0], socket)
			}
			return answerHook(c, runHook(cmd.Context(), c, &o, args[0], nil))
		},
	}
	hookFlags(cmd, &o)
	cmd.Flags().StringVar(&socket, "resident", "", "answer the documents that arrive at the socket with the `PATH`, which is file 3")
	_ = cmd.Flags().MarkHidden("resident") // binnacle-hook sets it
	return cmd
}

// answerHook writes the answer of a hook. If the answer's exit status is not 0,
// it returns an error with that exit code.
func answerHook(c *env, a hook.Answer) error {
	fmt.Fprint(c.out, a.Stdout)
	fmt.Fprint(c.errOut, a.Stderr)
	if a.Exit != 0 {
		return &exitError{code: a.Exit, err: errSilent}
	}
	return nil
}

func runHook(ctx context.Context, c *env, o *hookOptions, client string, open *hookConnections) hook.Answer {
	doc, err := hook.ReadDocument(c.in)
	if err != nil {
		return hook.Broken(err.Error())
	}
	r, err := newHookRunner(c, o)
	if err != nil {
		return hook.Broken(err.Error())
	}
	open.use(c, r)
	return r.Handle(ctx, client, doc)
}

// newHookRunner returns the runner for the options, with the mesh of the command line.
func newHookRunner(c *env, o *hookOptions) (*hook.Runner, error) {
	if o.wait < 0 || o.wait > time.Hour {
		return nil, fail(exitUsage, "--wait %s: want 0s to 1h", o.wait)
	}
	if o.within < time.Second || o.within > guard.MaxReportWithin {
		return nil, fail(exitUsage, "--report-within %s: want 1s to %s", o.within, guard.MaxReportWithin)
	}
	if o.away != "" && o.away != awayDeny && o.away != awayWatch {
		return nil, fail(exitUsage, "--when-away %q: want %s or %s", o.away, awayDeny, awayWatch)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	if o.state == "" {
		o.state = hookState(home)
	}
	t, err := c.transport()
	if err != nil {
		return nil, err
	}
	return &hook.Runner{Mesh: &hook.Mesh{URL: c.base(), Others: strings.Contains(c.mesh().addr, ","), Token: c.bearer, Client: &http.Client{Transport: t}}, State: o.state, Wait: o.wait, ReportWithin: o.within,
		ReplacePrompts: o.replace, Ask: o.ask, Content: o.contents, Home: home, Watch: o.away == awayWatch}, nil
}

func newHookFlushCmd(c *env) *cobra.Command {
	o := hookOptions{within: time.Minute}
	cmd := &cobra.Command{
		Use:   "flush",
		Short: "Report the actions that hooks wrote into their journal while the mesh was away",
		Long: `Report the entries of the journal that hooks with --when-away=watch wrote for the principal
of the token in use. Hooks report them too, after each tool. Each entry is recorded once, as
an event action_observed, without a decision and without a receipt.`,
		Example:           "  binnacle hook flush",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := newHookRunner(c, &o)
			if err != nil {
				return err
			}
			f, err := r.Flush(cmd.Context())
			if err != nil {
				return fail(exitFailed, "entries of the journal: reported %d, refused %d, remaining %d: %v", f.Reported, f.Refused, f.Remain, err)
			}
			return c.print(f, func() {
				fmt.Fprintf(c.out, "reported %d, refused %d, remaining %d\n", f.Reported, f.Refused, f.Remain)
			})
		},
	}
	cmd.Flags().StringVar(&o.state, "state", "", "`FOLDER` that install was given")
	return cmd
}

func newHookPolicyCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:   "policy MODE FOLDER",
		Short: "Write the built-in bundle for coding agents to a new folder",
		Long: `Write the policy bundle 'coding' with its tests to a new folder. MODE is off, watch,
guard or strict. The allow-lists in FOLDER/data.json are empty; fill them, then build,
sign and activate the bundle with 'binnacle policy'.`,
		Example:           "  binnacle hook policy guard coding\n  binnacle policy test coding",
		Args:              takes(2, 2),
		ValidArgsFunction: byPosition(words(coding.Modes...), files),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := coding.Default(args[0])
			if err != nil {
				return fail(exitUsage, "%v", err)
			}
			if err := coding.Write(args[1], s); err != nil {
				return err
			}
			return c.print(map[string]string{"folder": args[1], "mode": args[0]}, func() { fmt.Fprintf(c.out, "%s: the bundle coding in mode %s\n", args[1], args[0]) })
		},
	}
}
