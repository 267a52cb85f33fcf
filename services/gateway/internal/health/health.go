// Package health tells whether the mesh takes calls, to anyone, and the state of its
// parts, to insiders.
package health

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API tells whether the mesh takes calls. Its exported fields are set before its
// first use.
type API struct {
	Tenant     string
	Instance   string
	Version    string
	Durability string   // mode named in /readyz
	Expect     []string // services that must be live
	Gate       *auth.Gate
	Ledger     eventlog.Log
	Conn       *bus.Conn
	Queries    *rpc.Client
	Health     func(context.Context) []run.Health // of this instance

	now Cached[Readiness]
}

// VersionOf is GET /version.
func (s *API) VersionOf(c echo.Context) error { return c.JSON(http.StatusOK, run.BuildOf(s.Version)) }

// Alive is GET /healthz.
func (s *API) Alive(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "alive", "instance": s.Instance, "version": s.Version})
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

// Cached computes a value at most once in a time, for any number of callers.
type Cached[T any] struct {
	mu    sync.Mutex
	until time.Time
	value T
}

// Get returns the value, computed by f if its time is over; f returns how long
// the value may be used. f does not end with the request that happened to need
// it.
func (c *Cached[T]) Get(within time.Duration, f func(context.Context) (T, time.Duration)) T {
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

// Now is how ready the mesh is. It is computed at most once a second, or every 50 ms
// while the mesh is not ready, for any number of callers; the caller of the moment
// waits up to two seconds for the instances of all services.
func (s *API) Now() Readiness {
	return s.now.Get(2*time.Second, func(ctx context.Context) (Readiness, time.Duration) {
		r := s.readiness(ctx)
		if r.Ready {
			return r, readyFor
		}
		return r, notReadyFor
	})
}

// Insider reports whether a request may read the state of the mesh: its peer is this
// host, and not as a proxy for another, or it holds health:read.
func (s *API) Insider(c echo.Context) error {
	r := c.Request()
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil && net.ParseIP(host).IsLoopback() && r.Header.Get("X-Forwarded-For")+r.Header.Get("Forwarded")+r.Header.Get("Via") == "" {
		return nil
	}
	_, err := s.Gate.Caller(c, token.Health)
	return err
}

// Ready is GET /readyz: it answers anyone whether the mesh takes calls, and insiders in detail.
func (s *API) Ready(c echo.Context) error {
	r := s.Now()
	if s.Insider(c) != nil {
		r = Readiness{Ready: r.Ready}
	}
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
		c.Response().Header().Set("Retry-After", "1")
	}
	return c.JSON(status, r)
}

// readiness queries every instance of the services that are expected, at once.
func (s *API) readiness(ctx context.Context) Readiness {
	r := Readiness{Ready: true, Durability: s.Durability, Instance: s.Instance, Services: map[string][]Dependency{}, Missing: []string{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	r.Services["gateway"] = []Dependency{dependency(s.Instance, s.Health(ctx), nil)}
	for _, service := range s.Expect {
		names, err := bus.Live(ctx, s.Conn, service)
		if err != nil || len(names) == 0 {
			r.Missing = append(r.Missing, service)
			continue
		}
		for _, name := range names {
			wg.Go(func() {
				parts, err := rpc.Do(ctx, s.Queries.To(name), query.HealthQuery.Of(service), query.HealthRequest{})
				d := dependency(name, append([]run.Health{}, parts.Value...), err)
				mu.Lock()
				defer mu.Unlock()
				r.Services[service] = append(r.Services[service], d)
			})
		}
	}
	wg.Wait()
	if lag := s.catalogLag(ctx, r.Services); lag != "" {
		r.Missing = append(r.Missing, lag)
	}
	r.Ready = len(r.Missing) == 0 && r.allServe()
	return r
}

// dependency is an instance with the parts that it reported, or why it did not.
func dependency(instance string, parts []run.Health, err error) Dependency {
	d := Dependency{Instance: instance, OK: err == nil, Parts: parts}
	if err != nil {
		d.Detail = err.Error()
	}
	for _, p := range parts {
		d.OK = d.OK && p.OK
	}
	return d
}

// allServe reports whether each service has an instance that works.
func (r *Readiness) allServe() bool {
	for _, list := range r.Services {
		if !slices.ContainsFunc(list, func(d Dependency) bool { return d.OK }) {
			return false
		}
	}
	return true
}

// catalogLag names a reader of the catalog that has not seen the newest
// registration yet: it would not know a tool that is there.
func (s *API) catalogLag(ctx context.Context, services map[string][]Dependency) string {
	newest := uint64(0)
	for _, name := range []string{contract.EventToolRegistered, contract.EventToolRetired} {
		en, err := s.Ledger.Last(ctx, bus.Filter{Tenant: s.Tenant, Event: name}.String())
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
