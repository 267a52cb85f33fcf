// Package health serves the liveness, readiness and version of the gateway. Requests
// that API.Insider accepts also receive the state of the mesh's services.
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
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API serves liveness, readiness and version. Its exported fields are set before its
// first use.
type API struct {
	Instance   string
	Version    string
	Durability string   // durability mode that /readyz reports
	Expect     []string // services that must have a healthy instance
	Gate       *auth.Gate
	Ledger     eventlog.Log
	Queries    *rpc.Client
	Live       func(ctx context.Context, service string) ([]string, error) // returns the instances of a service that hold a lease
	Health     func(context.Context) []run.Health                          // returns the health of the parts of this instance

	now Cached[Readiness]
}

// VersionOf handles GET /version. It responds with the release and the source that the
// gateway was built from.
func (s *API) VersionOf(c echo.Context) error { return c.JSON(http.StatusOK, run.BuildOf(s.Version)) }

// Liveness is the body of /healthz.
type Liveness struct {
	Instance string `json:"instance"`
	Status   string `json:"status"` // "alive"
	Version  string `json:"version"`
}

// Alive handles GET /healthz. It responds with 200 as long as the process serves
// requests.
func (s *API) Alive(c echo.Context) error {
	return c.JSON(http.StatusOK, Liveness{Status: "alive", Instance: s.Instance, Version: s.Version})
}

// Readiness is the body of /readyz. Callers that may not read the details receive only
// the member ready.
type Readiness struct {
	Ready      bool                    `json:"ready"`
	Durability string                  `json:"durability,omitempty"`
	Instance   string                  `json:"instance,omitempty"`
	Services   map[string][]Dependency `json:"services,omitempty"`
	Missing    []string                `json:"missing,omitempty"`
}

// Dependency is the state of one live instance and of its parts.
type Dependency struct {
	Instance string       `json:"instance"`
	OK       bool         `json:"ok"`
	Detail   string       `json:"detail,omitempty"`
	Parts    []run.Health `json:"parts"`
}

// Times for which readiness is cached. The time is shorter while the mesh is not ready,
// so that its readiness is reported soon after a start.
const (
	readyFor    = time.Second
	notReadyFor = 50 * time.Millisecond
)

// Cached caches a computed value for a limited time. It is safe for concurrent use.
type Cached[T any] struct {
	mu    sync.Mutex
	until time.Time
	value T
}

// Get returns the cached value. If it has expired, Get first computes a new one with f,
// which returns the value and the time for which it may be cached. The context of f has
// the timeout within and does not depend on the request that caused the computation.
// Concurrent callers wait for the computation.
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

// readyWithin is the time limit of the computation of readiness. Its parts run concurrently,
// so each has the whole time.
const readyWithin = 2 * time.Second

// Now returns the readiness of the mesh. It is computed at most once a second, or once
// in 50 ms while the mesh is not ready. The computation, for which callers wait, has the
// timeout readyWithin. The caller must not change the maps and slices of the result, which
// other callers receive too.
func (s *API) Now() Readiness {
	return s.now.Get(readyWithin, func(ctx context.Context) (Readiness, time.Duration) {
		r := s.readiness(ctx)
		if r.Ready {
			return r, readyFor
		}
		return r, notReadyFor
	})
}

// Insider returns nil if a request may read the state of the mesh, and otherwise an
// error. The request may do so if it comes from this host and no header shows that a
// proxy forwarded it, or if its credential has the scope health:read and is of the tenant
// of the mesh's own events, and its principal is not suspended. The principal need not be
// an operator, so that a monitoring system can have a credential that permits nothing
// else.
func (s *API) Insider(c echo.Context) error {
	r := c.Request()
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil && net.ParseIP(host).IsLoopback() && r.Header.Get("X-Forwarded-For")+r.Header.Get("Forwarded")+r.Header.Get("Via") == "" {
		return nil
	}
	who, err := s.Gate.Caller(c, token.Health)
	if err != nil {
		return err
	}
	if who.Tenant != s.Gate.Tenants.Tenant() {
		return &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.CodeScopeMissing,
			Message: "the token is of tenant " + who.Tenant + "; the state of the mesh is for tokens of tenant " + s.Gate.Tenants.Tenant()}
	}
	return s.Gate.Suspended(who.Tenant, who.Actor)
}

