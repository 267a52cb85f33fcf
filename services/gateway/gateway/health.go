package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

func (s *Service) healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "alive", "instance": s.env.Instance, "version": s.Version})
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready      bool                    `json:"ready"`
	Durability string                  `json:"durability"`
	Instance   string                  `json:"instance"`
	Services   map[string][]Dependency `json:"services"`
	Missing    []string                `json:"missing"`
}

// Dependency is one live instance and its parts.
type Dependency struct {
	Instance string       `json:"instance"`
	OK       bool         `json:"ok"`
	Detail   string       `json:"detail,omitempty"`
	Parts    []run.Health `json:"parts"`
}

func (s *Service) readyz(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), 2*time.Second)
	defer cancel()
	r := s.readiness(ctx)
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
		c.Response().Header().Set("Retry-After", "1")
	}
	return c.JSON(status, r)
}

func (s *Service) readiness(ctx context.Context) Readiness {
	r := Readiness{Ready: true, Durability: s.Durability, Instance: s.env.Instance, Services: map[string][]Dependency{}, Missing: []string{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	add := func(service string, d Dependency) {
		mu.Lock()
		defer mu.Unlock()
		r.Services[service] = append(r.Services[service], d)
	}
	own := Dependency{Instance: s.env.Instance, OK: true, Parts: s.env.Health(ctx)}
	for _, p := range own.Parts {
		own.OK = own.OK && p.OK
	}
	add("gateway", own)
	for _, service := range s.Expect {
		names, err := bus.Live(ctx, s.env.Conn, service)
		if err != nil || len(names) == 0 {
			r.Missing = append(r.Missing, service)
			continue
		}
		for _, name := range names {
			wg.Go(func() {
				d := Dependency{Instance: name, OK: true, Parts: []run.Health{}}
				if err := s.env.Box.AskOne(ctx, name, "health", nil, &d.Parts); err != nil {
					d.OK, d.Detail = false, err.Error()
				}
				for _, p := range d.Parts {
					d.OK = d.OK && p.OK
				}
				add(service, d)
			})
		}
	}
	wg.Wait()
	if lag := s.catalogLag(ctx, r.Services); lag != "" {
		r.Ready = false
		r.Missing = append(r.Missing, lag)
	}
	for _, list := range r.Services {
		ok := false // one working instance makes a service ready
		for _, d := range list {
			ok = ok || d.OK
		}
		r.Ready = r.Ready && ok
	}
	r.Ready = r.Ready && len(r.Missing) == 0
	return r
}

// catalogLag names a reader of the catalog that has not seen the newest
// registration yet: it would not know a tool that is there.
func (s *Service) catalogLag(ctx context.Context, services map[string][]Dependency) string {
	newest := uint64(0)
	for _, name := range []string{"tool_registered", "tool_retired"} {
		en, err := s.env.Emit.Log.Last(ctx, "evt."+s.env.Tenant+".*.*."+name+".>")
		if err == nil {
			newest = max(newest, en.Seq)
		} else if !errors.Is(err, eventlog.ErrNotFound) {
			return "the ledger: " + err.Error()
		}
	}
	for _, list := range services {
		for _, d := range list {
			for _, p := range d.Parts {
				if (p.Name == "policy.state" || p.Name == "gateway.catalog") && p.Position < newest {
					return d.Instance + " has not seen the newest tool yet"
				}
			}
		}
	}
	return ""
}

type metrics struct {
	reg      *prometheus.Registry
	calls    *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	requests *prometheus.CounterVec
	lag      *prometheus.GaugeVec
	attempts *prometheus.GaugeVec
	tokens   *prometheus.GaugeVec
	spent    *prometheus.GaugeVec
}

func newMetrics() *metrics {
	m := &metrics{
		reg:      prometheus.NewRegistry(),
		calls:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "binnacle_calls_total", Help: "Calls by kind family and outcome."}, []string{"kind", "status"}),
		latency:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "binnacle_call_seconds", Help: "Proposal to outcome, as the gateway sees it.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"kind"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "binnacle_http_requests_total", Help: "Requests by route and status."}, []string{"route", "status"}),
		lag:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "binnacle_lag_events", Help: "Events waiting, by instance and view or durable."}, []string{"instance", "part"}),
	}
	// What the ledger holds of attempts, read from the view: it goes on across restarts.
	m.attempts = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "binnacle_llm_attempts", Help: "Attempts at providers, by outcome: succeeded, cancelled, or an error code."}, []string{"provider", "model", "outcome"})
	m.tokens = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "binnacle_llm_tokens", Help: "Tokens used, by type: input, output, cached, reasoning."}, []string{"provider", "model", "type"})
	m.spent = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "binnacle_llm_usd_micros", Help: "Money spent, in millionths of a US dollar."}, []string{"provider", "model"})
	m.reg.MustRegister(m.attempts, m.tokens, m.spent, m.calls, m.latency, m.requests, m.lag)
	return m
}

// family keeps label values few: a caller can invent kinds without end.
func family(kind string) string {
	for i := range len(kind) {
		if kind[i] == '.' {
			return kind[:i]
		}
	}
	return "other"
}

func (m *metrics) observe(kind, status string, d time.Duration) {
	m.calls.WithLabelValues(family(kind), status).Inc()
	m.latency.WithLabelValues(family(kind)).Observe(d.Seconds())
}

func (m *metrics) middleware(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		if err != nil {
			c.Error(err)
		}
		m.requests.WithLabelValues(c.Path(), strconv.Itoa(c.Response().Status)).Inc()
		return nil
	}
}

// models brings the figures of models up to date.
func (m *metrics) models(ctx context.Context, s *Service) {
	var stats []llm.ModelStats
	var spend []llm.Spend
	if s.env.Ask(ctx, "llm-router", "stats", map[string]any{}, &stats) != nil || s.env.Ask(ctx, "llm-router", "spend", map[string]any{"by": []string{"provider", "model"}}, &spend) != nil {
		return // what was said last stands
	}
	for _, x := range stats {
		m.attempts.WithLabelValues(x.Provider, x.Model, "succeeded").Set(float64(x.Succeeded))
		m.attempts.WithLabelValues(x.Provider, x.Model, "cancelled").Set(float64(x.Cancelled))
		for code, n := range x.Errors {
			m.attempts.WithLabelValues(x.Provider, x.Model, code).Set(float64(n))
		}
	}
	for _, x := range spend {
		model := strings.TrimPrefix(x.By["model"], x.By["provider"]+"/")
		for kind, n := range map[string]int64{"input": x.InputTokens, "output": x.OutputTokens, "cached": x.CachedTokens, "reasoning": x.ReasoningTokens} {
			m.tokens.WithLabelValues(x.By["provider"], model, kind).Set(float64(n))
		}
		m.spent.WithLabelValues(x.By["provider"], model).Set(float64(x.USDMicros))
	}
}

func (m *metrics) handler(s *Service) echo.HandlerFunc {
	h := promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{})
	return func(c echo.Context) error {
		ctx, cancel := context.WithTimeout(c.Request().Context(), time.Second)
		defer cancel()
		for _, list := range s.readiness(ctx).Services {
			for _, d := range list {
				for _, p := range d.Parts {
					m.lag.WithLabelValues(d.Instance, p.Name).Set(float64(p.Lag))
				}
			}
		}
		m.models(ctx, s)
		h.ServeHTTP(c.Response(), c.Request())
		return nil
	}
}
