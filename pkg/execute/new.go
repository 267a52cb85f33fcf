package execute

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// New returns the executor of a running instance and registers its work in the
// instance's health. limit is the maximum number of concurrent calls, tools are the
// tools that the service offers. The caller may change the fields until it calls Run.
func New(env *run.Env, limit int, tools []contract.Tool, h Handler) *Executor {
	w := bus.ExecutorWork(env.Service)
	env.ReportWork(w.Consumer(env.Service))
	return &Executor{Service: env.Service, Conn: env.Conn, Emit: env.Emit, Recorder: env.Recorder(), Keys: env.Trust.At,
		Tenants: env.Cell.Check, Changed: env.Cell.Changed, Cell: env.Cell.Now,
		Blobs: env.Blobs, Transport: env.Transport, Instance: env.Instance, Handler: counted(env, h), Limit: limit, Tools: tools}
}

// counted returns a handler that calls h and, unless h panics or returns Result.Again, records
// the status of its result and its duration in the instance's metrics.
func counted(env *run.Env, h Handler) Handler {
	return func(ctx context.Context, w *Work) Result {
		began := time.Now()
		r := h(ctx, w)
		if r.Again { // the run that ends the call is counted
			return r
		}
		status := r.Status
		if status == "" { // empty means the default; see Result
			if status = contract.Succeeded; r.ErrorCode != "" {
				status = contract.Failed
			}
		}
		env.Metrics.Effect(w.Call.Kind, status, time.Since(began))
		return r
	}
}
