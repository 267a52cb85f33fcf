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
	"github.com/binnacle-mesh/binnacle/pkg/sse"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// Failure is the error of an attempt that failed or of a stream that broke. The row of
// its code in fault.Table determines its consequences.
type Failure struct {
	Code    string        // one of the codes in package fault
	Status  int           // the provider's HTTP status, or one that the router assigned; 0 = none
	Message string        // explanation for people, without the provider's error if the row is Hidden; it contains no key if Do returned the failure
	Detail  string        // for the operator's log only: the provider's error if the row is Hidden; may contain a key
	Retry   time.Duration // wait that the provider requires; 0 = none
	Fault   *ir.Fault     // the provider's own error, or one that the router wrote for the caller; may be nil
	Body    []byte        // body of the provider's error response, with the key removed; may be nil
	Headers http.Header
	Taken   bool // the provider may have accepted the request, and may bill it

	Overloaded bool // Status means that the provider is overloaded
}

// Error implements error. It returns Message.
func (f *Failure) Error() string { return f.Message }

// Row returns the consequences of the failure: how the call continues, and the effects
// on the caller, the key and the bill.
func (f *Failure) Row() *fault.Row { return fault.Of(f.Code) }

// Free reports whether the provider bills nothing for the attempt, according to the row
// of its code and to Taken.
func (f *Failure) Free() bool { return f.Row().Free(f.Taken) }

// fail returns a failure with this code, whose message is the word provider, the
// provider's name and what.
func (p *Provider) fail(code, what string) *Failure {
	return &Failure{Code: code, Message: "provider " + p.Name + what}
}

// broken returns the failure of a request without a response: fault.Timeout if a time
// limit ended it, or else fault.Unreachable. With fault.Unreachable, Taken is set unless
// the dial failed, because a failed dial means that nothing was sent.
func (p *Provider) broken(ctx context.Context, err error, key string) *Failure {
	var ne net.Error
	if errors.Is(context.Cause(ctx), errSilent) || errors.As(err, &ne) && ne.Timeout() {
		return p.fail(fault.Timeout, " did not respond in time")
	}
	f := p.fail(fault.Unreachable, " did not respond: "+scrub(err.Error(), key))
	var op *net.OpError
	f.Taken = !errors.As(err, &op) || op.Op != "dial"
	return f
}

// begun returns the failure of a response that began with a success status. The provider
// may therefore bill the attempt.
func (p *Provider) begun(code, what string) *Failure {
	f := p.fail(code, what)
	f.Status, f.Taken = http.StatusOK, true
	return f
}

// cut returns the failure of a response whose reading failed with err. ctx is the
// context that Do made for the request; its cause shows whether a time limit ended the
// response.
func (p *Provider) cut(ctx context.Context, err error) *Failure {
	if errors.Is(context.Cause(ctx), errSilent) {
		return p.begun(fault.Timeout, " stopped sending before the end of its response")
	}
	if errors.Is(err, sse.ErrTooLarge) || errors.Is(err, ErrDeep) {
		return p.begun(fault.Malformed, ": "+err.Error())
	}
	return p.begun(fault.Cut, " ended its response before it was complete")
}

// Malformed returns the failure of a response that cannot be decoded or is too large.
// The message is the word provider, the provider's name and what.
func (p *Provider) Malformed(what string) *Failure { return p.begun(fault.Malformed, " "+what) }

// Said returns the failure of a stream in which the provider sent an error. Its message
// or detail may contain a key that the error quotes.
func (p *Provider) Said(e *ir.Fault) *Failure {
	f := &Failure{Code: fault.ByStatus(e.Status), Status: e.Status, Fault: e, Retry: atMost(float64(e.RetryMS) * float64(time.Millisecond)), Taken: true,
		Overloaded: p.registry.Overloaded(e.Status)}
	f.explain("provider "+p.Name+" ended its stream with an error", e.Message)
	return f
}

// explain sets the message: what, and the text of the provider's error. If the row is
// Hidden, the text becomes the detail instead, since it concerns the router's key and
// may quote a part of that key.
func (f *Failure) explain(what, text string) {
	if f.Row().Hidden {
		f.Message, f.Detail = what+": it refused the router's key; the log of llm-router has the reason", text
		return
	}
	f.Message = what + ": " + text
}

// maxMessage is the maximum number of bytes of an error response that are quoted if its
// dialect finds no message in it.
const maxMessage = 512

// refused returns the failure for a response with a status from 300.
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
		Overloaded: p.registry.Overloaded(resp.StatusCode)}
	f.explain(fmt.Sprintf("provider %s responded with status %d", p.Name, resp.StatusCode), e.Message)
	if f.Retry = retryAfter(resp.Header); f.Retry == 0 {
		f.Retry = atMost(float64(e.RetryMS) * float64(time.Millisecond))
	}
	return f
}

// retryAfter returns the wait that OpenAI's retry-after-ms, or else Retry-After (RFC
// 9110, section 10.2.3), requires. It returns 0 if neither requires one.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return atMost(ms * float64(time.Millisecond))
	}
	v := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(v, 64); err == nil && s > 0 {
		return atMost(s * float64(time.Second))
	}
	if t, err := http.ParseTime(v); err == nil {
		return atMost(float64(time.Until(t)))
	}
	return 0
}

// maxRetry is the maximum of Failure.Retry. A provider that requires more is treated as
// one that requires this.
const maxRetry = 365 * 24 * time.Hour

// atMost converts a number of nanoseconds to a time between 0 and maxRetry.
func atMost(ns float64) time.Duration {
	return time.Duration(min(max(ns, 0), float64(maxRetry)))
}

// scrub removes a provider's key, in every encoding that package redact covers, from a
// text.
func scrub(s, key string) string { return (*redact.Redactor)(nil).With("provider-key", key).String(s) }
