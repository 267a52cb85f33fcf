package sessionrunner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/pkg/tunnel"
	"github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/held"
)

// The mcp-router uses MCP servers that are commands. It starts none itself: for a running call, it
// sends the query server_start, and this instance runs the command in a held sandbox of its own.
// The query names the call and the server only; what runs, and within which limits, follows from
// the ledger.

const (
	serverBeat  = 2 * time.Second  // maximum time between two frames to the mcp-router
	serverQuiet = 15 * time.Second // time without a query after which the mcp-router has ended
	serverEnd   = 3 * time.Second  // time for a command to end after its standard input was closed
	serverIdle  = time.Minute      // idle time of a sandbox whose command has ended with an earlier process
	serverLife  = time.Hour        // life of a sandbox; the deadline of the query server_start
	serverDisk  = 256              // MiB of /work
	serverRate  = 8 << 20          // maximum number of bytes of output per second
	serverError = 1024             // maximum number of bytes of standard error in an error
)

// servers runs the commands of MCP servers.
type servers struct {
	h     *holder // nil if no held sandboxes are offered
	calls *running.Checker
	cell  func(context.Context) (handle.Cell, error) // current state of the cell
	set   tunnel.Set
}

// serve registers the handlers of the queries.
func (s *servers) serve(transport rpc.Registrar) {
	at := &rpc.Server{Transport: transport}
	rpc.ServeBytes(at, events.ServerStartQuery, s.start)
	rpc.Serve(at, events.ServerWriteQuery, func(ctx context.Context, q *events.ServerWriteRequest) (bool, error) {
		return s.set.Write(ctx, q.ConnectionID, q.N, q.Data, q.Close)
	})
}

// start handles the query server_start. It records the start before it starts the command, and
// its end before it removes the container.
func (s *servers) start(ctx context.Context, q *events.ServerStartRequest, w io.Writer) error {
	if s.h == nil {
		return rpc.Errorf(contract.CodeSandboxUnavailable, "MCP server %s needs a held sandbox: configure a folder of images and a containerd socket on the session-runner", q.Server)
	}
	c, most, err := s.call(ctx, q)
	if err != nil {
		return err
	}
	hello := []byte(nil)
	if c.files != nil {
		if hello, err = c.files.open(c.tenant, q.ConnectionID); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own, far := net.Pipe()
	end := &tunnel.End{Conn: own, Cancel: cancel}
	remove, err := s.set.Add(ctx, q.ConnectionID, end)
	if err != nil {
		return err
	}
	defer remove()
	b, res := s.h.hold(ctx, c, *most)
	if b != nil {
		res = begun(ctx, s.h, c)
	}
	if res.ErrorCode != "" {
		s.end(ctx, c, b)
		return rpc.Errorf(res.ErrorCode, "%s", res.ErrorMessage)
	}
	c.pipe = far
	x := &execution{stdout: &held.Ring{}, stderr: &held.Ring{Max: serverError}, cancel: cancel, done: make(chan struct{})}
	b.add(c.id, x)
	go func() {
		s.h.attend(ctx, c, b, x, serverLife)
		_ = far.Close()
	}()
	go watch(ctx, end)
	attested := b.Attestation(c.sandbox.Data.Image, limitsOf(&c.sandbox.Data), c.sandbox.Data.DiskMib, c.egress)
	attested.Enforced = append(attested.Enforced, c.files.facts()...)
	err = end.Send(&paced{w}, append(append(contract.Bytes(attested), '\n'), hello...), serverBeat)
	select {
	case <-x.done:
	case <-time.After(serverEnd):
	}
	cancel()
	<-x.done
	s.end(ctx, c, b)
	switch {
	case s.set.Stopped():
		return errors.Join(tunnel.ErrStops, err)
	case err != nil || end.Left():
		return err
	}
	return ended(x)
}

// ended returns the error for a command that has ended before its standard input was closed.
func ended(x *execution) error {
	stderr, _, _ := x.stderr.Read(0, serverError)
	text := strings.ToValidUTF8(string(stderr), "\uFFFD")
	if x.failure != nil {
		return rpc.Errorf(contract.CodeSandboxFailed, "the command could not be run: %v; is it in the image?", x.failure)
	}
	return rpc.Errorf(contract.CodeUpstreamCut, "the command ended (%s, exit code %d): %s", x.status, x.exit, text)
}

// end records the end of the sandbox of a server, and removes its container.
func (s *servers) end(ctx context.Context, c *heldCall, b *box) {
	if b == nil {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer done()
	if s.h.end(ctx, c.sandbox, "", held.Terminated) == nil {
		s.h.drop(c.sandbox.ID, true)
	}
}

// watch ends a server whose mcp-router sends no queries any more, and closes its connection when
// ctx ends.
func watch(ctx context.Context, end *tunnel.End) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = end.Close()
			return
		case now := <-tick.C:
			if now.Sub(end.Used()) > serverQuiet {
				end.Cancel()
			}
		}
	}
}

