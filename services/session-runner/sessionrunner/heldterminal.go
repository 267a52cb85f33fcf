package sessionrunner

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/held"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/terminal"
)

// A command with a terminal is attached to by a call of sandbox.attach, which lasts as long as its
// client is attached. While it does, the client sends the query terminal through a gateway: each
// query is for the call, and presents the key whose digest the call names.

const (
	attachWithin = 15 * time.Second // time for the command to begin
	attachSilent = 90 * time.Second // time without a query after which the client has ended
	attachRest   = 10 * time.Second // time for the client to read the rest of the output
)

// terminalSize is the size of a terminal in characters.
type terminalSize struct {
	Columns uint32 `json:"columns"`
	Rows    uint32 `json:"rows"`
}

// connect gives a command a terminal if its call requests one. The caller calls leave when the
// command has ended.
func (x *execution) connect(c *heldCall, cmd *containerd.Command) (leave func()) {
	if x.term == nil {
		return func() {}
	}
	cmd.Input, cmd.Terminal = x.term, &containerd.Terminal{Columns: c.args.Terminal.Columns, Rows: c.args.Terminal.Rows, Started: func(c *containerd.Controls) { x.term.Started(c) }}
	return func() { x.term.End(x.status, x.exit) }
}

// attachTerminal attaches the caller to the terminal of a command until the caller leaves, another call
// attaches to it, the command has ended or the time of the call has passed.
func attachTerminal(ctx context.Context, c *heldCall, b *box) execute.Result {
	if c.args.Exec == "" {
		c.args.Exec = b.newest()
	}
	x := b.get(c.args.Exec)
	for end := time.Now().Add(attachWithin); x == nil && c.args.Exec != "" && time.Now().Before(end) && ctx.Err() == nil; x = b.get(c.args.Exec) {
		time.Sleep(20 * time.Millisecond)
	}
	switch {
	case c.args.Exec == "":
		return execute.Fail(contract.CodeNotFound, "no command of sandbox %s has a terminal", c.sandbox.ID)
	case x == nil:
		return missingExec(c)
	case x.term == nil:
		return execute.Fail(contract.CodeInvalidInput, "exec: command %s has no terminal", c.args.Exec)
	}
	a := x.term.Attach(c.id, c.actor, c.args.KeyDigest)
	stay(ctx, c, a, x.term)
	r := a.Report()
	return output(map[string]any{"exec": c.args.Exec, "sandbox": c.sandbox.ID, "status": r.Status, "exit_code": r.ExitCode, "ended": r.Ended,
		"input_bytes": r.In, "output_bytes": r.Out, "output_sha256": r.Sum, "stdout": strings.ToValidUTF8(string(r.Kept), "\uFFFD"), "truncated": r.Out > int64(len(r.Kept))})
}

// newest returns the id of the newest command with a terminal, or "".
func (b *box) newest() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range slices.Backward(b.order) {
		if b.execs[id].term != nil {
			return id
		}
	}
	return ""
}

// stay waits for the end of an attachment.
func stay(ctx context.Context, c *heldCall, a *terminal.Attachment, t *terminal.Terminal) {
	limit, tick := time.NewTimer(c.wall), time.NewTicker(time.Second)
	defer limit.Stop()
	defer tick.Stop()
	ended := t.Done()
	rest := (<-chan time.Time)(nil)
	for {
		select {
		case <-a.Gone():
			return
		case <-ctx.Done():
			a.End(terminal.Cancelled)
		case <-limit.C:
			a.End(terminal.Time)
		case <-ended:
			ended, rest = nil, time.After(attachRest)
			tick.Reset(20 * time.Millisecond)
		case <-rest:
			a.End(terminal.Command)
		case <-tick.C:
			if ended == nil && a.Complete() {
				a.End(terminal.Command)
			} else if a.Idle() > attachSilent {
				a.End(terminal.Silent)
			}
		}
	}
}

