package cli

import (
	"cmp"
	"context"
	"crypto/rand"

	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/workspace"
)

// runOptions are the options of the command run.
type runOptions struct {
	image, session, dir, patch string
	stdin                      string // file; "-" is standard input, "" none
	env                        []string
	egress, apply              bool
	terminal, noTerminal       bool
	memory, disk               int64
	within                     time.Duration
}

// The folders of a sandbox that run uses.
const (
	runHome = "/work"
	runDir  = "/work/src"
	runTmp  = "/work/tmp"
	runTar  = "/work/.workspace.tar"
)

// newRunCmd returns the command run, which runs a coding agent in a sandbox.
func newRunCmd(c *env) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run -- COMMAND [ARG...]",
		Short: "Run a command in a sandbox with a copy of the workspace, and get a patch",
		Long: `Run a command, such as a coding agent, in a held sandbox with a copy of the git work tree:
the files that git does not ignore, and not the repository. The command's output is printed as
it comes. When it ends, what it changed is written to a patch, and the sandbox is removed. The
files of the work tree do not change unless --apply is given. With --egress, which is the default
without --image, because an agent needs its model, the command may reach the hosts that the
configuration names and policy permits. The image needs sh, mkdir, rm and tar. Exits with the command's
exit code, or 1 if it was killed; the patch is written also then.

If standard input and output are terminals, the command has one, too: keys, Ctrl-C, the size
of the window and the signals HUP, INT, QUIT and TERM reach it. Enter ~ . ends the run.`,
		Example:           "  binnacle run -- claude\n  binnacle run -- claude -p 'Fix the failing test'\n  binnacle run --image shell --apply -- sh -c 'date > built.txt'",
		Args:              takes(1, 256),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if !cmd.Flags().Changed("egress") {
				o.egress = !cmd.Flags().Changed("image")
			}
			return runInSandbox(cmd.Context(), c, &o, argv)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.image, "image", "agents", "`IMAGE` of the sandbox, as for 'sandbox create'")
	f.StringVar(&o.session, "session", "", "`NAME` of the session (s-…) of the calls (default: a new one)")
	f.StringVar(&o.dir, "workspace", ".", "`FOLDER` in the git work tree that is copied")
	f.StringVar(&o.patch, "patch", "run.patch", "`FILE` of the patch, which must not exist")
	f.StringArrayVar(&o.env, "env", nil, "`NAME=VALUE` for the command; it is on the ledger, so no secrets")
	f.StringVar(&o.stdin, "stdin", "", "`FILE` of UTF-8 text for the command's standard input, at most 256 KiB; - is standard input; it is on the ledger")
	f.BoolVarP(&o.terminal, "terminal", "t", false, "give the command a terminal; fails if standard input is none (default: if standard input and output are terminals)")
	f.BoolVarP(&o.noTerminal, "no-terminal", "T", false, "give the command no terminal")
	cmd.MarkFlagsMutuallyExclusive("terminal", "no-terminal")
	cmd.MarkFlagsMutuallyExclusive("terminal", "stdin")
	f.BoolVar(&o.egress, "egress", false, "let the command reach the permitted hosts; --egress=false runs an agent without a network")
	f.BoolVar(&o.apply, "apply", false, "apply the patch to the work tree")
	f.Int64Var(&o.memory, "memory", 0, "memory limit in `MIB`; 0 is what policy permits")
	f.Int64Var(&o.disk, "disk", 64, "room in `MIB` for what the command writes, in memory, beside three times the workspace")
	f.DurationVar(&o.within, "within", 0, "time after which the command is killed, with --egress at most 10m; 0 is what policy permits, but at most 1h10m")
	return cmd
}

// agentRun is a run of a command in a sandbox.
type agentRun struct {
	*env
	session, sandbox, input string
	tty                     *tty // nil without a terminal
}

// ranCommand is the result of run.
type ranCommand struct {
	Sandbox  string `json:"sandbox"`
	Session  string `json:"session"`
	Exec     string `json:"exec"`
	Status   string `json:"status"`
	ExitCode int    `json:"exit_code"`
	Patch    string `json:"patch,omitempty"` // path of the patch; empty if nothing changed
	Applied  bool   `json:"applied"`
}

// maxInput is the maximum size of the standard input of a command in bytes, as in the schema of
// sandbox.exec.
const maxInput = 256 << 10

