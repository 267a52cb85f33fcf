// Package cli is the binnacle command.
package cli

import (
	"context"
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

	addr, token, data *string
	json              *bool
}

// exitError carries an exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func fail(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// Main runs one command and returns its exit code.
func Main(args []string) int {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "--help"}, args[0]) {
		fmt.Print(usage)
		if len(args) == 0 {
			return exitUsage
		}
		return exitOK
	}
	cmd, ok := commands[args[0]]
	if !ok {
		fmt.Fprintf(os.Stderr, "binnacle: unknown command %q; 'binnacle help' lists them\n", args[0])
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c := &env{args: args[1:], out: os.Stdout, errOut: os.Stderr, in: os.Stdin}
	c.fs = flag.NewFlagSet("binnacle "+args[0], flag.ContinueOnError)
	c.addr = c.fs.String("addr", envOr("BINNACLE_ADDR", "127.0.0.1:8080"), "address of the mesh's gateway")
	c.token = c.fs.String("token", os.Getenv("BINNACLE_TOKEN"), "bearer token (default: BINNACLE_TOKEN, then DATA/admin.token)")
	c.data = c.fs.String("data", envOr("BINNACLE_DATA", "data"), "state folder of a mesh on this machine")
	c.json = c.fs.Bool("json", false, "machine-readable output")
	err := cmd(ctx, c)
	var x *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &x):
		fmt.Fprintln(os.Stderr, "binnacle:", err)
		return x.code
	default:
		fmt.Fprintln(os.Stderr, "binnacle:", err)
		return exitFailed
	}
}

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
			return nil, &exitError{exitUsage, err}
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
