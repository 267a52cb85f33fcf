// Package cli is the binnacle command.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // the thing asked for did not succeed, or does not verify
	exitUsage   = 2 // the command line is wrong
	exitDenied  = 3 // policy denied the call
	exitNoMesh  = 4 // no mesh answers at the address
	exitAuth    = 5 // the token is missing or not accepted
	exitDiffers = 6 // replay found a difference
	exitPending = 7 // the call waits for approval
)

const usage = `binnacle runs a verifiable mesh for AI agents and talks to one.

Run it
  up          run the whole mesh in one process
  init        make the keys of a mesh
  provision   keep an external NATS server as the mesh needs it
  backup      take a whole mesh away in one file; restore puts it back

Use it
  call        propose a call and print its output
  decide      decide a call that you execute yourself, and get its intent
  report      report the outcome of a call that you executed
  chat        one chat completion
  tools       list what can be called
  secret      store a secret
  mcp         serve MCP on standard input and output
  proxy       stand between an OpenAI client and its provider
  judge       score a recorded session against a rubric
  token       mint and revoke bearer tokens
  key         make, list and revoke virtual keys; agree to one that calls as you
  session     let somebody else make calls in a session of yours
  llm         how models did, and what they cost

Govern it
  policy      look at policies, put them in force, take them back
  approvals   list calls that wait for people, grant and deny them
  freeze      stop everything; unfreeze ends it
  principals  say who is a person, an agent or a service; suspend them
  roles       list, grant and revoke roles
  delegations let somebody act on your behalf, for a time
  break-glass run escalated calls without approval, under review
  trust       make, rotate and revoke keys; sign the ceilings (offline)

Prove it
  events      list or follow the ledger
  search      find events by what they are about
  why         tell how a call came to its end, from intent to effect
  replay      rebuild every view and decision from the ledger and compare
  export      take a session's evidence, or the whole ledger, away
  archive     keep the ledger as a folder of sealed segments
  verify      check evidence, an exported ledger or an archive offline
  conform     drive an endpoint through the conformance gates
  recover     go on after the ledger lost something, in a new log epoch
  witness     follow the log from outside, and cosign what only grew
  version     print versions

Every command takes --json, and finds a running mesh by --addr or
BINNACLE_ADDR (default 127.0.0.1:8080) and --token, BINNACLE_TOKEN or
data/admin.token. 'binnacle COMMAND --help' lists its flags.

Exit codes: 0 done, 1 failed or does not verify, 2 wrong usage, 3 denied by
policy, 4 no mesh at the address, 5 token not accepted, 6 replay differs,
7 the call waits for approval, 8 a witness caught a fork.
`

// command is one verb.
type command func(ctx context.Context, c *env) error

var commands = map[string]command{
	"up": up, "init": initKeys, "provision": provision, "call": call, "decide": decide, "report": report, "chat": chat, "tools": tools, "secret": secret, "judge": judgeCmd,
	"key": keyCmd, "llm": llmCmd, "policy": policyCmd, "trust": trustCmd, "approvals": approvals, "freeze": freeze, "unfreeze": unfreeze, "principals": principals, "roles": roles, "delegations": delegations, "break-glass": breakGlass,
	"session": sessionCmd, "token": tokenCmd, "mcp": mcpServe, "proxy": proxyCmd, "witness": witness, "recover": recoverLog, "why": why, "events": events, "search": search, "conform": conformCmd, "backup": backupCmd, "restore": restore, "archive": archiveCmd, "replay": replay, "export": export, "verify": verify, "version": version,
}

// env is one invocation.
type env struct {
	args   []string
	fs     *flag.FlagSet
	out    io.Writer
	errOut io.Writer
	in     io.Reader
	help   bytes.Buffer // what the flag set prints

	addr, token, data *string
	json              *bool
}

// exitError carries an exit code.
type exitError struct {
	code int
	err  error
	doc  map[string]any // the mesh's own error, if it sent one
}

