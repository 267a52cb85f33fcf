// Package execute is the only path to an effect: verify the decision and its
// intent, claim the call, run, commit the output, sign the receipt, append,
// ack. A test fails if a service consumes allowed_* otherwise.
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
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/freeze"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

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

	frames int64 // sent by Frame
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
	Recorder  *outcome.Recorder
	Keys      guard.KeyAt
	Blobs     *blob.Store
	Box       *transient.Box
	Instance  string
	Handler   Handler
	Secrets   Secrets
	Limit     int             // calls at once
	Tools     []contract.Tool // tools that are offered; outputs must match their output schemas
	ReRunable func(kind string) bool

	mu      sync.Mutex
	running map[string]running
	frozen  freeze.State
	schemas toolschema.Checker
}

// running is a call under way.
type running struct {
	stop     context.CancelCauseFunc
	proposer string // the only service that may cancel it
}

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
	x.frozen.Emit, x.frozen.Instance = x.Emit, x.Instance
	if err := x.frozen.Load(ctx); err != nil {
		return err
	}
	control := follow.New(x.Conn, x.Instance, bus.Control, func(en eventlog.Entry) error { return x.control(ctx, en) })
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
	w := bus.ExecutorWork(x.Service)
	return consumer.Run(ctx, x.Conn, w.Consumer(x.Service), x.Limit, w.AckWait, x.process)
}

func (x *Executor) control(ctx context.Context, en eventlog.Entry) error {
	e, err := eventlog.Open(en)
	if err != nil {
		return nil
	}
	if x.frozen.Apply(ctx, e) {
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