// paced is a writer of at most serverRate bytes per second, so that a command cannot fill the
// stream and the memory of the mcp-router.
type paced struct{ w io.Writer }

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	time.Sleep(time.Duration(n) * time.Second / serverRate)
	return n, err
}

// call returns the call for the sandbox of a server, and the limits that policy permits. Policy
// must have allowed the call of the query to the mcp-router with a sandbox, and the call must be
// running there. The command is that of the server's settings on the ledger, which must be those
// that the mcp-router has; while they are not recorded, in a call of mcp.add, it is that of the
// call's arguments.
func (s *servers) call(ctx context.Context, q *events.ServerStartRequest) (*heldCall, *contract.Sandbox, error) {
	tenant := transient.Tenant(ctx)
	e := &contract.Event{Tenant: tenant, Session: q.Session, CallID: q.CallID}
	a, at, err := s.calls.Find(ctx, e, mcpdoc.Executor, 0)
	if err != nil {
		return nil, nil, err
	}
	refusal, err := s.calls.Check(ctx, e, a, at, mcpdoc.Executor, "")
	if err != nil {
		return nil, nil, err
	}
	if refusal == "" && a.Decision.Intent.Sandbox == nil {
		refusal = "the intent permits no sandbox"
	}
	if refusal != "" {
		return nil, nil, rpc.Errorf(contract.CodeDenied, "MCP server %s is not started: %s", q.Server, refusal)
	}
	en, err := s.h.env.Emit.Log.Get(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	cause, err := eventlog.Open(en, bus.AllowedInSession(tenant, mcpdoc.Executor, q.Session))
	if err != nil {
		return nil, nil, err
	}
	cfg, err := s.settings(ctx, q, a, tenant)
	if err != nil {
		return nil, nil, err
	}
	c := &heldCall{tenant: tenant, actor: cause.Actor, session: mcpdoc.SandboxSession(cfg.Name), id: q.CallID, cause: cause}
	c.args = heldArgs{Image: cfg.Image, DiskMiB: serverDisk, IdleMS: serverIdle.Milliseconds(), LifeMS: serverLife.Milliseconds(),
		Command: append([]string{cfg.Command}, cfg.Args...), Env: []string{"HOME=/work"}}
	for _, v := range cfg.Env {
		c.args.Env = append(c.args.Env, v.Name+"="+v.Value)
	}
	if c.files, err = filesOf(cfg); err != nil {
		return nil, nil, err
	}
	c.args.Env = append(c.args.Env, c.files.environment()...)
	if c.egress, err = proxyOf(q, cfg, a.Decision.Intent); err != nil {
		return nil, nil, err
	}
	return c, a.Decision.Intent.Sandbox, nil
}

// settings returns the settings of the server that a query names.
func (s *servers) settings(ctx context.Context, q *events.ServerStartRequest, a *contract.Allowed, tenant string) (*mcprouter.ServerAdded, error) {
	cfg := &mcprouter.ServerAdded{}
	if q.Settings == q.CallID && a.Call.Kind == mcpdoc.KindAdd {
		args, err := s.h.env.Blobs.In(tenant).Open(ctx, &a.Call.Args)
		if err == nil {
			err = json.Unmarshal(args, cfg)
		}
		if err != nil {
			return nil, fmt.Errorf("the settings of MCP server %s cannot be read: %w", q.Server, err)
		}
		return cfg, mismatch(q, cfg)
	}
	cell, err := s.cell(ctx)
	if err != nil {
		return nil, err
	}
	filter := bus.Filter{Tenant: cell.Tenant, Service: mcpdoc.Executor, Key: mcpdoc.Key(q.Server)}.String()
	en, err := s.h.env.Emit.Log.Last(ctx, filter)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return nil, err
	}
	e, err := eventlog.Open(en, filter)
	if err != nil || e.Name != mcprouter.ServerAddedName || contract.Decode(e.Data, cfg) != nil || cfg.CallID != q.Settings {
		return nil, rpc.Errorf(contract.CodeNotFound, "MCP server %s was removed, or its settings were replaced: call again", q.Server)
	}
	return cfg, mismatch(q, cfg)
}

// mismatch returns an error if settings are not those of a command with the name of the server.
func mismatch(q *events.ServerStartRequest, cfg *mcprouter.ServerAdded) error {
	if cfg.Name != q.Server || cfg.Command == "" || cfg.Image == "" {
		return rpc.Errorf(contract.CodeInvalidInput, "the settings are not those of a command of MCP server %s", q.Server)
	}
	return nil
}
