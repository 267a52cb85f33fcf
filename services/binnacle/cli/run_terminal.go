package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/remoteterm"
)

// Times of a terminal in a sandbox.
const (
	ttyPatience = time.Minute      // for a mesh that does not respond, for example because a gateway restarts
	ttyGrace    = 10 * time.Second // for the command to end after a signal
)

// tty is the terminal of the person.
type tty struct{ in *os.File }

// tty returns the terminal that the command is connected to, or nil if it gets none.
func (o *runOptions) tty(c *env) (*tty, error) {
	in, _ := c.in.(*os.File)
	switch {
	case o.noTerminal || o.stdin != "":
		return nil, nil
	case o.terminal && !output.Terminal(in):
		return nil, fail(exitUsage, "--terminal: standard input is not a terminal; leave the flag out")
	case o.terminal, output.Terminal(in) && toTerminal(c.out) && !c.structured():
		return &tty{in}, nil
	}
	return nil, nil
}

// toTerminal reports whether the output of a command is a terminal.
func toTerminal(out io.Writer) bool {
	w, ok := out.(*written)
	return ok && output.Terminal(w.w)
}

// size returns the size of the terminal, as the argument terminal.
func (t *tty) size() map[string]int {
	columns, rows, err := term.GetSize(int(t.in.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		columns, rows = 80, 24
	}
	return map[string]int{"columns": min(columns, 1000), "rows": min(rows, 1000)}
}

// ttySignals are the signals that are passed to the command.
var ttySignals = map[os.Signal]string{syscall.SIGHUP: "HUP", syscall.SIGINT: "INT", syscall.SIGQUIT: "QUIT", syscall.SIGTERM: "TERM"}

// interact connects the person's terminal to that of a command until the command ends or the person
// leaves. The end of ctx is that of a signal, which is passed to the command; if the command has not
// ended ttyGrace later, interact returns.
func (r *agentRun) interact(ctx context.Context, exec string) (*ranCommand, error) {
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(ttyGrace, func() { cancel(errors.New("the command did not end after a signal")) })
	})()
	if exec != "" {
		if err := r.running(life, exec); err != nil {
			return nil, err
		}
	}
	state, err := term.MakeRaw(int(r.tty.in.Fd()))
	if err != nil {
		return nil, err
	}
	defer term.Restore(int(r.tty.in.Fd()), state)
	inputs := make(chan remoteterm.Input)
	go r.tty.keys(life, inputs)
	go r.tty.signals(life, inputs)
	t, err := r.transport()
	if err != nil {
		return nil, err
	}
	own := *r.env
	own.kept = t
	defer t.CloseIdleConnections()
	a := &attached{env: &own, run: r, exec: exec}
	client := &remoteterm.Client{Do: a.do, Retry: a.retry, Patience: ttyPatience, Out: r.out}
	for {
		if err := a.begin(life); err != nil {
			return nil, err
		}
		s, err := client.Run(life, inputs)
		switch {
		case err != nil:
			return nil, cmp.Or(context.Cause(life), err)
		case s.Status != remoteterm.Running || s.Reason == "left":
			return &ranCommand{Sandbox: r.sandbox, Session: r.session, Exec: exec, Status: s.Status, ExitCode: s.ExitCode}, nil
		case s.Reason != "time":
			return nil, fail(exitFailed, "the terminal was detached: %s", s.Reason)
		}
	}
}

// running waits until the call that starts a command runs or, if it is not the command's, has
// succeeded.
func (r *agentRun) running(ctx context.Context, call string) error {
	for {
		s, _, err := job(ctx, r.env, http.MethodGet, call)
		switch {
		case err != nil:
			var missing *exitError
			if !errors.As(err, &missing) || missing.doc["code"] != contract.CodeNotFound {
				return err
			}
		case s.ReceiptID != "" && s.Status != contract.Succeeded:
			return s.ended()
		case s.ReceiptID != "", s.Status == "running":
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// keys passes what is typed, until the person leaves or ctx is done.
func (t *tty) keys(ctx context.Context, to chan<- remoteterm.Input) {
	var escape remoteterm.Escape
	buf := make([]byte, 16<<10)
	for {
		n, err := t.in.Read(buf)
		data, leave := escape.Filter(buf[:n])
		if len(data) > 0 || leave || err != nil {
			in := remoteterm.Input{Data: data, Close: leave}
			if err != nil {
				in.Signal = "HUP" // the terminal is gone
			}
			select {
			case to <- in:
			case <-ctx.Done():
				return
			}
		}
		if leave || err != nil {
			return
		}
	}
}

// signals passes signals and changes of the window's size, until ctx is done.
func (t *tty) signals(ctx context.Context, to chan<- remoteterm.Input) {
	got := make(chan os.Signal, 16)
	signal.Notify(got, syscall.SIGWINCH, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	defer signal.Stop(got)
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-got:
			in := remoteterm.Input{Signal: ttySignals[s]}
			if s == syscall.SIGWINCH {
				size := t.size()
				in.Columns, in.Rows = size["columns"], size["rows"]
			}
			select {
			case to <- in:
			case <-ctx.Done():
				return
			}
		}
	}
}

// attached is the attachment to the terminal of a command, which is a call of sandbox.attach.
type attached struct {
	*env
	run             *agentRun
	exec, call, key string
}

// begin proposes the call.
func (a *attached) begin(ctx context.Context) error {
	a.key = rand.Text()
	digest := sha256.Sum256([]byte(a.key))
	h := session(a.run.session)
	h.Set("Prefer", "respond-async")
	var doc struct {
		CallID string `json:"call_id"`
	}
	args := map[string]any{"sandbox": a.run.sandbox, "key_digest": hex.EncodeToString(digest[:])}
	if a.exec != "" {
		args["exec"] = a.exec
	}
	_, err := a.post(ctx, "/api/v1/calls", map[string]any{"kind": "tool.sandbox.attach", "tool": "sandbox.attach", "args": args}, h, &doc)
	a.call = doc.CallID
	return err
}

// errNotYet is the error of a request for a call that does not run yet.
var errNotYet = errors.New("the call does not run yet")

// do sends a request for the call.
func (a *attached) do(ctx context.Context, q *remoteterm.Request) (*remoteterm.State, error) {
	sent := *q
	sent.Key, sent.Sandbox = a.key, a.run.sandbox
	var s remoteterm.State
	_, err := a.post(ctx, "/api/v1/calls/"+url.PathEscape(a.call)+"/terminal", &sent, nil, &s)
	if err == nil {
		return &s, nil
	}
	if err := a.run.missing(ctx, a.call, err); err != nil {
		return nil, err
	}
	return nil, errNotYet
}

// retry reports whether a request that failed may succeed later: the mesh does not respond, a
// gateway restarts, or the call does not run yet.
func (a *attached) retry(err error) bool {
	var refused *exitError
	switch {
	case errors.As(err, new(*callEnded)):
		return false
	case errors.Is(err, errNotYet), !errors.As(err, &refused):
		return true
	}
	code := fmt.Sprint(refused.doc["code"])
	return refused.code == exitNoMesh || refused.doc == nil || code == contract.CodeUnavailable || code == contract.CodeReadsExceeded
}