// document is the error as JSON: code, message, and field where one is wrong,
// beside what else the mesh said.
func (e *exitError) document(err error) map[string]any {
	out := map[string]any{"code": codes[e.code], "message": err.Error()}
	for k, v := range e.doc {
		out[k] = v
	}
	if field, ok := out["param"]; ok {
		out["field"] = field
		delete(out, "param")
	}
	return out
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func fail(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// Main runs one command and returns its exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return execute(ctx, args, os.Stdin, os.Stdout, os.Stderr)
}

// execute runs one command. Under --json standard output holds JSON only: one
// document, the command's or {"error": …}, or one per line for what goes on.
func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	c := &env{out: &written{w: out}, errOut: errOut, in: in}
	c.fs = flag.NewFlagSet("binnacle", flag.ContinueOnError)
	c.json = c.fs.Bool("json", false, "machine-readable output")
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "--help"}, args[0]) {
		code := exitOK
		if len(args) == 0 {
			code = exitUsage
		}
		*c.json = asksJSON(args)
		_ = c.print(map[string]string{"usage": usage}, func() { fmt.Fprint(c.out, usage) })
		return code
	}
	c.args = args[1:]
	cmd, ok := commands[args[0]]
	if !ok {
		return c.end(fail(exitUsage, "unknown command %q; 'binnacle help' lists them", args[0]))
	}
	c.fs.Init("binnacle "+args[0], flag.ContinueOnError)
	c.fs.SetOutput(&c.help)
	c.addr = c.fs.String("addr", envOr("BINNACLE_ADDR", "127.0.0.1:8080"), "address of the mesh's gateway, host:port or https://host:port")
	c.token = c.fs.String("token", "", "bearer token (default: BINNACLE_TOKEN, then DATA/admin.token)")
	c.data = c.fs.String("data", envOr("BINNACLE_DATA", "data"), "state folder of a mesh on this machine")
	return c.end(cmd(ctx, c))
}

// end reports how a command ended and returns its exit code, which does not
// depend on --json.
func (c *env) end(err error) int {
	*c.json = *c.json || asksJSON(c.args)
	if err == nil {
		return exitOK
	}
	if errors.Is(err, flag.ErrHelp) {
		_ = c.print(map[string]string{"usage": c.help.String()}, func() { _, _ = c.errOut.Write(c.help.Bytes()) })
		return exitOK
	}
	x := &exitError{code: exitFailed, err: err}
	errors.As(err, &x)
	_, _ = c.errOut.Write(c.help.Bytes()) // what a flag set says of a wrong command line
	fmt.Fprintln(c.errOut, "binnacle:", err)
	if w, ok := c.out.(*written); *c.json && (!ok || w.n == 0) {
		_ = json.NewEncoder(c.out).Encode(map[string]any{"error": x.document(err)})
	}
	return x.code
}

// asksJSON reports whether a command line has --json, also where it cannot be
// parsed.
func asksJSON(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		name, value, given := strings.Cut(strings.TrimPrefix(a, "-"), "=")
		return strings.TrimPrefix(name, "-") == "json" && name != a && (!given || value == "true" || value == "1")
	})
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

// codes name the exit codes in JSON errors that no mesh has named.
var codes = map[int]string{exitFailed: "failed", exitUsage: "usage", exitDenied: "denied", exitNoMesh: "no_mesh", exitAuth: "token", exitDiffers: "differs",
	exitPending: "pending_approval", exitFork: "fork"}

// parse reads the flags, which may stand before or behind the positional
// arguments, and wants between lo and hi of those.
func (c *env) parse(lo, hi int, names string) ([]string, error) {
	var pos []string
	rest := c.args
	for {
		if err := c.fs.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, &exitError{code: exitUsage, err: err}
		}
		rest = c.fs.Args()
		if len(rest) == 0 {
			break
		}
		pos, rest = append(pos, rest[0]), rest[1:]
	}
	if len(pos) < lo || hi >= 0 && len(pos) > hi {
		return nil, fail(exitUsage, "usage: %s %s", c.fs.Name(), names)
	}
	return pos, nil
}

func envOr(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(v string) error { *l = append(*l, v); return nil }
