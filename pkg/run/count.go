package run

import (
	"context"
	"runtime"

	"github.com/binnacle-mesh/binnacle/pkg/metrics"
)

// NewMetrics returns a metrics registry for this process, labelled with its version.
func NewMetrics() *metrics.Registry { return metrics.New(Version(), runtime.Version()) }

// count registers the instance's metrics in the given registry or, if that is nil, in a
// new one that is not served, and sets v.Metrics. done unregisters them.
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
