package gateway

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

func (s *Service) healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "alive", "instance": s.env.Instance, "version": s.Version})
}

// Readiness is the body of /readyz. Callers without the right to details get
// Ready alone.
type Readiness struct {
	Ready      bool                    `json:"ready"`
	Durability string                  `json:"durability,omitempty"`
	Instance   string                  `json:"instance,omitempty"`
	Services   map[string][]Dependency `json:"services,omitempty"`
	Missing    []string                `json:"missing,omitempty"`
}

// Dependency is one live instance and its parts.
type Dependency struct {
	Instance string       `json:"instance"`
	OK       bool         `json:"ok"`
	Detail   string       `json:"detail,omitempty"`
	Parts    []run.Health `json:"parts"`
}

// How long a readiness is cached. What is not ready is looked at again soon: a
// start should not wait for it.
const (
	readyFor    = time.Second
	notReadyFor = 50 * time.Millisecond
)

// cached computes a value at most once in a time, for any number of callers.
type cached[T any] struct {
	mu    sync.Mutex
	until time.Time
	value T
}

// get returns the value, computed by f if its time is over; f returns how long
// the value may be used. f does not end with the request that happened to need
// it.
func (c *cached[T]) get(within time.Duration, f func(context.Context) (T, time.Duration)) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().After(c.until) {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		var ttl time.Duration
		c.value, ttl = f(ctx)
		c.until = time.Now().Add(ttl)
	}
	return c.value
}

func (s *Service) ready() Readiness {
	return s.readyNow.get(2*time.Second, func(ctx context.Context) (Readiness, time.Duration) {
		r := s.readiness(ctx)
		if r.Ready {
			return r, readyFor
		}
		return r, notReadyFor
	})
}

// insider reports whether a request may read the state of the mesh: its peer is this
// host, and not as a proxy for another, or it holds health:read.
func (s *Service) insider(c echo.Context) error {
	r := c.Request()
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil && net.ParseIP(host).IsLoopback() && r.Header.Get("X-Forwarded-For")+r.Header.Get("Forwarded")+r.Header.Get("Via") == "" {
		return nil
	}
	_, err := s.auth(c, token.Health)
	return err
}

// readyz answers anyone whether the mesh takes calls, and insiders in detail.
func (s *Service) readyz(c echo.Context) error {
	r := s.ready()
	if s.insider(c) != nil {
		r = Readiness{Ready: r.Ready}
	}
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
				if err := s.env.Box.AskOne(ctx, service, name, "health", nil, &d.Parts); err != nil {
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

// Label values come from closed or capped sets: callers invent kinds, models and
// paths without end, and each value costs memory for good.
var (
	families = []string{"audit", "client", "judge", "lab", "llm", "policy", "tool", "vault", "work"}
	outcomes = []string{contract.Succeeded, contract.Failed, contract.Denied, contract.Expired, contract.TimedOut, contract.Cancelled, contract.Unknown, contract.DeadLettered,
		"escalated", "none"}
)

// Caps of what other services report.
const (
	maxModels = 100 // provider and model, those of the most attempts; the rest are one
	maxCodes  = 64  // error codes of attempts
	maxParts  = 500 // instances and their parts
)

const otherLabel = "other"

func oneOf(set []string, v string) string {
	if slices.Contains(set, v) {
		return v
	}
	return otherLabel
}

func family(kind string) string {
	prefix, _, _ := strings.Cut(kind, ".")
	return oneOf(families, prefix)
}

func (m *metrics) count(kind, status string) {
	m.calls.WithLabelValues(family(kind), oneOf(outcomes, status)).Inc()
}

func (m *metrics) observe(kind, status string, d time.Duration) {
	m.count(kind, status)
	m.latency.WithLabelValues(family(kind)).Observe(d.Seconds())
}

func (m *metrics) middleware(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		if err != nil {
			c.Error(err)
		}
		m.requests.WithLabelValues(routeOf(c), strconv.Itoa(c.Response().Status)).Inc()
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
	top := busiest(stats)
	label := func(provider, model string) (string, string) {
		if k := [2]string{provider, model}; top[k] {
			return provider, model
		}
		return otherLabel, otherLabel
	}
	codes := map[string]bool{}
	m.attempts.Reset()
	m.tokens.Reset()
	m.spent.Reset()
	for _, x := range stats {
		p, model := label(x.Provider, x.Model)
		m.attempts.WithLabelValues(p, model, "succeeded").Add(float64(x.Succeeded))
		m.attempts.WithLabelValues(p, model, "cancelled").Add(float64(x.Cancelled))
		for code, n := range x.Errors {
			if !codes[code] && len(codes) == maxCodes {
				code = otherLabel
			}
			codes[code] = true
			m.attempts.WithLabelValues(p, model, code).Add(float64(n))
		}
	}
	for _, x := range spend {
		p, model := label(x.By["provider"], strings.TrimPrefix(x.By["model"], x.By["provider"]+"/"))
		for kind, n := range map[string]int64{"input": x.InputTokens, "output": x.OutputTokens, "cached": x.CachedTokens, "reasoning": x.ReasoningTokens} {
			m.tokens.WithLabelValues(p, model, kind).Add(float64(n))
		}
		m.spent.WithLabelValues(p, model).Add(float64(x.USDMicros))
	}
}

// busiest are the models that have labels of their own.
func busiest(stats []llm.ModelStats) map[[2]string]bool {
	stats = slices.Clone(stats)
	slices.SortFunc(stats, func(a, b llm.ModelStats) int {
		return cmp.Or(cmp.Compare(b.Attempts, a.Attempts), strings.Compare(a.Provider, b.Provider), strings.Compare(a.Model, b.Model))
	})
	out := map[[2]string]bool{}
	for _, x := range stats[:min(len(stats), maxModels)] {
		out[[2]string{x.Provider, x.Model}] = true
	}
	return out
}

// lags brings the figures of views up to date.
func (m *metrics) lags(r Readiness) {
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

// handler is GET /metrics, for insiders.
func (m *metrics) handler(s *Service) echo.HandlerFunc {
	h := promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{})
	return func(c echo.Context) error {
		if err := s.insider(c); err != nil {
			return err
		}
		r := s.ready()
		s.figures.get(time.Second, func(ctx context.Context) (struct{}, time.Duration) {
			m.lags(r)
			m.models(ctx, s)
			return struct{}{}, readyFor
		})
		h.ServeHTTP(c.Response(), c.Request())
		return nil
	}
}
