package run

import (
	"context"
	"runtime"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/metrics"
)

// NewMetrics makes the figures of this process.
func NewMetrics() *metrics.Registry { return metrics.New(Version(), runtime.Version()) }

// count adds the instance to the figures of its process, or to figures that nothing
// serves; done takes it out again.
func (v *Env) count(of *metrics.Registry) (done func()) {
	if of == nil {
		of = NewMetrics()
	}
	v.Metrics = of.Instance(v.Service, v.Instance)
	v.Metrics.Connection(v.Conn)
	v.Metrics.Parts(func(ctx context.Context) []metrics.Part {
		var out []metrics.Part
		for _, h := range v.Health(ctx) {
			out = append(out, metrics.Part{Name: h.Name, OK: h.OK, Position: h.Position, Lag: h.Lag})
		}
		return out
	})
	return v.Metrics.Close
}

// counted is a handler whose effects are counted.
func (v *Env) counted(h execute.Handler) execute.Handler {
	return func(ctx context.Context, w *execute.Work) execute.Result {
		began := time.Now()
		r := h(ctx, w)
		status := r.Status
		if status == "" { // as Executor reads it
			if status = contract.Succeeded; r.ErrorCode != "" {
				status = contract.Failed
			}
		}
		v.Metrics.Effect(w.Call.Kind, status, time.Since(began))
		return r
	}
}
