// Package body reads whole request bodies, bounded in size, rate, depth and total
// memory, and decodes them as strict JSON with errors that name the wrong member.
package body

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Limits of requests.
const (
	MaxHeader = 64 << 10        // maximum size of the header lines in bytes
	Max       = 16 << 20        // maximum size of a body in bytes; larger content belongs in an artifact
	bodyDrain = 2 * time.Second // time for the client to send the rest of a body that the handler did not read
)

// Limits bounds request bodies. A zero field means the default that its comment gives.
type Limits struct {
	Caller int64         // maximum number of bytes of one caller's bodies in memory; default 32 MiB
	Tenant int64         // quota of the caller's tenant: maximum number of bytes of its bodies in memory; default none
	All    int64         // maximum number of bytes of all callers' bodies in memory; default 64 MiB
	Rate   int64         // minimum rate in bytes per second; default 1024
	Window time.Duration // time over which the rate is measured; default 10 s
	Total  time.Duration // maximum time to read a body; default 2 min
}

// orDefault returns l with its zero fields set to the defaults.
func (l Limits) orDefault() Limits {
	return Limits{Caller: cmp.Or(l.Caller, 32<<20), Tenant: cmp.Or(l.Tenant, math.MaxInt64), All: cmp.Or(l.All, 64<<20), Rate: cmp.Or(l.Rate, 1<<10),
		Window: cmp.Or(l.Window, 10*time.Second), Total: cmp.Or(l.Total, 2*time.Minute)}
}

// bodyKey is the key of the body in an echo.Context, set once the whole body has been
// read.
const bodyKey = "body"

// Raw returns the body of a request as read by Budget.Read, or nil if none was read. The
// caller must not change it.
func Raw(c echo.Context) []byte {
	raw, _ := c.Get(bodyKey).([]byte)
	return raw
}

// Streamed records that the handler has read the whole body itself, so that the connection
// can be used for further requests.
func Streamed(c echo.Context) { c.Set(bodyKey, []byte{}) }

