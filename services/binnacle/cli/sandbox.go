package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// filePart is the number of bytes of a file that cp sends or requests in one call.
const filePart = 128 << 10

// newSandboxCmd returns the command sandbox, which creates and uses held sandboxes.
func newSandboxCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "sandbox COMMAND",
		Short: "Create and use sandboxes that outlive a call",
		Long: `Create and use sandboxes that outlive a call: containers without a network, for the
calls of one session. Each command is a governed call with a receipt.`,
		Example: "  binnacle sandbox create shell --session s-tour\n  binnacle sandbox exec sb-ABC -- sh -c 'echo hi'\n  binnacle sandbox list",
	}, newSandboxCreateCmd(c), newSandboxExecCmd(c), newSandboxAttachCmd(c), newSandboxLogsCmd(c), newSandboxCopyCmd(c), newSandboxListCmd(c),
		newSandboxUseCmd(c, "keep-alive", "Start the idle time of a sandbox again", "sandbox.keep_alive"),
		newSandboxUseCmd(c, "terminate", "End a sandbox and remove its container", "sandbox.terminate"))
}

// heldSandbox is a held sandbox, as the session-runner returns it.
type heldSandbox struct {
	Sandbox  string `json:"sandbox"`
	Image    string `json:"image"`
	Session  string `json:"session"`
	Instance string `json:"instance"`
	Created  string `json:"created"`
	Expires  string `json:"expires"`
	Running  int    `json:"running"`
	Ended    string `json:"ended"`
}

// sandboxCall calls a tool in a session, decodes the call's output into out, and returns that
// output. Without a name, the call has a session of its own.
func sandboxCall(ctx context.Context, c *env, name, tool string, args, out any) (json.RawMessage, error) {
	var doc struct {
		Output json.RawMessage `json:"output"`
	}
	if _, err := c.post(ctx, "/api/v1/calls", map[string]any{"kind": "tool." + tool, "tool": tool, "args": args}, session(name), &doc); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(doc.Output, out); err != nil {
		return nil, fmt.Errorf("the output of %s cannot be read: %w", tool, err)
	}
	return doc.Output, nil
}

// sandboxes returns the caller's sandboxes. If ended is set, they include those that ended in the
// last hour.
func sandboxes(ctx context.Context, c *env, ended bool) ([]heldSandbox, error) {
	var doc struct {
		Sandboxes []heldSandbox `json:"sandboxes"`
	}
	_, err := sandboxCall(ctx, c, "", "sandbox.list", map[string]any{"ended": ended}, &doc)
	return doc.Sandboxes, err
}

// sandboxSession returns the id of the session of a sandbox, in which its calls must be
// made.
func sandboxSession(ctx context.Context, c *env, id string) (string, error) {
	all, err := sandboxes(ctx, c, true)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		if s.Sandbox == id {
			return s.Session, nil
		}
	}
	return "", fail(exitFailed, "no sandbox %s of yours; `binnacle sandbox list` shows them", id)
}

// inSandbox calls a tool for a sandbox, in the session of the sandbox. It sets the member
// sandbox of args.
func inSandbox(ctx context.Context, c *env, id, tool string, args map[string]any, out any) (json.RawMessage, error) {
	in, err := sandboxSession(ctx, c, id)
	if err != nil {
		return nil, err
	}
	args["sandbox"] = id
	return sandboxCall(ctx, c, in, tool, args, out)
}

