// Package execute is the only path to an effect: verify the decision and its
// intent, claim the call, run, commit the output, sign the receipt, append,
// ack. A test fails if a service consumes allowed_* otherwise.
package execute

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/hostpath"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Control is the reader that tells an executor which calls their callers gave
// up, and when the mesh is frozen.
var Control = bus.Reader{Name: "control", Stream: bus.Events, Filters: append(bus.Filters("", contract.EventCancelRequested), freezes...)}

// Work is one permitted call.
type Work struct {
	Event    *contract.Event // the allowed event
	Call     *contract.Call
	Intent   *contract.ExecutionIntent
	Facts    contract.Raw      // what the decision was taken from
	Args     []byte            // JSON, with the defaults of the tool's input schema filled in
	Secrets  map[string]string // by name, as the intent permits
	Instance string
	Proposer string // the service that proposed the call, whose instance waits for it
	// Body reads what the caller brought beside the args, checked against its
	// commitment.
	Body func(ctx context.Context) ([]byte, error)
	// Secret fetches a secret that the intent permits by a pattern ("llm.*").
	Secret func(ctx context.Context, name string) (string, error)
	// Frame sends one live frame to the waiting instance; it is lossy and
	// counted, and the caller learns the count from the outcome.
	Frame func(data []byte) error
	// Fact records a fact about the running call, caused by its start. It is on
	// the ledger, before the outcome, when the call's work is acknowledged.
	Fact func(name string, data []byte)

	facts  []func(context.Context) (uint64, error)
	hidden atomic.Pointer[redact.Redactor]
}

// Result is what a handler says came of it. Status defaults to succeeded, or
// failed when ErrorCode is set.
type Result struct {
	Status       string
	ErrorCode    string
	ErrorMessage string
	EffectType   string
	Output       []byte // canonical JSON, or nil
	Encrypt      bool   // the ledger gets the output under the tenant's key
	Withhold     bool   // the ledger gets the output's commitment alone
	Artifacts    []string
	Attestation  *contract.Attestation
	Usage        *contract.Usage

	sent  int64 // frames
	facts []func(context.Context) (uint64, error)
}

// Fail is a failed result with a typed code.
func Fail(code, format string, args ...any) Result {
	return Result{Status: contract.Failed, ErrorCode: code, ErrorMessage: fmt.Sprintf(format, args...)}
}

// Handler does the effect. It must end when ctx does, and it must not be the
// one to decide whether the call is permitted: it would not run otherwise.
type Handler func(ctx context.Context, w *Work) Result

// Secrets fetches what an intent permits; nil for executors without.
type Secrets func(ctx context.Context, started *contract.Event, a *contract.Allowed, names []string) (map[string]string, error)

// Executor runs a service's share of the allowed calls.
type Executor struct {
	Service   string
	Conn      *bus.Conn
	Emit      *emit.Emitter
	Recorder  *Recorder
	Keys      guard.KeyAt
	Blobs     *blob.Store
	Box       *transient.Box
	Instance  string
	Handler   Handler
	Secrets   Secrets
	Limit     int             // calls at once
	Tools     []contract.Tool // what is offered; outputs must fit their schemas
	ReRunable func(kind string) bool

	mu      sync.Mutex
	running map[string]running
	frozen  freeze
	schemas toolschema.Checker
}

// running is a call under way.
type running struct {
	stop     context.CancelCauseFunc
	proposer string // the only service that may cancel it
}

// maxDeliver is how often an allowed event may come back before the call is
// recorded as dead_lettered.
const maxDeliver = 8

var (
	errCancelled = errors.New("cancelled by the caller")
	errStopped   = errors.New("the executor is stopped")
)

// grace is how long running calls may go on once the executor is told to stop;
// then they end with an outcome that says so.
const grace = 5 * time.Second

func (x *Executor) stopAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.running {
		r.stop(errStopped)
	}
}

// Run works until ctx ends, then finishes what is running.
func (x *Executor) Run(ctx context.Context) error {
	x.running = map[string]running{}
	last, err := x.Conn.Tail(ctx, bus.Events)
	if err != nil {
		return nil // ctx ended
	}
	x.frozen.emit, x.frozen.instance = x.Emit, x.Instance
	if err := x.frozen.thaw(ctx); err != nil {
		return err
	}
	control := follow.New(x.Conn, x.Instance, Control, func(en eventlog.Entry) error { return x.control(ctx, en) })
	var wg sync.WaitGroup
	defer wg.Wait()
	controlled, release := context.WithCancel(context.WithoutCancel(ctx)) // as long as anything runs
	defer release()
	wg.Go(func() { _ = control.Run(controlled, last+1) })
	defer context.AfterFunc(ctx, func() {
		select {
		case <-controlled.Done():
		case <-time.After(grace):
			x.stopAll()
		}
	})()
	work := bus.ExecutorWork(x.Service)
	return Consume(ctx, x.Conn, work.Consumer(x.Service), x.Limit, work.AckWait, x.process)
}