// Unread is middleware that closes the connection after the response to a request whose
// body was not read. The server would otherwise wait for the rest of the body before it
// responds.
func Unread(next echo.HandlerFunc) echo.HandlerFunc {
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

// Owner is the principal whose request bodies count together in a Budget.
type Owner struct{ Tenant, Actor string }

// Read reads the body of an owner's request within limits and within the budget b, and
// stores it for Raw and as the request's Body. The bytes of the body count in b until
// release is called, which the caller must do exactly once. Unless opaque is set, Read
// checks the nesting depth of the body as JSON. The error has status 400, 408, 413, 415
// or 429; after an error release is nil and the body does not count. A body is not read
// if its announced length exceeds a limit of its size or the rest of the tenant's quota.
func (b *Budget) Read(c echo.Context, limits Limits, owner Owner, opaque bool) (release func(), err error) {
	held := &hold{b: b, limits: limits.orDefault(), owner: owner}
	raw, err := read(c, held)
	if err == nil && !opaque {
		if e := canon.CheckDepth(raw); e != nil {
			err = apierr.BadRequest(apierr.WholeBody, e.Error())
		}
	}
	if err != nil {
		held.release()
		return nil, err
	}
	c.Request().Body = io.NopCloser(bytes.NewReader(raw))
	c.Request().ContentLength = int64(len(raw))
	return held.release, nil
}

// Held returns the number of bytes that count in b, and the number of callers whose
// bodies these are.
func (b *Budget) Held() (bytes int64, callers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.room.All(), len(b.callers)
}

// read reads a request's body. The buffer grows with the bytes received, not with the
// announced Content-Length.
func read(c echo.Context, held *hold) ([]byte, error) {
	r := c.Request()
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, &apierr.Error{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Code: contract.CodeEncodingUnsupported, Param: "Content-Encoding",
			Message: "content encodings are not supported; send the body as it is"}
	}
	if err := held.announced(r.ContentLength); err != nil {
		return nil, err
	}
	p := pace{rc: http.NewResponseController(c.Response()), limits: &held.limits}
	p.begin(time.Now())
	buf := make([]byte, 0, 4<<10)
	for {
		if len(buf) == cap(buf) {
			buf = append(make([]byte, 0, min(4*cap(buf), Max+1)), buf...)
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if len(buf) > Max {
			return nil, tooLarge(Max)
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

func readError(err error, l *Limits) error {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return &apierr.Error{Status: http.StatusRequestTimeout, Type: "invalid_request_error", Code: contract.CodeBodyTooSlow, Param: apierr.WholeBody,
			Message: fmt.Sprintf("the request body arrives too slowly: send at least %d bytes a second, and all of it within %s", l.Rate, l.Total)}
	}
	return apierr.BadRequest(apierr.WholeBody, "the request body could not be read")
}

func tooLarge(most int64) *apierr.Error {
	return &apierr.Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: contract.CodeBodyTooLarge, Param: apierr.WholeBody,
		Message: fmt.Sprintf("a request body has at most %d bytes", most)}
}

// pace enforces the minimum rate of a body with the read deadline of the connection:
// each byte received extends the deadline by 1/rate seconds, but never to more than one
// window from now or beyond the total time.
type pace struct {
	rc       *http.ResponseController
	limits   *Limits
	deadline time.Time // read deadline, as extended by each byte received
	inForce  time.Time // deadline of the connection, at most a tenth of a window before deadline
	last     time.Time // latest deadline: the start of the body plus Limits.Total
}

func (p *pace) begin(now time.Time) {
	p.last = now.Add(p.limits.Total)
	p.set(now.Add(p.limits.Window))
}

// came extends the deadline after n bytes were received. It sets the deadline of the
// connection only when the extensions since the last time exceed a tenth of the window.
func (p *pace) came(n int) {
	next := p.deadline.Add(time.Duration(int64(n) * int64(time.Second) / p.limits.Rate))
	if most := time.Now().Add(p.limits.Window); next.After(most) {
		next = most
	}
	if next.After(p.last) {
		next = p.last
	}
	p.deadline = next
	if next.Sub(p.inForce) > p.limits.Window/10 { // setting a deadline takes time
		p.set(next)
	}
}

func (p *pace) set(t time.Time) {
	p.deadline, p.inForce = t, t
	_ = p.rc.SetReadDeadline(t) // fails for a response recorder, which has no connection
}

// end removes the deadline, because the server reads from the connection while the
// handler runs.
func (p *pace) end() { _ = p.rc.SetReadDeadline(time.Time{}) }

// Budget counts the bytes of request bodies that a gateway holds in memory, and divides
// the memory among the tenants as fair.Room does. The count of the zero value is 0. It is
// safe for concurrent use.
type Budget struct {
	mu      sync.Mutex
	room    fair.Room
	callers map[Owner]int64
}

// hold counts the bytes of one request's body in a Budget.
type hold struct {
	b      *Budget
	limits Limits
	owner  Owner
	n      int64
}

// announced returns an error if a body of n bytes would be too large (413), or would
// exceed the quota of the tenant now (429). n is negative if the length is not known.
func (h *hold) announced(n int64) error {
	if most := min(Max, h.limits.Tenant); n > most {
		return tooLarge(most)
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	return h.quota(n)
}

// quota returns an error (429) if n more bytes would exceed the quota of the tenant. The
// caller holds Budget.mu.
func (h *hold) quota(n int64) error {
	if h.b.room.Of(h.owner.Tenant)+n <= h.limits.Tenant {
		return nil
	}
	return apierr.Quota(apierr.WholeBody, fmt.Sprintf("the quota of tenant %s is %d bytes of request bodies in flight at a gateway; send fewer at once", h.owner.Tenant, h.limits.Tenant), 1)
}

// take adds n bytes to the counts. If the count of the caller, of its tenant or of the
// gateway would then exceed its limit, or the tenant's part of the gateway's limit (see
// fair.Room), take adds nothing and returns an error (429).
func (h *hold) take(n int) error {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if h.b.callers == nil {
		h.b.callers = map[Owner]int64{}
	}
	if err := h.quota(int64(n)); err != nil {
		return err
	}
	switch {
	case h.b.callers[h.owner]+int64(n) > h.limits.Caller:
		return overBudget(fmt.Sprintf("more than %d bytes of the caller's request bodies are in flight; send fewer at once", h.limits.Caller))
	case !h.b.room.Take(h.owner.Tenant, int64(n), h.limits.All):
		return overBudget(fmt.Sprintf("more than %d bytes of request bodies, or more than the part of the tenant, would be in flight at this gateway; send the request again", h.limits.All))
	}
	h.n += int64(n)
	h.b.callers[h.owner] += int64(n)
	return nil
}

func (h *hold) release() {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if h.n == 0 {
		return
	}
	h.b.room.Give(h.owner.Tenant, h.n)
	if h.b.callers[h.owner] -= h.n; h.b.callers[h.owner] <= 0 {
		delete(h.b.callers, h.owner)
	}
}

func overBudget(message string) *apierr.Error {
	return &apierr.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeBodyBudgetExceeded, Param: apierr.WholeBody, Message: message, RetryAfter: "1"}
}
