package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/sse"
)

// Failure is an attempt that failed, or a stream that broke. What it means is in
// the row of its code in fault.Table.
type Failure struct {
	Code    string // of package fault
	Status  int    // the provider's HTTP status, 0 if none came
	Message string // for people; holds no key
	Retry   time.Duration
	Fault   *ir.Fault // the provider's own error, if it sent one
	Body    []byte    // of the provider's response, without the key
	Headers http.Header
	Taken   bool // the provider may have taken the request up, and bill it
}

// Error implements error. It returns the message for people, which names the
// provider and no key.
func (f *Failure) Error() string { return f.Message }

// Row is what the failure means: whether and where the call goes on, and what the
// caller, the key and the bill get of it.
func (f *Failure) Row() *fault.Row { return fault.Of(f.Code) }

// Free reports whether the provider bills nothing for the attempt, by the row of
// its code and whether the request was taken up.
func (f *Failure) Free() bool { return f.Row().Free(f.Taken) }

func (p *Provider) fail(code, what string) *Failure {
	return &Failure{Code: code, Message: "provider " + p.Name + what}
}

// broken is the failure of a request without a response. A dial that failed sent
// nothing.
func (p *Provider) broken(ctx context.Context, err error, key string) *Failure {
	var ne net.Error
	if errors.Is(context.Cause(ctx), errSilent) || errors.As(err, &ne) && ne.Timeout() {
		return p.fail(fault.Timeout, " did not answer in time")
	}
	f := p.fail(fault.Unreachable, " did not answer: "+scrub(err.Error(), key))
	var op *net.OpError
	f.Taken = !errors.As(err, &op) || op.Op != "dial"
	return f
}

func (p *Provider) begun(code, what string) *Failure {
	f := p.fail(code, what)
	f.Status, f.Taken = http.StatusOK, true
	return f
}

// Cut is the failure of an answer that broke off with err. ctx is that of the
// request: its cause says whether the provider fell silent.
func (p *Provider) Cut(ctx context.Context, err error) *Failure {
	if errors.Is(context.Cause(ctx), errSilent) {
		return p.begun(fault.Timeout, " fell silent before the end of its answer")
	}
	if errors.Is(err, sse.ErrTooLarge) || errors.Is(err, ErrDeep) {
		return p.begun(fault.Malformed, ": "+err.Error())
	}
	return p.begun(fault.Cut, " cut its answer before the end")
}

// Malformed is the failure of an answer that cannot be read; what continues the
// sentence that begins with the provider's name.
func (p *Provider) Malformed(what string) *Failure { return p.begun(fault.Malformed, " "+what) }

// Said is the failure of a stream in which the provider reported an error.
func (p *Provider) Said(e *ir.Fault) *Failure {
	return &Failure{Code: fault.ByStatus(e.Status), Status: e.Status, Fault: e, Retry: time.Duration(e.RetryMS) * time.Millisecond, Taken: true,
		Message: "provider " + p.Name + " ended its stream with an error: " + e.Message}
}

// maxMessage bounds, in bytes, what is quoted of an error that no dialect can read.
const maxMessage = 512

// refused is the failure of a request that the provider answered with an error
// status.
func (p *Provider) refused(c *Call, resp *http.Response, body []byte) *Failure {
	if canon.CheckDepth(body) != nil {
		body = nil
	}
	e := c.API.Fault(resp.StatusCode, resp.Header.Get, body)
	if e.Message == "" {
		e.Message = strings.ToValidUTF8(strings.TrimSpace(string(body[:min(len(body), maxMessage)])), "\uFFFD")
	}
	e.Message = scrub(e.Message, c.Key)
	f := &Failure{Code: fault.ByStatus(resp.StatusCode), Status: resp.StatusCode, Fault: e, Body: []byte(scrub(string(body), c.Key)), Headers: resp.Header,
		Message: fmt.Sprintf("provider %s answered %d: %s", p.Name, resp.StatusCode, e.Message)}
	if f.Retry = retryAfter(resp.Header); f.Retry == 0 {
		f.Retry = time.Duration(e.RetryMS) * time.Millisecond
	}
	return f
}

// retryAfter reads Retry-After (RFC 9110, 10.2.3) and OpenAI's retry-after-ms.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	v := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(v, 64); err == nil && s > 0 {
		return time.Duration(s * float64(time.Second))
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(time.Until(t), 0)
	}
	return 0
}

// scrub removes a provider's key, in every spelling, from what it sent.
func scrub(s, key string) string { return (*redact.Redactor)(nil).With("provider-key", key).String(s) }
