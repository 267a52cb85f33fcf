package sessionrunner

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/held"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/terminal"
)

// heldReader reads the events of held sandboxes.
var heldReader = bus.Reader{Name: "sandboxes", Stream: bus.Events, Filters: bus.Filters(services.SessionRunner, held.Names...)}

// holder holds the containers of this instance's held sandboxes, and the view of all held
// sandboxes. The ledger decides: a container whose sandbox is not open there is removed, and
// an open sandbox whose container has ended is recorded as lost.
type holder struct {
	HeldConfig

	env      *run.Env
	runner   *containerd.Holder                                            // nil without containerd
	lock     func() (pack.Lock, error)                                     // reads the digests of the names of images
	network  func(context.Context, *execute.Work) (*sandbox.Egress, error) // opens the proxy of a call
	follower *follow.Follower

	mu       sync.Mutex
	view     held.View
	at       uint64          // sequence of the last entry applied to view, or 0
	boxes    map[string]*box // by id of the sandbox, those that this instance holds
	creating map[string]bool // ids of the sandboxes whose containers this instance is creating
	swept    time.Time       // time of the last sweep
	remote   remotes
}

// box is the container of one held sandbox of this instance.
type box struct {
	*containerd.Held
	tenant string

	mu    sync.Mutex
	used  time.Time
	execs map[string]*execution
	order []string // ids in execs, oldest first
}

// maxExecs is the maximum number of commands of a sandbox whose output is cached.
const maxExecs = 64

// execution is one command of a held sandbox. status, exit and failure are set when done is
// closed.
type execution struct {
	stdout, stderr *held.Ring
	term           *terminal.Terminal // nil without a terminal
	cancel         context.CancelFunc
	done           chan struct{}
	status         string
	exit           int
	failure        error // why the command could not be run
}

// touch records a use of the sandbox.
func (b *box) touch(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = now
}

// add adds an execution, and removes the oldest one that has ended if there are too many.
func (b *box) add(id string, x *execution) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.execs == nil {
		b.execs = map[string]*execution{}
	}
	b.execs[id] = x
	b.order = append(b.order, id)
	for i := 0; len(b.order) > maxExecs && i < len(b.order); i++ {
		select {
		case <-b.execs[b.order[i]].done:
			delete(b.execs, b.order[i])
			b.order = slices.Delete(b.order, i, i+1)
			return
		default:
		}
	}
}

// get returns an execution, or nil.
func (b *box) get(id string) *execution {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.execs[id]
}

// newHolder returns a holder whose view is not filled yet.
func newHolder(env *run.Env, cfg HeldConfig, r *containerd.Holder, lock func() (pack.Lock, error), network func(context.Context, *execute.Work) (*sandbox.Egress, error)) *holder {
	h := &holder{HeldConfig: cfg, env: env, runner: r, lock: lock, network: network, boxes: map[string]*box{}, creating: map[string]bool{}}
	h.follower = follow.New(env.Conn, env.Instance, heldReader, func(en eventlog.Entry) error {
		e, err := eventlog.Open(en, heldReader.Filters...)
		if err != nil {
			env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
			return nil
		}
		env.Emit.See(e.Lamport)
		h.apply(en.Seq, e)
		return nil
	})
	h.follower.Every = 500 * time.Millisecond
	env.ReportFollower("sandboxes", h.follower, nil)
	return h
}

// apply applies an event at a sequence of the ledger to the view.
func (h *holder) apply(seq uint64, e *contract.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.view.Apply(seq, e)
	h.at = seq
}

// run follows the events of held sandboxes, and ends the sandboxes of this instance that are
// due, until ctx ends. It calls ready when it has tried once to adopt the containers of
// instances that have ended. Containers continue to run after run has returned.
func (h *holder) run(ctx context.Context, ready func()) error {
	var from uint64
	if err := eventlog.Retry(ctx, func() (err error) {
		from, err = begin(ctx, h.env.Emit.Log, h.env.Emit.Now())
		return err
	}); err != nil {
		return nil // ctx ended
	}
	failed := make(chan error, 1)
	go func() { failed <- h.follower.Run(ctx, from) }()
	select {
	case err := <-failed:
		return err
	case <-h.follower.Ready():
	}
	h.tend(ctx)
	ready()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-failed:
			return err
		case <-tick.C:
			h.tend(ctx)
		}
	}
}

