// Package execute is the only path to an effect, except for calls that callers execute
// themselves; see package handout. For each allowed call it verifies the decision and its
// intent, claims the call, runs the handler, commits the output, signs the receipt, appends the
// outcome and acknowledges the work, in this order. A test fails if other code reads allowed_*
// events, except package handout, policy's budget ledgers, and policy's expiry of calls that do
// not start.
package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/budgetfence"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/freeze"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Work is one permitted and claimed call, as its handler receives it.
type Work struct {
	Event    *contract.Event // the claim, effect_started
	Call     *contract.Call
	Intent   *contract.ExecutionIntent
	Facts    contract.Raw      // facts that the decision is based on, canonical JSON
	Args     []byte            // JSON, with the defaults of the tool's input schema filled in
	Secrets  map[string]string // values by name, of the secrets that the intent permits by name
	Instance string
	Proposer string // service that proposed the call

	ToolDigest string // digest of the tool document that the decision is on

	// Body returns the body that the caller sent in addition to the arguments, checked
	// against its commitment. It returns an error if the call has no body, or if the
	// body is not available within bodyWait.
	Body func(ctx context.Context) ([]byte, error)
	// Secret fetches a secret that the intent permits by a pattern such as "llm.*", and
	// passes its value to Hide. Its error is that of Executor.Secrets; it also returns
	// an error if Executor.Secrets is nil.
	Secret func(ctx context.Context, name string) (string, error)
	// Renew fetches secrets whose values a server has rejected, and passes the values to Hide. A value
	// that cannot be renewed is the rejected one. Its errors are those of Secret.
	Renew func(ctx context.Context, names ...string) (map[string]string, error)
	// Frame sends one live frame to the instance that waits for the call. Frames may be
	// lost; they are numbered, and the outcome contains how many were sent, so that the
	// receiver detects loss. Frame must not be called concurrently.
	Frame func(data []byte) error
	// Fact starts to append an event with a name and JSON data about the running call,
	// caused by its claim. The call's secrets are removed from the data. Before the
	// call's work is acknowledged, the executor waits for the append, for a limited
	// time. Fact must not be called concurrently.
	Fact func(name string, data []byte)

	frames int64 // number of frames sent
	facts  []func(context.Context) (uint64, error)
	hidden atomic.Pointer[redact.Redactor]
}

// Result is the result that a handler returns. Status defaults to failed if ErrorCode is
// set, and to succeeded otherwise.
type Result struct {
	Status       string
	ErrorCode    string
	ErrorMessage string
	EffectType   string
	Output       []byte // JSON; nil = no output
	Withhold     bool   // record the output's commitment only
	Artifacts    []string
	Attestation  *contract.Attestation
	Usage        *contract.Usage
	// Again returns the call to the queue without an outcome, so that an instance of the
	// service runs it again; the other members are then ignored. If Executor.ReRunable
	// does not permit the kind of the call, the call fails instead.
	Again bool

	sent  int64 // number of frames sent
	facts []func(context.Context) (uint64, error)
}

// Fail returns a failed result with an error code and a formatted message.
func Fail(code, format string, args ...any) Result {
	return Result{Status: contract.Failed, ErrorCode: code, ErrorMessage: fmt.Sprintf(format, args...)}
}

// Handler carries out the effect of a call. It must return soon after ctx ends. It does
// not check whether the call is permitted: it is called only for permitted and claimed
// calls.
type Handler func(ctx context.Context, w *Work) Result

// Secrets fetches the named secrets, which the intent of a started call permits, and
// returns them by name. allowed is the ledger sequence of the event that allows the
// call. Executor.Secrets is nil if the executor receives no secrets.
type Secrets func(ctx context.Context, started *contract.Event, a *contract.Allowed, allowed uint64, names []string) (map[string]string, error)

// Executor runs the allowed calls whose intent names its service. The exported fields
// are set before Run is called. Secrets may be nil. ReRunable reports whether a claimed
// call of a kind may be run again if no outcome of it was recorded; if it is nil, none
// may.
type Executor struct {
	Service   string
	Conn      *bus.Conn
	Emit      *emit.Emitter
	Recorder  *outcome.Recorder
	Keys      guard.KeyAt
	Blobs     *blob.Store
	Transport *transient.Transport
	Instance  string
	Handler   Handler
	Secrets   Secrets
	Renew     Secrets         // fetches secrets in place of those that a server has rejected; may be nil
	Limit     int             // maximum number of concurrent calls
	Tools     []contract.Tool // tools that the executor offers; outputs must match their output schemas
	// ToolOf returns the document of a tool that is not in Tools, or nil. It is for
	// executors whose tools change while they run, and may be nil.
	ToolOf    func(kind string) *contract.Tool
	ReRunable func(kind string) bool
	// Tenants reports whether a tenant exists and whether it is suspended, according to
	// the part of the ledger that this instance has read. A call of a tenant that does
	// not exist in the ledger up to the call is refused for good; a call of a suspended
	// tenant is claimed and recorded as cancelled. If it is nil, every tenant exists and
	// none is suspended.
	Tenants func(id string) (exists, suspended bool)
	// Changed returns a channel that is closed when the results of Tenants may change. Run
	// then cancels the running calls of suspended tenants. If it is nil, no running call
	// is cancelled because of a suspension.
	Changed func() <-chan struct{}
	// Cell returns the current state of the cell, whose events freeze the mesh; see
	// freeze.State. It must be set if Tenants is.
	Cell func(context.Context) (handle.Cell, error)

	mu      sync.Mutex
	running map[callKey]running
	cancels cancels
	frozen  freeze.State
	fence   budgetfence.Fence
	schemas toolschema.Checker
}

