// Package metrics counts what a process and the instances of services in it do, in the
// form that Prometheus reads.
//
// Counters count from the start of the process and only grow; durations are in seconds
// and sizes in bytes; labels take their values from closed sets, never from a caller.
// The package counts and does not serve: package admin serves a Registry, and so does
// the gateway's API. It is the one home of Prometheus's library below pkg; a service
// registers figures of its own with Instance.
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

// Registry holds the figures of one process. It is safe for concurrent use.
type Registry struct {
	process *prometheus.Registry
	reloads *prometheus.CounterVec

	mu        sync.Mutex
	instances map[*Instance]*prometheus.Registry
}

// New makes a registry with the figures of the process and of Go's runtime. version
// becomes a label of binnacle_build_info.
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

// Results of a reload.
const (
	reloadApplied = "applied"
	reloadRefused = "refused"
)

// Reloaded counts a change of the configuration file.
func (r *Registry) Reloaded(applied bool) {
	result := reloadRefused
	if applied {
		result = reloadApplied
	}
	r.reloads.WithLabelValues(result).Inc()
}

// Gather implements prometheus.Gatherer: the figures of the process and of every
// instance in it.
func (r *Registry) Gather() ([]*dto.MetricFamily, error) {
	r.mu.Lock()
	all := prometheus.Gatherers{r.process}
	for _, one := range slices.Collect(maps.Values(r.instances)) {
		all = append(all, one)
	}
	r.mu.Unlock()
	return all.Gather()
}

// Handler serves the figures in the text format and in OpenMetrics.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
}
