package execute

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// New makes the path to effects of a running instance, and reports its work in the
// instance's health. limit is the number of calls that run at once, tools what the
// service offers. Fields may be set until Run is called.
func New(env *run.Env, limit int, tools []contract.Tool, h Handler) *Executor {
	w := bus.ExecutorWork(env.Service)
	env.ReportWork(w.Consumer(env.Service))
	return &Executor{Service: env.Service, Conn: env.Conn, Emit: env.Emit, Recorder: env.Recorder(), Keys: env.Trust.At,
		Blobs: env.Blobs, Box: env.Box, Instance: env.Instance, Handler: counted(env, h), Limit: limit, Tools: tools}
}

// counted is a handler whose effects are counted.
func counted(env *run.Env, h Handler) Handler {
	return func(ctx context.Context, w *Work) Result {
		began := time.Now()
		r := h(ctx, w)
		status := r.Status
		if status == "" { // as Executor reads it
			if status = contract.Succeeded; r.ErrorCode != "" {
				status = contract.Failed
			}
		}
		env.Metrics.Effect(w.Call.Kind, status, time.Since(began))
		return r
	}
}