// begin returns the sequence from which the view of held sandboxes is to be read at the time
// now. It returns the errors of l except ErrNotFound.
func begin(ctx context.Context, l eventlog.Log, now time.Time) (uint64, error) {
	var newest time.Time
	for _, filter := range heldReader.Filters {
		en, err := l.Last(ctx, filter)
		if errors.Is(err, eventlog.ErrNotFound) {
			continue
		}
		if err != nil {
			return 0, err
		}
		e, err := eventlog.Open(en, filter)
		if err != nil {
			continue // the view ignores it, too
		}
		if at, err := contract.ParseTime(e.Time); err == nil && at.After(newest) {
			newest = at
		}
	}
	return eventlog.Since(ctx, l, held.Begin(newest, now))
}

// sweepHeld is the time between two sweeps for containers that no open sandbox has.
const sweepHeld = time.Minute

// tend makes the containers agree with the ledger: it adopts the containers of open sandboxes
// whose holder has ended, ends the sandboxes that are due or lost, and removes the containers
// of sandboxes that have ended.
func (h *holder) tend(ctx context.Context) {
	now := h.env.Emit.Now()
	h.mu.Lock()
	h.view.Trim()
	open := h.view.List(func(s *held.Sandbox) bool { return s.Ended == "" && !h.creating[s.ID] })
	boxes := maps.Clone(h.boxes)
	h.mu.Unlock()
	live, err := bus.Live(ctx, h.env.Conn, h.env.Service)
	for _, s := range open {
		b := boxes[s.ID]
		delete(boxes, s.ID)
		switch {
		case b != nil && s.Holder == h.env.Instance:
			h.check(ctx, s, b, now)
		case b != nil: // another instance adopted it
			h.drop(s.ID, false)
		case h.runner != nil && s.Data.Host == h.runner.Host() && err == nil && (s.Holder == h.env.Instance || !slices.Contains(live, s.Holder)):
			h.adopt(ctx, s, now)
		case s.Abandoned(now):
			_ = h.end(ctx, s, "", held.Lost)
		}
	}
	for id, b := range boxes { // their sandboxes have ended
		if s := h.sandbox(b.tenant, id); s == nil || s.Ended != "" {
			h.drop(id, true)
		}
	}
	if h.runner == nil || now.Sub(h.swept) < sweepHeld {
		return
	}
	h.swept = now
	if err := h.runner.Sweep(func(id string) bool { return h.open(ctx, id) }); err != nil {
		h.env.Log.Warn("containers of held sandboxes are not removed yet", "err", err)
	}
}

// open reports whether a sandbox with an id is open. It also returns true if that is not
// known, or if the id is not that of a sandbox. sandbox_created is stored before the
// container is created, so the view then contains every sandbox whose container was found
// before the call.
func (h *holder) open(ctx context.Context, id string) bool {
	if !strings.HasPrefix(id, contract.IDSandbox) { // for example a snapshot of an import
		return true
	}
	if err := h.follower.Poll(ctx); err != nil {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.view.Open(id)
}

// sandbox returns a sandbox of a tenant, or nil.
func (h *holder) sandbox(tenant, id string) *held.Sandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.view.Get(tenant, id)
}