// attached returns the attachment of a call to the terminal of a command in the sandbox, or nil.
func (b *box) attached(q *events.TerminalRequest) *terminal.Attachment {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.execs {
		if x.term == nil {
			continue
		}
		if a := x.term.Of(q.CallID, q.Actor, q.Key); a != nil {
			return a
		}
	}
	return nil
}

// serveTerminals registers the query for terminals.
func serveTerminals(h *holder, transport rpc.Registrar) {
	rpc.Serve(&rpc.Server{Transport: transport}, events.TerminalQuery, func(ctx context.Context, q *events.TerminalRequest) (events.TerminalState, error) {
		tenant := transient.Tenant(ctx)
		s := h.sandbox(tenant, q.Sandbox)
		if s == nil && h.follower.Poll(ctx) == nil {
			s = h.sandbox(tenant, q.Sandbox)
		}
		if s == nil || s.Data.Actor != q.Actor {
			return events.TerminalState{}, errNotAttached
		}
		if s.Holder != h.env.Instance && transient.From(ctx) != h.env.Service {
			r, err := rpc.Do(ctx, h.env.Queries.In(tenant).To(s.Holder), events.TerminalQuery, *q)
			return r.Value, err
		}
		h.mu.Lock()
		b := h.boxes[q.Sandbox]
		h.mu.Unlock()
		if b == nil {
			return events.TerminalState{}, errNotAttached
		}
		a := b.attached(q)
		if a == nil {
			return events.TerminalState{}, errNotAttached
		}
		return exchange(ctx, a, q)
	})
}

// serveNoTerminals registers the query for an instance that offers no held sandboxes.
func serveNoTerminals(transport rpc.Registrar) {
	rpc.Serve(&rpc.Server{Transport: transport}, events.TerminalQuery, func(context.Context, *events.TerminalRequest) (events.TerminalState, error) {
		return events.TerminalState{}, errNotAttached
	})
}

// errNotAttached is the error for a query whose call is not, and was not, attached to a terminal of
// the sandbox, and for one of another principal or with another key.
var errNotAttached = rpc.Errorf(contract.CodeNotFound, "the call is not attached to a terminal of the sandbox")

// maxSize is the maximum number of columns and of rows of a terminal.
const maxSize = 1000

// exchange passes a query to an attachment.
func exchange(ctx context.Context, a *terminal.Attachment, q *events.TerminalRequest) (events.TerminalState, error) {
	if max(q.Columns, q.Rows) > maxSize || min(q.Columns, q.Rows) < 0 {
		return events.TerminalState{}, wrong("columns", errors.New("want a size from 1 to 1000"))
	}
	r, err := a.Do(ctx, &terminal.Request{N: q.N, Data: q.Data, Columns: uint32(q.Columns), Rows: uint32(q.Rows), Signal: q.Signal, Close: q.Close,
		Cursor: max(q.Cursor, 0), Limit: q.Limit, Wait: time.Duration(min(q.WaitMS, 20_000)) * time.Millisecond})
	if err != nil {
		return events.TerminalState{}, wrong(map[error]string{terminal.ErrOrder: "n", terminal.ErrSignal: "signal", terminal.ErrLong: "data"}[err], err)
	}
	return events.TerminalState{Attached: r.Attached, Ended: r.Ended, N: r.N, Data: r.Data, Cursor: r.Cursor, Skipped: r.Skipped, Status: cmp.Or(r.Status, held.ExecRunning), ExitCode: int64(r.ExitCode)}, nil
}

// wrong returns the error for an invalid member of a query.
func wrong(member string, err error) error {
	e := rpc.Errorf(contract.CodeInvalidInput, "%s: %v", member, err)
	e.Param = "/" + member // of the body of the request
	return e
}

// missingExec is the result of a call for a command that the sandbox does not have.
func missingExec(c *heldCall) execute.Result {
	return execute.Fail(contract.CodeNotFound, "the output of command %s is not available: it never ran in sandbox %s, or a restart or later commands removed it", c.args.Exec, c.sandbox.ID)
}