// input returns the standard input of the command.
func (o *runOptions) input(in io.Reader) (string, error) {
	if o.stdin == "" {
		return "", nil
	}
	if o.stdin != "-" {
		f, err := os.Open(o.stdin)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	switch {
	case err != nil:
		return "", err
	case len(b) > maxInput || !utf8.Valid(b):
		return "", fail(exitUsage, "--stdin: want UTF-8 text of at most %d bytes; add other files to the work tree", maxInput)
	}
	return string(b), nil
}

// runInSandbox packs the work tree, runs the command in a new sandbox and writes the patch.
func runInSandbox(ctx context.Context, c *env, o *runOptions, argv []string) (err error) {
	root, err := workspace.Root(ctx, o.dir)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(o.patch); err == nil {
		return fail(exitUsage, "%s exists; remove it, or name another file with --patch", o.patch)
	}
	input, err := o.input(c.in)
	if err != nil {
		return err
	}
	before, err := workspace.Pack(ctx, root)
	if err != nil {
		return err
	}
	r := &agentRun{env: c, session: o.session, input: input}
	if r.tty, err = o.tty(c); err != nil {
		return err
	}
	if r.session == "" {
		r.session = contract.IDSession + "run-" + strings.ToLower(rand.Text())[:12]
	}
	if err := r.create(ctx, o, int64(len(before))); err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute) // also after an interrupt
		defer cancel()
		var done struct{}
		_, failed := sandboxCall(end, c, r.session, "sandbox.terminate", map[string]any{"sandbox": r.sandbox}, &done)
		err = errors.Join(err, failed)
	}()
	done, err := r.command(ctx, o, before, argv)
	if err != nil {
		return err
	}
	if r.tty != nil {
		ctx = context.WithoutCancel(ctx) // a signal was for the command
	}
	if err := r.bring(ctx, o, root, before, done); err != nil {
		return err
	}
	if err := c.print(done, func() {
		if done.Patch == "" {
			fmt.Fprintln(c.errOut, "nothing changed")
			return
		}
		fmt.Fprintf(c.errOut, "the changes are in %s%s\n", done.Patch, map[bool]string{true: " and in the work tree"}[done.Applied])
	}); err != nil {
		return err
	}
	return done.failed()
}

// failed returns the error for a command that did not succeed, whose exit code is that of the
// command.
func (d *ranCommand) failed() error {
	if d.Status == "exited" && d.ExitCode == 0 {
		return nil
	}
	return fail(cmp.Or(d.ExitCode, exitFailed), "the command ended: %s, exit code %d", d.Status, d.ExitCode)
}

// create creates the sandbox, whose disk has room for three times the workspace and what the options
// state.
func (r *agentRun) create(ctx context.Context, o *runOptions, size int64) error {
	life := cmp.Or(o.within, time.Hour) + 10*time.Minute
	args := map[string]any{"image": o.image, "idle_ms": life.Milliseconds(), "life_ms": life.Milliseconds(), "disk_mib": o.disk + 3*(size>>20)}
	if o.memory > 0 {
		args["memory_mib"] = o.memory
	}
	var s heldSandbox
	if _, err := sandboxCall(ctx, r.env, r.session, "sandbox.create", args, &s); err != nil {
		return err
	}
	r.sandbox = s.Sandbox
	fmt.Fprintf(r.errOut, "sandbox %s  session %s\n", s.Sandbox, s.Session)
	return nil
}

// shell runs a script in the sandbox.
func (r *agentRun) shell(ctx context.Context, script string) error {
	var x struct {
		ExitCode int    `json:"exit_code"`
		Stderr   string `json:"stderr"`
	}
	if _, err := sandboxCall(ctx, r.env, r.session, "sandbox.exec", map[string]any{"sandbox": r.sandbox, "command": []string{"sh", "-c", script}}, &x); err != nil {
		return err
	}
	if x.ExitCode != 0 {
		return fail(exitFailed, "the workspace cannot be copied with sh and tar of the image: %s", strings.TrimSpace(x.Stderr))
	}
	return nil
}

// command copies the workspace into the sandbox, runs the command and prints its output until its
// end.
func (r *agentRun) command(ctx context.Context, o *runOptions, before []byte, argv []string) (*ranCommand, error) {
	if err := writeIn(ctx, r.env, r.session, r.sandbox, runTar, before); err != nil {
		return nil, err
	}
	if err := r.shell(ctx, "mkdir -p "+runDir+" "+runTmp+" && tar -x -f "+runTar+" -C "+runDir+" && rm "+runTar); err != nil {
		return nil, err
	}
	exec, err := r.start(ctx, o, argv)
	if err != nil {
		return nil, err
	}
	if r.tty != nil {
		return r.interact(ctx, exec)
	}
	done := &ranCommand{Sandbox: r.sandbox, Session: r.session, Exec: exec}
	stderr := make(chan error, 1)
	go func() { stderr <- r.follow(ctx, exec, "stderr", r.errOut, &ranCommand{}) }()
	out := r.out
	if r.structured() {
		out = r.errOut // the document alone is on standard output
	}
	err = errors.Join(r.follow(ctx, exec, "stdout", out, done), <-stderr)
	return done, err
}

