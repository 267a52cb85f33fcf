package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// Limits of requests.
const (
	maxHeader = 64 << 10        // bytes of header lines
	maxBody   = 16 << 20        // bytes of a body; content above it belongs in an artifact
	bodyDrain = 2 * time.Second // for the rest of a body that is not read
)

// BodyLimits bounds request bodies. A zero field is its default.
type BodyLimits struct {
	Caller int64         // bytes of one caller's bodies held at once; 32 MiB
	All    int64         // bytes of all callers' bodies held at once; 64 MiB
	Rate   int64         // bytes a second, the least a body must bring; 1024
	Window time.Duration // over which the rate is counted; 10 s
	Total  time.Duration // the most that a body may take; 2 min
}

func (l BodyLimits) orDefault() BodyLimits {
	return BodyLimits{Caller: cmp.Or(l.Caller, 32<<20), All: cmp.Or(l.All, 64<<20), Rate: cmp.Or(l.Rate, 1<<10),
		Window: cmp.Or(l.Window, 10*time.Second), Total: cmp.Or(l.Total, 2*time.Minute)}
}

// Keys of an echo.Context.
const (
	callerKey = "caller" // *caller, once verified
	routeKey  = "route"  // set where a route matched
	bodyKey   = "body"   // []byte, once read to its end
)

// enter is what every request passes before its handler: credential, scope,
// and then the body, whole, bounded in size, pace, depth and sum. The handler
// reads it from memory.
func (s *Service) enter(n need, handle echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Set(routeKey, true)
		if !n.caller { // open routes take no body
			return handle(c)
		}
		who, err := s.auth(c, "")
		if err != nil {
			return err
		}
		if lacks := n.missing(who); lacks != "" {
			return scopeMissing(lacks)
		}
		// Policy denies the calls of a suspended principal, for the record; queries
		// and streams end here.
		if !governed(c) && s.authority.barred(who.actor) {
			return errSuspended(who.actor)
		}
		c.Set(callerKey, who)
		if c.Request().ContentLength == 0 {
			return handle(c)
		}
		held := &hold{b: &s.bodies, limits: s.Bodies.orDefault(), actor: who.actor}
		defer held.release()
		raw, err := readBody(c, held)
		if err != nil {
			return err
		}
		if err := canon.CheckDepth(raw); err != nil && !n.opaque {
			return badRequest(wholeBody, err.Error())
		}
		c.Request().Body = io.NopCloser(bytes.NewReader(raw))
		c.Request().ContentLength = int64(len(raw))
		return handle(c)
	}
}

// governed reports whether a request becomes a call, which policy decides.
func governed(c echo.Context) bool {
	return c.Request().Method != http.MethodGet && c.Path() != "/mcp" && c.Path() != "/log/cosignatures"
}

// rawBody is the request's body, read by enter; nil without one.
func rawBody(c echo.Context) []byte {
	raw, _ := c.Get(bodyKey).([]byte)
	return raw
}

// unreadBody closes the connection after the response to a request whose body
// was not read: the server would otherwise wait for the rest before it answers.
func unreadBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().ContentLength == 0 {
			return next(c)
		}
		c.Response().Before(func() {
			if c.Get(bodyKey) == nil {
				c.Response().Header().Set("Connection", "close")
				_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Now().Add(bodyDrain))
			}
		})
		return next(c)
	}
}

// readBody reads a request's body. Memory grows with what has arrived, never
// with what was announced.
func readBody(c echo.Context, held *hold) ([]byte, error) {
	r := c.Request()
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, &apiError{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Code: "encoding_unsupported", Param: "Content-Encoding",
			Message: "content encodings are not supported; send the body as it is"}
	}
	if r.ContentLength > maxBody {
		return nil, tooLarge()
	}
	p := pace{rc: http.NewResponseController(c.Response()), limits: &held.limits}
	p.begin(time.Now())
	buf := make([]byte, 0, 4<<10)
	for {
		if len(buf) == cap(buf) {
			buf = append(make([]byte, 0, min(4*cap(buf), maxBody+1)), buf...)
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if len(buf) > maxBody {
			return nil, tooLarge()
		}
		if e := held.take(n); e != nil {
			return nil, e
		}
		if err == io.EOF {
			p.end()
			c.Set(bodyKey, buf)
			return buf, nil
		}
		if err != nil {
			return nil, readError(err, &held.limits)
		}
		p.came(n)
	}
}

func readError(err error, l *BodyLimits) error {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return &apiError{Status: http.StatusRequestTimeout, Type: "invalid_request_error", Code: "body_too_slow", Param: wholeBody,
			Message: fmt.Sprintf("the request body comes too slowly: send at least %d bytes a second, and all of it within %s", l.Rate, l.Total)}
	}
	return badRequest(wholeBody, "the request body could not be read")
}

func tooLarge() *apiError {
	return &apiError{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "body_too_large", Param: wholeBody,
		Message: fmt.Sprintf("a request body has at most %d bytes", maxBody)}
}

// pace bounds how slowly a body may come: each byte moves the deadline by its
// share of the rate, but never past one window from now nor past the total.
type pace struct {
	rc       *http.ResponseController
	limits   *BodyLimits
	deadline time.Time
	last     time.Time // that deadline can ever be
}

func (p *pace) begin(now time.Time) {
	p.last = now.Add(p.limits.Total)
	p.set(now.Add(p.limits.Window))
}

func (p *pace) came(n int) {
	next := p.deadline.Add(time.Duration(int64(n) * int64(time.Second) / p.limits.Rate))
	if most := time.Now().Add(p.limits.Window); next.After(most) {
		next = most
	}
	if next.After(p.last) {
		next = p.last
	}
	if next.Sub(p.deadline) > p.limits.Window/10 { // setting a deadline is not free
		p.set(next)
	}
}

func (p *pace) set(t time.Time) {
	p.deadline = t
	_ = p.rc.SetReadDeadline(t) // a response recorder has no connection
}

// end lifts the deadline: the server watches the connection while the handler
// runs.
func (p *pace) end() { _ = p.rc.SetReadDeadline(time.Time{}) }

// bodies counts the bytes of request bodies that are held now.
type bodies struct {
	mu      sync.Mutex
	all     int64
	callers map[string]int64
}

// hold is one request's share.
type hold struct {
	b      *bodies
	limits BodyLimits
	actor  string
	n      int64
}

func (h *hold) take(n int) error {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if h.b.callers == nil {
		h.b.callers = map[string]int64{}
	}
	h.n += int64(n)
	h.b.all += int64(n)
	h.b.callers[h.actor] += int64(n)
	switch {
	case h.b.callers[h.actor] > h.limits.Caller:
		return overBudget(fmt.Sprintf("more than %d bytes of the caller's request bodies are in flight; send fewer at once", h.limits.Caller))
	case h.b.all > h.limits.All:
		return overBudget(fmt.Sprintf("more than %d bytes of request bodies are in flight at this gateway; send the request again", h.limits.All))
	}
	return nil
}

func (h *hold) release() {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	h.b.all -= h.n
	if h.b.callers[h.actor] -= h.n; h.b.callers[h.actor] <= 0 {
		delete(h.b.callers, h.actor)
	}
}

func overBudget(message string) *apiError {
	return &apiError{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "body_budget_exceeded", Param: wholeBody, Message: message, RetryAfter: "1"}
}

func scopeMissing(scope string) *apiError {
	return &apiError{Status: http.StatusForbidden, Type: "permission_error", Code: "scope_missing", Message: "the token lacks scope " + scope}
}
