package run

import (
	"context"
	"runtime"

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