// callKey identifies a running call. The id of a call does not name its tenant.
type callKey struct{ tenant, call string }

// running is a call that runs in this process.
type running struct {
	stop     context.CancelCauseFunc
	proposer string // service that proposed the call; only this service may cancel it
}

// Causes with which the context of a running call is cancelled; see interrupted.
var (
	errCancelled = errors.New("cancelled by the caller")
	errStopped   = errors.New("the executor is stopped")
	errSuspended = errors.New("the tenant is suspended")
)

// Stopping reports whether the context of a handler ended because its executor is stopped.
// The handler of a call that may run again can then return Result.Again.
func Stopping(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errStopped) }

// grace is the time that running calls have to finish once Run's context has ended.
// After it their contexts are cancelled, and the calls that do not succeed fail with the
// error code executor_stopped.
const grace = 5 * time.Second

// stop cancels, with a cause, the contexts of the running calls whose tenant satisfies
// of. It does not wait for the calls.
func (x *Executor) stop(cause error, of func(tenant string) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, r := range x.running {
		if of(key.tenant) {
			r.stop(cause)
		}
	}
}

// watchSuspensions cancels the running calls of suspended tenants, until ctx ends, or
// does nothing if Changed is nil. A call that enters after the change does not start; see
// withheld.
func (x *Executor) watchSuspensions(ctx context.Context) {
	if x.Changed == nil {
		return
	}
	for ctx.Err() == nil {
		changed := x.Changed() // first, so that no change is missed
		x.stop(errSuspended, func(tenant string) bool {
			_, suspended := x.tenant(tenant)
			return suspended
		})
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// Run receives and executes work until ctx ends, then waits until running calls have
// ended (see grace) and returns nil. It returns an error if freeze.State.Load fails.
func (x *Executor) Run(ctx context.Context) error {
	last, err := x.Conn.Tail(ctx, bus.Events)
	if err != nil {
		return nil // ctx ended
	}
	x.cancels.begin(x.Emit.Now())
	x.frozen.Emit, x.frozen.Instance, x.frozen.Cell = x.Emit, x.Instance, x.Cell
	if err := x.frozen.Load(ctx); err != nil {
		return err
	}
	if err := eventlog.Retry(ctx, func() error { return x.fence.Load(ctx, x.Emit.Log, last) }); err != nil {
		return nil // ctx ended
	}
	control := follow.New(x.Conn, x.Instance, bus.ExecutorControl(x.Service), func(en eventlog.Entry) error { return x.control(ctx, en) })
	var wg sync.WaitGroup
	defer wg.Wait()
	controlled, release := context.WithCancel(context.WithoutCancel(ctx)) // cancellations and freezes are received until the last call has ended
	defer release()
	wg.Go(func() { _ = control.Run(controlled, last+1) })
	wg.Go(func() { x.watchSuspensions(controlled) })
	// When ctx ends, running calls have the time grace to finish; then stop cancels
	// their contexts.
	defer context.AfterFunc(ctx, func() {
		select {
		case <-controlled.Done():
		case <-time.After(grace):
			x.stop(errStopped, func(string) bool { return true })
		}
	})()
	return consumer.Run(ctx, x.Conn, x.Service, bus.ExecutorWork(x.Service), x.Limit, x.Process)
}

// control processes an event of the control reader: a freeze, its end, a cancellation, or
// an event that only x.fence processes. A cancellation counts only if the service that
// proposed the call recorded it, because any service can append such an event. A
// cancellation of a call that this process does not run is stored, so that the call does
// not start later. Invalid events are ignored. The error is always nil.
func (x *Executor) control(ctx context.Context, en eventlog.Entry) error {
	x.fence.Apply(en)
	if !bus.MatchAny(bus.Control.Filters, en.Subject) { // only the fence processes the event
		return nil
	}
	e, err := eventlog.Open(en, bus.Control.Filters...)
	if err != nil {
		return nil
	}
	if x.frozen.Apply(ctx, en.Seq, e) {
		return nil
	}
	x.mu.Lock()
	r, ok := x.running[callKey{e.Tenant, e.CallID}]
	if !ok && e.Name == contract.EventCancelRequested { // under x.mu, so that a call either runs before or finds the cancellation
		x.cancels.add(e)
	}
	x.mu.Unlock()
	switch {
	case ok && r.proposer == e.Service():
		r.stop(errCancelled)
	case ok:
		slog.Error("cancellation refused: requested by a service that did not propose the call", "call", e.CallID, "service", e.Service())
	}
	return nil
}
