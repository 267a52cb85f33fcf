// Package metrics collects the Prometheus metrics of a process and of the service
// instances in it.
//
// Counters start at 0 with the process or instance, except those that a service reads
// from a view of the ledger, and only increase; durations are in seconds and sizes in
// bytes. The values of each label come from a bounded set, so that callers cannot
// increase the number of series without limit. The package does not serve the metrics:
// package admin serves those of a Registry. Below pkg, only this package imports
// Prometheus's library; a service registers metrics of its own with Instance.
package metrics

import (
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Registry holds the metrics of one process. It is safe for concurrent use.
type Registry struct {
	process *prometheus.Registry
	reloads *prometheus.CounterVec

	mu        sync.Mutex
	instances map[*Instance]*prometheus.Registry
}

// New returns a registry with the metrics of the process and of the Go runtime. version
// and goVersion become labels of binnacle_build_info.
func New(version, goVersion string) *Registry {
	r := &Registry{process: prometheus.NewRegistry(), instances: map[*Instance]*prometheus.Registry{}}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "binnacle_build_info", Help: "1, with what the program was built from as labels.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": goVersion}})
	build.Set(1)
	r.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "binnacle_config_reloads_total", Help: "Changes of the configuration file, by result: applied or refused."}, []string{"result"})
	for _, result := range []string{reloadApplied, reloadRefused} {
		r.reloads.WithLabelValues(result)
	}
	r.process.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector(), build, r.reloads)
	return r
}

// Values of the label result of binnacle_config_reloads_total.
const (
	reloadApplied = "applied"
	reloadRefused = "refused"
)

// Reloaded counts one reload of the configuration file, which was applied or refused.
func (r *Registry) Reloaded(applied bool) {
	result := reloadRefused
	if applied {
		result = reloadApplied
	}
	r.reloads.WithLabelValues(result).Inc()
}

// Gather implements prometheus.Gatherer. It returns the metrics of the process and of
// every instance in it.
func (r *Registry) Gather() ([]*dto.MetricFamily, error) {
	r.mu.Lock()
	// The list is copied, so that the lock is not held while collectors run, which may
	// take up to partsWithin.
	all := prometheus.Gatherers{r.process}
	for _, one := range slices.Collect(maps.Values(r.instances)) {
		all = append(all, one)
	}
	r.mu.Unlock()
	return all.Gather()
}

// Handler returns an HTTP handler that serves the metrics in Prometheus's text format or
// in OpenMetrics, whichever the client accepts.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
}