func (x *Executor) control(ctx context.Context, en eventlog.Entry) error {
	e, err := eventlog.Open(en)
	if err != nil {
		return nil
	}
	if x.frozen.apply(ctx, e) {
		return nil
	}
	x.mu.Lock()
	r, ok := x.running[e.CallID]
	x.mu.Unlock()
	switch {
	case ok && r.proposer == e.Service():
		r.stop(errCancelled)
	case ok:
		slog.Error("cancellation refused: another service than the call's proposer asks for it", "call", e.CallID, "service", e.Service())
	}
	return nil
}

func (x *Executor) process(ctx context.Context, m jetstream.Msg) {
	err := x.one(ctx, m)
	switch {
	case err == nil:
		_ = m.Ack()
	case errors.Is(err, errRunning):
		_ = m.NakWithDelay(5 * time.Second) // not acked: should we die, it must come back
	case errors.Is(err, errPoison):
		slog.Error("work refused for good", "subject", m.Subject(), "err", err)
		_ = m.Term()
	default:
		slog.Warn("work handed back", "subject", m.Subject(), "err", err)
		_ = m.NakWithDelay(250 * time.Millisecond)
	}
}

var (
	errPoison  = errors.New("not a work item")
	errRunning = errors.New("a second delivery of what runs already")
)

// one takes one allowed event to its outcome. nil: nothing is left to do.
func (x *Executor) one(ctx context.Context, m jetstream.Msg) error {
	md, err := m.Metadata()
	if err != nil {
		return err
	}
	e, err := eventlog.Open(eventlog.Entry{Seq: md.Sequence.Stream, Subject: m.Subject(), Data: m.Data()})
	if err != nil {
		return errors.Join(errPoison, err)
	}
	var a contract.Allowed
	if err := contract.Decode(e.Data, &a); err != nil || e.Service() != "policy" {
		return errors.Join(errPoison, err)
	}
	x.Emit.See(e.Lamport)
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	x.mu.Lock()
	if _, ok := x.running[e.CallID]; ok {
		x.mu.Unlock()
		return errRunning
	}
	x.running[e.CallID] = running{stop, proposerOf(a.Decision.Facts)}
	x.mu.Unlock()
	defer func() { x.mu.Lock(); delete(x.running, e.CallID); x.mu.Unlock() }()

	body := x.fetch(runCtx, &a.Call)
	refused := guard.CheckIntent(&a, e.Tenant, e.Session, x.Service, x.Emit.Now(), x.Keys)
	var h History
	// A server that died may have forgotten that it delivered this before, so what
	// has expired is looked up too: it may have been claimed in time.
	if md.NumDelivered > 1 || errors.Is(refused, guard.ErrExpired) {
		if h, err = Look(ctx, x.Emit.Log, e.Tenant, e.Session, e.CallID, x.Service, md.Sequence.Stream); err != nil {
			return err
		}
		if h.Recorded {
			return nil
		}
		if h.underWay(x.Service, x.Instance, x.Emit.Now()) {
			return errRunning
		}
	}
	if err := refused; err != nil && h.ClaimedBy == "" {
		if errors.Is(err, guard.ErrExpired) {
			return nil // policy's sweep records the expiry
		}
		if md.NumDelivered > maxDeliver { // not a key on its way: it will never verify
			return errors.Join(errPoison, err)
		}
		return err
	}
	started, res, err := x.start(runCtx, e, &a, h, md.NumDelivered > maxDeliver, body)
	if err != nil || started == nil {
		return err
	}
	return x.finish(ctx, started, e, &a, res)
}

// claimOf is the claim of an allowed call; by names the caller where it executes
// the call itself.
func claimOf(m *emit.Emitter, e *contract.Event, a *contract.Allowed, by string) *contract.Event {
	s := contract.Started{CallID: a.Call.ID, DecisionID: a.Decision.ID, ExecutedBy: by, IntentID: a.Decision.Intent.ID}
	claim := m.New(contract.EventEffectStarted, e.Session, contract.Bytes(&s), e)
	claim.ID = contract.IDStart + a.Call.ID
	return claim
}