// start starts the command and returns its id.
func (r *agentRun) start(ctx context.Context, o *runOptions, argv []string) (string, error) {
	tool := "sandbox.exec"
	args := map[string]any{"sandbox": r.sandbox, "command": argv, "dir": runDir, "env": append([]string{"HOME=" + runHome, "TMPDIR=" + runTmp}, o.env...)}
	if r.input != "" {
		args["stdin"] = r.input
	}
	if o.within > 0 {
		args["timeout_ms"] = o.within.Milliseconds()
	}
	if r.tty != nil {
		args["terminal"], args["env"] = r.tty.size(), append(args["env"].([]string), "TERM="+envOr("TERM", "xterm"))
	}
	h := session(r.session)
	if o.egress {
		tool = "sandbox.exec_egress" // its call lasts as long as the command, whose id is that of the call
		h.Set("Prefer", "respond-async")
	} else {
		args["detach"] = true
	}
	var doc struct {
		CallID string `json:"call_id"`
		Output struct {
			Exec string `json:"exec"`
		} `json:"output"`
	}
	if _, err := r.post(ctx, "/api/v1/calls", map[string]any{"kind": "tool." + tool, "tool": tool, "args": args}, h, &doc); err != nil {
		if o.egress {
			err = fmt.Errorf("%w; --egress=false runs the command without a network", err)
		}
		return "", err
	}
	if doc.Output.Exec != "" {
		return doc.Output.Exec, nil
	}
	return doc.CallID, nil
}

// follow prints an output stream of a command until the command has ended, and sets its status in
// done.
func (r *agentRun) follow(ctx context.Context, exec, stream string, out io.Writer, done *ranCommand) error {
	var cursor int64
	retried := false
	for {
		var part struct {
			Cursor   int64  `json:"cursor"`
			End      int64  `json:"end"`
			Skipped  int64  `json:"skipped"`
			Status   string `json:"status"`
			ExitCode int    `json:"exit_code"`
			Text     string `json:"text"`
			Base64   []byte `json:"base64"`
		}
		_, err := sandboxCall(ctx, r.env, r.session, "sandbox.logs", map[string]any{"sandbox": r.sandbox, "exec": exec, "stream": stream, "cursor": cursor, "wait_ms": 20_000}, &part)
		if err != nil {
			failed := r.missing(ctx, exec, err)
			if failed != nil && (retried || !errors.Is(failed, err)) {
				return failed
			}
			retried = failed != nil // the command may have started and ended since the first request
		} else {
			fmt.Fprintf(out, "%s%s", part.Text, part.Base64)
			if part.Skipped > 0 {
				fmt.Fprintf(r.errOut, "%d bytes of %s are missing here\n", part.Skipped, stream)
			}
			if cursor = part.Cursor; part.Status != "running" && cursor == part.End {
				done.Status, done.ExitCode = part.Status, part.ExitCode
				return nil
			}
		}
		select { // each request is a call on the ledger
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// missing returns nil if err is not_found and the call that starts the command has no outcome yet,
// so that its output is not available yet. Otherwise it returns err, an error of reading the call,
// or, if the call did not succeed, an error with its outcome.
func (r *agentRun) missing(ctx context.Context, call string, err error) error {
	var refused *exitError
	if !errors.As(err, &refused) || refused.doc["code"] != contract.CodeNotFound {
		return err
	}
	s, _, failed := job(ctx, r.env, http.MethodGet, call)
	switch {
	case failed != nil:
		return failed
	case s.ReceiptID == "":
		return nil
	case s.Status != contract.Succeeded:
		return s.ended()
	}
	return err
}

// callEnded is the error for a call that did not succeed.
type callEnded struct{ error }

func (e *callEnded) Unwrap() error { return e.error }

// ended returns the error for a call that did not succeed.
func (s *jobState) ended() error {
	return &callEnded{fail(exitFailed, "the call ended: %s %s: %s (receipt %s)", s.Status, s.ErrorCode, s.Error, s.ReceiptID)}
}

// bring writes a patch with the changes that the command made, if there are any, and with --apply
// applies it.
func (r *agentRun) bring(ctx context.Context, o *runOptions, root string, before []byte, done *ranCommand) error {
	if err := r.shell(ctx, "tar -c -f "+runTar+" -C "+runDir+" ."); err != nil {
		return err
	}
	after, err := readOut(ctx, r.env, r.session, r.sandbox, runTar, 2*workspace.MaxBytes)
	if err != nil {
		return err
	}
	patch, err := workspace.Patch(ctx, before, after)
	if err != nil || len(patch) == 0 {
		return err
	}
	f, err := os.OpenFile(o.patch, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(patch)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	done.Patch = o.patch
	if !o.apply {
		return nil
	}
	path, err := filepath.Abs(o.patch)
	if err != nil {
		return err
	}
	if err := workspace.Apply(ctx, root, path); err != nil {
		return fmt.Errorf("the patch %s remains, and the work tree is unchanged: %w", o.patch, err)
	}
	done.Applied = true
	return nil
}