func newSandboxCreateCmd(c *env) *cobra.Command {
	var name string
	var idle, life time.Duration
	var memory, disk int64
	cmd := &cobra.Command{
		Use:               "create IMAGE",
		Short:             "Create a sandbox and print its id",
		Example:           "  binnacle sandbox create shell --session s-tour --idle 30m --life 4h",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			args := map[string]any{"image": pos[0], "idle_ms": idle.Milliseconds(), "life_ms": life.Milliseconds(), "disk_mib": disk}
			if memory > 0 {
				args["memory_mib"] = memory
			}
			var s heldSandbox
			raw, err := sandboxCall(cmd.Context(), c, name, "sandbox.create", args, &s)
			if err != nil {
				return err
			}
			return c.print(raw, func() {
				fmt.Fprintln(c.out, s.Sandbox)
				fmt.Fprintf(c.errOut, "session %s  until %s\n", s.Session, s.Expires)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "session", "", "`NAME` of the session (s-…) whose calls may use it")
	f.DurationVar(&idle, "idle", 10*time.Minute, "time without use after which it ends")
	f.DurationVar(&life, "life", time.Hour, "time after which it ends in any case")
	f.Int64Var(&memory, "memory", 0, "memory limit in `MIB`; 0 is what policy permits")
	f.Int64Var(&disk, "disk", 64, "size of /work in `MIB`, which is in memory")
	return cmd
}

func newSandboxExecCmd(c *env) *cobra.Command {
	var detach, egress bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "exec SANDBOX -- COMMAND [ARG...]",
		Short: "Run a command in a sandbox and print its output",
		Long: `Run a command in a sandbox and print its output. Exits with code 1 if the command
fails. With --detach print the command's id, for logs. With --egress the command may reach
the hosts that the configuration names and policy permits.`,
		Example:           "  binnacle sandbox exec sb-ABC -- cat /work/notes\n  binnacle sandbox exec sb-ABC --detach -- sh -c 'while :; do date; sleep 1; done'",
		Args:              takes(2, 256),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			tool, args := "sandbox.exec", map[string]any{"command": pos[1:]}
			if egress {
				tool = "sandbox.exec_egress"
			} else {
				args["detach"] = detach
			}
			if timeout > 0 {
				args["timeout_ms"] = timeout.Milliseconds()
			}
			var x struct {
				Exec     string `json:"exec"`
				Status   string `json:"status"`
				ExitCode int    `json:"exit_code"`
				Stdout   string `json:"stdout"`
				Stderr   string `json:"stderr"`
			}
			raw, err := inSandbox(cmd.Context(), c, pos[0], tool, args, &x)
			if err != nil {
				return err
			}
			if err := c.print(raw, func() {
				if detach {
					fmt.Fprintln(c.out, x.Exec)
				}
				fmt.Fprint(c.out, x.Stdout)
				fmt.Fprint(c.errOut, x.Stderr)
			}); err != nil {
				return err
			}
			if !detach && (x.Status != "exited" || x.ExitCode != 0) {
				return fail(exitFailed, "the command ended: %s, exit code %d", x.Status, x.ExitCode)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&detach, "detach", false, "return when the command has started")
	f.BoolVar(&egress, "egress", false, "let the command reach the permitted hosts; it ends with the call")
	cmd.MarkFlagsMutuallyExclusive("detach", "egress")
	f.DurationVar(&timeout, "within", 0, "time after which it is killed; 0 is what policy permits")
	return cmd
}

func newSandboxAttachCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:   "attach SANDBOX [EXEC]",
		Short: "Connect this terminal to that of a command in a sandbox",
		Long: `Connect this terminal to that of a command in a sandbox, which 'binnacle run' has started:
the newest one, or EXEC. Another terminal that is connected to it is disconnected. The output
begins with what is still cached. Enter ~ . leaves the command running. Exits with the
command's exit code.`,
		Example:           "  binnacle sandbox attach sb-ABC",
		Args:              takes(1, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			t, err := (&runOptions{terminal: true}).tty(c)
			if err != nil {
				return err
			}
			in, err := sandboxSession(cmd.Context(), c, pos[0])
			if err != nil {
				return err
			}
			r := &agentRun{env: c, session: in, sandbox: pos[0], tty: t}
			done, err := r.interact(cmd.Context(), strings.Join(pos[1:], ""))
			if err != nil || done.Status == "running" {
				return err
			}
			return done.failed()
		},
	}
}

func newSandboxLogsCmd(c *env) *cobra.Command {
	var stream string
	var cursor int64
	var follow bool
	cmd := &cobra.Command{
		Use:               "logs SANDBOX EXEC",
		Short:             "Print output of a command in a sandbox",
		Example:           "  binnacle sandbox logs sb-ABC c-DEF --follow",
		Args:              takes(2, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			in, err := sandboxSession(cmd.Context(), c, pos[0])
			if err != nil {
				return err
			}
			for {
				args := map[string]any{"sandbox": pos[0], "exec": pos[1], "stream": stream, "cursor": cursor}
				if follow {
					args["wait_ms"] = 20_000
				}
				var part struct {
					Cursor int64  `json:"cursor"`
					End    int64  `json:"end"`
					Status string `json:"status"`
					Text   string `json:"text"`
					Base64 []byte `json:"base64"`
				}
				raw, err := sandboxCall(cmd.Context(), c, in, "sandbox.logs", args, &part)
				if err != nil {
					return err
				}
				if err := c.print(raw, func() { fmt.Fprintf(c.out, "%s%s", part.Text, part.Base64) }); err != nil {
					return err
				}
				if cursor = part.Cursor; !follow || part.Status != "running" && cursor == part.End {
					return nil
				}
			}
		},
	}
	f := cmd.Flags()
	f.StringVar(&stream, "stream", "stdout", "`STREAM`: stdout or stderr")
	f.Int64Var(&cursor, "cursor", 0, "`POSITION` in bytes to begin at")
	f.BoolVar(&follow, "follow", false, "print further output until the command ends")
	return cmd
}

func newSandboxCopyCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:               "cp FROM TO",
		Short:             "Copy a file into or out of a sandbox",
		Example:           "  binnacle sandbox cp notes.txt sb-ABC:/work/notes.txt\n  binnacle sandbox cp sb-ABC:/work/out.txt out.txt",
		Args:              takes(2, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			from, fromPath, out := strings.Cut(pos[0], ":")
			to, toPath, in := strings.Cut(pos[1], ":")
			switch {
			case in == out:
				return fail(exitUsage, "one of FROM and TO is SANDBOX:PATH")
			case in:
				return copyIn(cmd.Context(), c, pos[0], to, toPath)
			}
			return copyOut(cmd.Context(), c, from, fromPath, pos[1])
		},
	}
}

// copyIn writes a local file into a sandbox.
func copyIn(ctx context.Context, c *env, file, id, path string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	in, err := sandboxSession(ctx, c, id)
	if err != nil {
		return err
	}
	if err := writeIn(ctx, c, in, id, path, data); err != nil {
		return err
	}
	return c.print(map[string]any{"sandbox": id, "path": path, "bytes": len(data)}, func() {})
}

// writeIn writes data to the file path of the sandbox id, in calls of the session in.
func writeIn(ctx context.Context, c *env, in, id, path string, data []byte) error {
	for at := 0; at == 0 || at < len(data); at += filePart {
		part := data[at:min(at+filePart, len(data))]
		var done struct{}
		if _, err := sandboxCall(ctx, c, in, "sandbox.write_file", map[string]any{"sandbox": id, "path": path, "base64": true, "append": at > 0, "content": base64.StdEncoding.EncodeToString(part)}, &done); err != nil {
			return err
		}
	}
	return nil
}

// copyOut writes a file of a sandbox to a local file.
func copyOut(ctx context.Context, c *env, id, path, file string) error {
	in, err := sandboxSession(ctx, c, id)
	if err != nil {
		return err
	}
	data, err := readOut(ctx, c, in, id, path, math.MaxInt)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return err
	}
	return c.print(map[string]any{"file": file, "bytes": len(data)}, func() {})
}

// readOut returns the content of the file path of the sandbox id, in calls of the session in. It
// returns an error if the file has more than limit bytes.
func readOut(ctx context.Context, c *env, in, id, path string, limit int) ([]byte, error) {
	var data bytes.Buffer
	for {
		var part struct {
			Size   int64  `json:"size"`
			Text   string `json:"text"`
			Base64 []byte `json:"base64"`
		}
		if _, err := sandboxCall(ctx, c, in, "sandbox.read_file", map[string]any{"sandbox": id, "path": path, "offset": data.Len(), "limit": filePart}, &part); err != nil {
			return nil, err
		}
		data.WriteString(part.Text)
		data.Write(part.Base64)
		if data.Len() > limit {
			return nil, fail(exitFailed, "%s of sandbox %s has more than %d bytes", path, id, limit)
		}
		if len(part.Text)+len(part.Base64) == 0 || int64(data.Len()) >= part.Size {
			return data.Bytes(), nil
		}
	}
}

func newSandboxListCmd(c *env) *cobra.Command {
	var ended bool
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List your sandboxes",
		Example:           "  binnacle sandbox list --ended",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := sandboxes(cmd.Context(), c, ended)
			if err != nil {
				return err
			}
			return c.table(all, []output.Column{{Heading: "SANDBOX", Min: 29}, {Heading: "SESSION", Min: 29}, {Heading: "HELD BY", Min: 16}, {Heading: "COMMANDS", Min: 3}, {Heading: "EXPIRES", Min: 24}, {Heading: "ENDED"}}, func(g *output.Grid) {
				for _, s := range all {
					g.Add(s.Sandbox, s.Session, s.Instance, fmt.Sprint(s.Running), s.Expires, s.Ended)
				}
			})
		},
	}
	cmd.Flags().BoolVar(&ended, "ended", false, "also those that ended in the last hour")
	return cmd
}

// newSandboxUseCmd returns a command that calls a tool with a sandbox as its only
// argument.
func newSandboxUseCmd(c *env, verb, short, tool string) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " SANDBOX",
		Short:             short,
		Example:           "  binnacle sandbox " + verb + " sb-ABC",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			var done struct{}
			raw, err := inSandbox(cmd.Context(), c, pos[0], tool, map[string]any{}, &done)
			if err != nil {
				return err
			}
			return c.print(raw, func() {})
		},
	}
}