// start claims the call and runs it. A nil event means that another party
// ends the call.
func (x *Executor) start(ctx context.Context, e *contract.Event, a *contract.Allowed, h History, dead bool, body bodyReader) (*contract.Event, Result, error) {
	claim := claimOf(x.Emit, e, a, "")
	rerun := h.ClaimedBy != "" && x.ReRunable != nil && x.ReRunable(a.Call.Kind)
	if h.ClaimedBy == "" {
		began := time.Now()
		err := Claim(ctx, x.Emit.Log, claim, x.Service)
		if err == nil && time.Since(began) > redelivery/2 {
			// Another delivery may have found the claim and recorded the outcome as unknown.
			var known History
			if known, err = Look(ctx, x.Emit.Log, e.Tenant, e.Session, e.CallID, x.Service, 1); err != nil || known.Recorded {
				return nil, Result{}, err
			}
		}
		if errors.Is(err, eventlog.ErrIDConflict) {
			// Somebody claimed it, and it may be the delivery before this
			// one: look at what the ledger says, then come back.
			if h, err = Look(ctx, x.Emit.Log, e.Tenant, e.Session, e.CallID, x.Service, 1); err != nil {
				return nil, Result{}, err
			}
			if h.Recorded || h.ClaimedBy == "" {
				return nil, Result{}, nil
			}
			if h.underWay(x.Service, x.Instance, x.Emit.Now()) {
				return nil, Result{}, errRunning
			}
		} else if err != nil {
			return nil, Result{}, err
		} else if dead {
			return claim, Result{Status: contract.DeadLettered, ErrorCode: "dead_lettered", ErrorMessage: "handed back too often"}, nil
		} else {
			return claim, x.run(ctx, claim, a, body), nil
		}
	}
	if h.Service() != x.Service {
		return nil, Result{}, nil // policy expired it and records that
	}
	x.Emit.See(h.Lamport) // the claim on the ledger may be another instance's
	if rerun {
		return claim, x.run(ctx, claim, a, body), nil
	}
	return claim, Result{Status: contract.Unknown, ErrorCode: "executor_lost",
		ErrorMessage: "the executor that started this call (" + h.ClaimedBy + ") did not record how it ended"}, nil
}

func (x *Executor) run(ctx context.Context, claim *contract.Event, a *contract.Allowed, body bodyReader) (res Result) {
	if x.frozen.on() && a.Call.Kind != guard.KindUnfreeze {
		return Result{Status: contract.Cancelled, ErrorCode: "system_frozen", ErrorMessage: "the mesh was frozen before the effect started"}
	}
	began := x.Emit.Now()
	deadline := a.Call.Deadline
	if a.Decision.Intent.Deadline != "" {
		deadline = a.Decision.Intent.Deadline
	}
	if t, err := contract.ParseTime(deadline); err == nil {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, t)
		defer stop()
	}
	w := &Work{Event: claim, Call: &a.Call, Intent: a.Decision.Intent, Facts: a.Decision.Facts, Instance: x.Instance, Proposer: proposerOf(a.Decision.Facts)}
	defer func() {
		if p := recover(); p != nil {
			slog.Error("handler panicked", "call", a.Call.ID, "panic", w.Redactor().String(fmt.Sprint(p)))
			res = Fail("internal", "the handler panicked; see the service's log")
		}
		switch {
		case errors.Is(context.Cause(ctx), errCancelled) && res.Status != contract.Succeeded:
			res.Status, res.ErrorCode, res.ErrorMessage = contract.Cancelled, "cancelled", "cancelled by the caller"
		case errors.Is(context.Cause(ctx), errStopped) && res.Status != contract.Succeeded:
			res.Status, res.ErrorCode, res.ErrorMessage = contract.Failed, "executor_stopped", "the executor was stopped before the call had ended"
		case ctx.Err() != nil && res.Status != contract.Succeeded && res.Status != contract.TimedOut:
			res.Status, res.ErrorCode, res.ErrorMessage = contract.TimedOut, "timeout", "the call's deadline passed"
		}
		if res.Usage == nil {
			res.Usage = &contract.Usage{}
		}
		res.Usage.WallMS = x.Emit.Now().Sub(began).Milliseconds()
	}()
	args, err := x.Blobs.Open(ctx, &a.Call.Args)
	if err == nil {
		err = canon.CheckDepth(args) // whoever recorded them
	}
	if err != nil {
		return Fail("args_unavailable", "the call's arguments cannot be read: %v", err)
	}
	tool := x.tool(a.Call.Kind)
	if tool != nil && tool.Pack != "" && contract.Digest(tool) != a.Decision.ToolDigest {
		return Fail("tool_drift", "the decision is on tool document %s, and this instance has another program or document: call again", a.Decision.ToolDigest)
	}
	if tool != nil {
		if args, err = toolschema.Defaults(tool.InputSchema, args); err != nil {
			return Fail("args_unavailable", "the defaults of the input schema cannot be filled in: %v", err)
		}
	}
	w.Args = args
	var names []string // those by pattern are fetched when they are needed
	for _, g := range a.Decision.Intent.Secrets {
		if !g.Pattern() {
			names = append(names, g.Name)
		}
	}
	if len(names) > 0 {
		if x.Secrets == nil {
			return Fail("secrets_unsupported", "executor %s cannot receive secrets", x.Service)
		}
		if w.Secrets, err = x.Secrets(ctx, claim, a, names); err != nil {
			return Fail(contract.EventSecretRefused, "%v", err)
		}
		for name, v := range w.Secrets {
			w.Hide(name, v)
		}
	}
	frames := int64(0)
	w.Frame = func(data []byte) error {
		frames++
		return x.Box.Post(claim.Origin, a.Call.ID, frames, data)
	}
	w.Fact = func(name string, data []byte) {
		data, err := w.Redactor().JSON(data)
		if err != nil {
			w.facts = append(w.facts, func(context.Context) (uint64, error) { return 0, err })
			return
		}
		e := x.Emit.New(name, claim.Session, data, claim)
		b, err := e.Encode()
		if err != nil {
			w.facts = append(w.facts, func(context.Context) (uint64, error) { return 0, err })
			return
		}
		w.facts = append(w.facts, x.Emit.Log.Start(e.Subject(), e.ID, b))
	}
	if w.Body = body; body == nil {
		w.Body = func(ctx context.Context) ([]byte, error) { return x.body(ctx, w.Proposer, claim.Origin, &a.Call) }
	}
	w.Secret = func(ctx context.Context, name string) (string, error) {
		if x.Secrets == nil {
			return "", errors.New("executor " + x.Service + " cannot receive secrets")
		}
		m, err := x.Secrets(ctx, claim, a, []string{name})
		w.Hide(name, m[name])
		return m[name], err
	}
	if x.frozen.on() && a.Call.Kind != guard.KindUnfreeze { // args and secrets took their time
		return Result{Status: contract.Cancelled, ErrorCode: "system_frozen", ErrorMessage: "the mesh was frozen before the effect started"}
	}
	res = w.redacted(x.Handler(ctx, w))
	if res.Usage == nil {
		res.Usage = &contract.Usage{}
	}
	if tool != nil && res.Output != nil && res.ErrorCode == "" {
		if err := x.schemas.Output(a.Decision.ToolDigest, tool, res.Output); err != nil {
			res = Result{Status: contract.Failed, ErrorCode: "invalid_output", ErrorMessage: "the output " + err.Error(), EffectType: res.EffectType,
				Usage: res.Usage, Attestation: res.Attestation}
		}
	}
	res.sent, res.facts = frames, w.facts
	return res
}