// adopt adopts the container of an open sandbox whose holder has ended. It first records that
// this instance is the holder, unless the ledger names it already, so that no second instance
// adopts the container. The commands that ran are recorded as lost. If the container has
// ended, or the maximum life of the sandbox has passed, the end is recorded instead.
func (h *holder) adopt(ctx context.Context, s *held.Sandbox, now time.Time) {
	if s.Due(now, s.Used) == held.Life {
		_ = h.end(ctx, s, "", held.Life)
		return
	}
	if s.Holder != h.env.Instance {
		mine := false
		err := h.change(ctx, s.Tenant, s.ID, s.Seq, contract.EventSandboxAdopted, nil, func(at *held.Sandbox) (canon.Document, error) {
			d := at.Adopt(s.Holder, h.env.Instance)
			if mine = d != nil; mine {
				return d, nil
			}
			return nil, nil
		})
		if err != nil || !mine {
			return
		}
	}
	c, err := h.runner.Adopt(s.ID, slices.Sorted(maps.Keys(s.Running)))
	if errors.Is(err, containerd.ErrGone) {
		_ = h.end(ctx, s, "", held.Lost)
		return
	}
	if err != nil {
		h.env.Log.Warn("a held sandbox is not adopted yet", "sandbox", s.ID, "err", err)
		return
	}
	for id := range s.Running {
		h.stopped(ctx, s, events.SandboxExecEnded{Exec: id, Status: held.ExecLost})
	}
	h.mu.Lock()
	h.boxes[s.ID] = &box{Held: c, tenant: s.Tenant, used: s.Used}
	h.mu.Unlock()
	if s.Server() && h.end(ctx, s, "", held.Lost) == nil { // its command has just been killed
		h.drop(s.ID, true)
	}
}

// check ends a sandbox of this instance that is due, or whose container has ended.
func (h *holder) check(ctx context.Context, s *held.Sandbox, b *box, now time.Time) {
	b.mu.Lock()
	used := b.used
	b.mu.Unlock()
	reason := s.Due(now, used)
	select {
	case <-b.Done():
		reason = cmp.Or(reason, held.Lost)
	default:
	}
	if reason != "" && h.end(ctx, s, "", reason) == nil {
		h.drop(s.ID, true)
	}
}

// drop ends the commands of a sandbox, and removes its container if remove is true. Before
// the call, the end of the sandbox or its adoption by another instance must have been
// recorded.
func (h *holder) drop(id string, remove bool) {
	h.mu.Lock()
	b := h.boxes[id]
	delete(h.boxes, id)
	h.mu.Unlock()
	if b == nil {
		return
	}
	b.mu.Lock()
	for _, x := range b.execs {
		x.cancel()
	}
	b.mu.Unlock()
	if remove {
		b.Remove()
	} else {
		b.Release()
	}
}

// change appends the event that decide returns for the current state of a sandbox; decide
// gets nil if the sandbox was not created. A nil document appends nothing. cause is nil
// for an event that no call causes. from is a ledger sequence at or before that of
// sandbox_created, or 0 for a new id.
func (h *holder) change(ctx context.Context, tenant, id string, from uint64, name string, cause *contract.Event, decide func(*held.Sandbox) (canon.Document, error)) error {
	log := h.env.Emit.Log
	return eventlog.Retry(ctx, func() error {
		_, err := handle.DoFrom(ctx, log, bus.AggregateFilter(tenant, services.SessionRunner, id), max(from, 2), func(history []*contract.Event) (*contract.Event, error) {
			var s *held.Sandbox
			for _, e := range history {
				s = held.Evolve(s, from, e)
			}
			doc, err := decide(s)
			if err != nil || doc == nil {
				return nil, err
			}
			return h.env.Emit.In(tenant).New(name, id, contract.Bytes(doc), cause), nil
		})
		return err
	})
}

// end records the end of a sandbox, unless it has ended.
func (h *holder) end(ctx context.Context, s *held.Sandbox, call, reason string) error {
	err := h.change(ctx, s.Tenant, s.ID, s.Seq, contract.EventSandboxEnded, nil, func(now *held.Sandbox) (canon.Document, error) {
		if d := now.End(call, reason); d != nil {
			return d, nil
		}
		return nil, nil
	})
	if err != nil {
		h.env.Log.Warn("the end of a held sandbox is not recorded yet", "sandbox", s.ID, "err", err)
	}
	return err
}

// stopped records the end of a command, if the sandbox is open.
func (h *holder) stopped(ctx context.Context, s *held.Sandbox, d events.SandboxExecEnded) {
	err := h.change(ctx, s.Tenant, s.ID, s.Seq, contract.EventSandboxExecEnded, nil, func(now *held.Sandbox) (canon.Document, error) {
		if d := now.Stop(d); d != nil {
			return d, nil
		}
		return nil, nil
	})
	if err != nil {
		h.env.Log.Warn("the end of a command in a held sandbox was not recorded", "sandbox", s.ID, "exec", d.Exec, "err", err)
	}
}