// Ready handles GET /readyz. It responds with 200 if the mesh accepts calls, or else
// 503. Only requests that Insider accepts receive the details.
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

// readiness determines the health of this instance and of all instances of the expected
// services, and the position of the newest tool, concurrently: a part that does not respond
// takes no time from another. The mesh is ready if this gateway instance and at least one
// instance of each of these services are healthy, the ledger can be read, and catalogLag
// returns "". An instance that does not respond is not healthy, and has no effect on
// catalogLag.
func (s *API) readiness(ctx context.Context) Readiness {
	r := Readiness{Durability: s.Durability, Instance: s.Instance, Services: map[string][]Dependency{}, Missing: []string{}}
	var parts sync.WaitGroup
	var own []run.Health
	parts.Go(func() { own = s.Health(ctx) })
	var newest uint64
	var unread error
	parts.Go(func() { newest, unread = s.newestTool(ctx) })
	found := make([][]Dependency, len(s.Expect))
	for i, service := range s.Expect {
		parts.Go(func() { found[i] = s.instances(ctx, service) })
	}
	parts.Wait()
	r.Services["gateway"] = []Dependency{dependency(s.Instance, own, nil)}
	for i, service := range s.Expect {
		if len(found[i]) == 0 {
			r.Missing = append(r.Missing, service)
			continue
		}
		r.Services[service] = found[i]
	}
	if unread != nil {
		r.Missing = append(r.Missing, "the ledger: "+unread.Error())
	} else if lag := catalogLag(newest, r.Services); lag != "" {
		r.Missing = append(r.Missing, lag)
	}
	r.Ready = len(r.Missing) == 0 && r.allServe()
	return r
}

// instances queries the health of the instances of a service that hold a lease,
// concurrently, and returns them in the order of Live. The result is empty if the leases
// cannot be read.
func (s *API) instances(ctx context.Context, service string) []Dependency {
	names, err := s.Live(ctx, service)
	if err != nil {
		return nil
	}
	out := make([]Dependency, len(names))
	var each sync.WaitGroup
	for i, name := range names {
		each.Go(func() {
			parts, err := rpc.Do(ctx, s.Queries.To(name), query.HealthQuery.Of(service), query.HealthRequest{})
			out[i] = dependency(name, append([]run.Health{}, parts.Value...), err)
		})
	}
	each.Wait()
	return out
}

// dependency returns the state of an instance from the health of its parts, or from the
// error of the query for it.
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

// allServe reports whether each service with live instances has at least one healthy
// instance.
func (r *Readiness) allServe() bool {
	for _, list := range r.Services {
		if !slices.ContainsFunc(list, func(d Dependency) bool { return d.OK }) {
			return false
		}
	}
	return true
}

// newestTool returns the ledger sequence of the newest registration or retirement of a
// tool, or 0 if there is none.
func (s *API) newestTool(ctx context.Context) (newest uint64, err error) {
	for _, name := range []string{contract.EventToolRegistered, contract.EventToolRetired} {
		en, err := s.Ledger.Last(ctx, bus.Filter{Event: name}.String())
		if err == nil {
			newest = max(newest, en.Seq)
		} else if !errors.Is(err, eventlog.ErrNotFound) {
			return 0, err
		}
	}
	return newest, nil
}

// catalogLag returns a message about a gateway or policy instance that has responded and
// has not applied the entry newest, a registration or retirement of a tool; such an
// instance might not find the tool. Otherwise catalogLag returns "".
func catalogLag(newest uint64, services map[string][]Dependency) string {
	for _, list := range services {
		for _, d := range list {
			for _, p := range d.Parts {
				if (p.Name == "policy.state" || p.Name == "gateway.catalog") && p.Position < newest {
					return d.Instance + " has not applied the newest registration or retirement of a tool yet"
				}
			}
		}
	}
	return ""
}
