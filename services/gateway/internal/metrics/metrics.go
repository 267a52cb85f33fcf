// Package metrics collects the metrics of a gateway and serves them in Prometheus'
// format. Besides the requests and calls of the gateway, they include the use of models
// and the lags of the mesh's views and consumers. The number of values of each label is
// limited.
package metrics

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/metrics"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/health"
)

// Metrics holds the metrics of one gateway. It is safe for concurrent use.
type Metrics struct {
	reg      *prometheus.Registry
	calls    *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	requests *prometheus.CounterVec
	lag      *prometheus.GaugeVec
	exceeded *prometheus.CounterVec
	attempts *prometheus.CounterVec
	tokens   *prometheus.CounterVec
	spent    *prometheus.CounterVec

	used    usage                   // what attempts, tokens and spent show
	client  *rpc.Client             // nil until Handler is called
	refresh sync.Mutex              // held while metrics of models or views are updated
	fresh   health.Cached[struct{}] // limits how often the metrics of models are updated
}

// New returns the metrics of a gateway. Nothing is counted yet.
func New() *Metrics {
	m := &Metrics{
		reg:      prometheus.NewRegistry(),
		calls:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "binnacle_calls_total", Help: "Calls by kind family and outcome."}, []string{"kind", "status"}),
		latency:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "binnacle_call_seconds", Help: "Proposal to outcome, as the gateway sees it.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"kind"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "binnacle_http_requests_total", Help: "Requests by route and status."}, []string{"route", "status"}),
		lag:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "binnacle_lag_events", Help: "Events waiting, by instance and view or durable."}, []string{"instance", "part"}),
		exceeded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "binnacle_quota_exceeded_total", Help: "Requests refused because they exceed a quota of their tenant, by quota: in_flight, calls_per_second, body_bytes, or suspended for calls of suspended callers that are not recorded."}, []string{"quota"}),
	}
	// These counters are read from a view of the ledger, so they continue after a
	// restart.
	m.attempts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "binnacle_llm_attempts_total", Help: "Attempts at providers, by outcome: succeeded, cancelled, or an error code."}, []string{"provider", "model", "outcome"})
	m.tokens = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "binnacle_llm_tokens_total", Help: "Tokens used, by type: input, output, cached, reasoning."}, []string{"provider", "model", "type"})
	m.spent = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "binnacle_llm_cost_usd_total", Help: "Money spent, in US dollars."}, []string{"provider", "model"})
	m.reg.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector(), m.lag)
	m.Register(m.reg)
	return m
}

// Register adds the metrics of calls, requests, exceeded quotas and models to a registry.
// New has added them to the registry that Handler serves.
func (m *Metrics) Register(to prometheus.Registerer) {
	to.MustRegister(m.calls, m.latency, m.requests, m.exceeded, (*models)(m))
}

// models is a prometheus.Collector that updates the metrics of models before it collects
// them.
type models Metrics

// Describe implements prometheus.Collector.
func (m *models) Describe(c chan<- *prometheus.Desc) {
	m.attempts.Describe(c)
	m.tokens.Describe(c)
	m.spent.Describe(c)
}

// Collect implements prometheus.Collector.
func (m *models) Collect(c chan<- prometheus.Metric) {
	m.refresh.Lock()
	defer m.refresh.Unlock()
	if m.client != nil {
		m.fresh.Get(time.Second, func(ctx context.Context) (struct{}, time.Duration) {
			(*Metrics)(m).models(ctx, m.client)
			return struct{}{}, time.Second
		})
	}
	m.attempts.Collect(c)
	m.tokens.Collect(c)
	m.spent.Collect(c)
}

// outcomes are the values of the label status. A label has only values of a closed set or
// a limited number of other values: callers can send any number of different kinds, models
// and paths, and each value uses memory until the process ends.
var outcomes = append(metrics.Statuses(), contract.EventEscalated, "none")

// Maximum numbers of label values that are taken from responses of other services.
const (
	maxModels = 100 // pairs of provider and model; other pairs share one label
	maxCodes  = 64  // distinct error codes of attempts; other codes share one label
	maxParts  = 500 // pairs of an instance and one of its parts; other pairs are omitted
)

// Count counts a call by the family of its kind and by its status. Unknown kinds and
// statuses are counted under metrics.Other.
func (m *Metrics) Count(kind, status string) {
	m.calls.WithLabelValues(metrics.Family(kind), metrics.OneOf(outcomes, status)).Inc()
}

// Observe counts a call as Count does. It also observes the time from the call's
// proposal to its outcome.
func (m *Metrics) Observe(kind, status string, d time.Duration) {
	m.Count(kind, status)
	m.latency.WithLabelValues(metrics.Family(kind)).Observe(d.Seconds())
}

// CountExceeded counts a request that exceeds the named quota of its tenant. The tenant
// is not a label, because the number of tenants is not limited.
func (m *Metrics) CountExceeded(name string) { m.exceeded.WithLabelValues(name).Inc() }

// RouteOf returns the route of a request as declared, or metrics.Other if no route matched.
func RouteOf(c echo.Context) string {
	if c.Get(auth.RouteKey) == nil {
		return metrics.Other
	}
	return c.Path()
}

// Middleware counts requests by route and status. It converts an error into a response
// first, so that the status is known, and returns nil.
func (m *Metrics) Middleware(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		if err != nil {
			c.Error(err)
		}
		m.requests.WithLabelValues(RouteOf(c), strconv.Itoa(c.Response().Status)).Inc()
		return nil
	}
}

// lags replaces the recorded lags with those of r, for at most maxParts parts.
func (m *Metrics) lags(r health.Readiness) {
	m.refresh.Lock()
	defer m.refresh.Unlock()
	m.lag.Reset()
	n := 0
	for _, list := range r.Services {
		for _, d := range list {
			for _, p := range d.Parts {
				if n++; n <= maxParts {
					m.lag.WithLabelValues(d.Instance, p.Name).Set(float64(p.Lag))
				}
			}
		}
	}
}

// Health decides which requests may read the metrics, and returns the state of the
// mesh's parts. health.API implements it.
type Health interface {
	Insider(c echo.Context) error
	Now() health.Readiness
}

// Handler returns the handler of GET /metrics. It responds in one of Prometheus' formats
// to requests that h.Insider accepts, and returns the error of h.Insider for other
// requests. The metrics of models are updated at most once a second; the lags are those
// of h.Now.
func (m *Metrics) Handler(h Health, client *rpc.Client) echo.HandlerFunc {
	m.refresh.Lock()
	m.client = client
	m.refresh.Unlock()
	page := promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{})
	return func(c echo.Context) error {
		if err := h.Insider(c); err != nil {
			return err
		}
		m.lags(h.Now())
		page.ServeHTTP(c.Response(), c.Request())
		return nil
	}
}