// proposerOf is the member proposer of a decision's facts. They are canonical,
// and no string in canonical JSON holds an unescaped quote.
func proposerOf(facts contract.Raw) string {
	_, rest, _ := bytes.Cut(facts, []byte(`"proposer":"`))
	service, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(service)
}

func (x *Executor) tool(kind string) *contract.Tool {
	for i := range x.Tools {
		if x.Tools[i].Kind == kind {
			return &x.Tools[i]
		}
	}
	return nil
}

func (x *Executor) finish(ctx context.Context, started, e *contract.Event, a *contract.Allowed, res Result) error {
	eff := contract.Effect{
		Artifacts: res.Artifacts, Attestation: res.Attestation, CallID: a.Call.ID, EffectType: res.EffectType, Ended: x.Emit.Time(),
		ErrorCode: res.ErrorCode, ErrorMessage: hostpath.Strip(res.ErrorMessage), Frames: res.sent, InputDigest: a.Call.Args.Commitment,
		Instance: x.Instance, Started: started.Time, Status: res.Status, Tool: a.Call.Tool, Usage: res.Usage,
	}
	if eff.EffectType == "" {
		eff.EffectType = a.Call.Kind
	}
	if eff.Status == "" {
		if eff.Status = contract.Succeeded; res.ErrorCode != "" {
			eff.Status = contract.Failed
		}
	}
	var out *contract.Content
	if res.Output != nil && res.Withhold {
		c, _ := blob.Withheld(res.Output, "application/json")
		out, eff.OutputDigest = &c, c.Commitment
	} else if res.Output != nil {
		commit := x.Blobs.Commit
		if res.Encrypt {
			commit = x.Blobs.CommitSealed
		}
		c, err := commit(ctx, res.Output, "application/json")
		switch {
		case errors.Is(err, blob.ErrTooLarge):
			eff.Status, eff.ErrorCode, eff.ErrorMessage = contract.Failed, "invalid_output", hostpath.Strip(err.Error())
		case err != nil:
			return err
		default:
			out, eff.OutputDigest = &c, c.Commitment
		}
	}
	err := x.Recorder.Record(ctx, started, &a.Decision, false, eff, out)
	if errors.Is(err, ErrSuperseded) {
		slog.Warn("outcome superseded", "call", a.Call.ID)
		err = nil
	}
	for _, wait := range res.facts {
		if _, lost := wait(ctx); lost != nil {
			slog.Error("a fact about a call was not recorded", "call", a.Call.ID, "err", lost)
		}
	}
	return err
}
