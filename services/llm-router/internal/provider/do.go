package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/sse"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
)

// Answer is a successful response of a provider: a stream, or a body that has been read
// in full. It is not safe for concurrent use. The caller must close it.
type Answer struct {
	Status  int
	Headers http.Header
	Body    []byte        // complete body; nil for a stream
	First   time.Duration // time until the response header was received
	stream  dialect.Source
	body    io.Closer
	idle    *idle
	cut     func(error) *Failure
}

// Cut returns the failure of a stream for which Next returned err. Its code is
// fault.Timeout if the provider was silent for too long, fault.Malformed if an event was
// too large or nested too deep, or else fault.Cut.
func (a *Answer) Cut(err error) *Failure { return a.cut(err) }

// Next returns the next event of a stream. It returns the errors of dialect.Source, and
// ErrDeep for an event that is nested too deep. It must not be called for an answer that
// is not a stream.
func (a *Answer) Next() (sse.Event, error) {
	e, err := a.stream.Next()
	a.idle.touch()
	if err == nil && canon.CheckDepth(e.Data) != nil {
		err = ErrDeep
	}
	return e, err
}

// ErrDeep is the error for JSON from a provider that is nested deeper than
// canon.MaxDepth.
var ErrDeep = fmt.Errorf("the JSON of the response nests deeper than %d", canon.MaxDepth)

// Close cancels the request, even in the middle of its response, and releases the
// connection. It may be called more than once.
func (a *Answer) Close() {
	a.idle.stop()
	if a.body != nil {
		a.body.Close()
	}
}

const (
	// maxAnswer is the maximum size of a complete response, and maxRefusal the part of
	// an error response that is read, in bytes.
	maxAnswer  = 32 << 20
	maxRefusal = 256 << 10
	// longest is the default of the configured time limits, first_byte_ms and idle_ms.
	longest = 2 * time.Minute
)

// idle cancels a request if touch is not called within wait. Answer.Next calls touch
// after each event of a stream, and pieces whenever it receives data of any other body.
// A nil idle does nothing.
type idle struct {
	t    *time.Timer
	wait time.Duration
}

func (i *idle) touch() {
	if i != nil {
		i.t.Reset(i.wait)
	}
}

func (i *idle) stop() {
	if i != nil {
		i.t.Stop()
	}
}

// pieces reads a body that is not a stream. Each piece that is received restarts the
// time limit.
type pieces struct {
	io.Reader
	idle *idle
}

// Read implements io.Reader.
func (p pieces) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if n > 0 {
		p.idle.touch()
	}
	return n, err
}

// errSilent is the cause of cancellation when a configured time limit, first_byte_ms or
// idle_ms, has ended.
var errSilent = errors.New("no data was received in time")

// milliseconds converts a configured time limit; 0 means the default.
func milliseconds(ms int64) time.Duration {
	if ms == 0 {
		return longest
	}
	return time.Duration(ms) * time.Millisecond
}

// Do sends one request. c.Egress counts the bytes that are sent. A stream is returned as
// soon as the response header is received; any other response is read in full. Every
// error is a *Failure. Cancelling ctx cancels the request, even after Do has returned a
// stream.
func (p *Provider) Do(ctx context.Context, c *Call) (*Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := p.request(ctx, c)
	if err != nil {
		cancel(nil)
		return nil, p.fail(fault.CredentialInvalid, ": "+err.Error())
	}
	if !c.Egress.afford(c.Egress.carry(req, c.Body)) {
		cancel(nil)
		return nil, p.fail(fault.OverBudget, ": "+errAfford.Error())
	}
	timer := time.AfterFunc(milliseconds(p.FirstMS), func() { cancel(errSilent) })
	began := time.Now()
	resp, err := p.client.Do(req)
	timer.Stop()
	if err != nil {
		defer cancel(nil)
		return nil, p.broken(ctx, err, c.Key)
	}
	wait := milliseconds(p.IdleMS)
	a := &Answer{Status: resp.StatusCode, Headers: resp.Header, First: time.Since(began), body: closer{resp.Body, cancel},
		idle: &idle{time.AfterFunc(wait, func() { cancel(errSilent) }), wait}, cut: func(err error) *Failure { return p.cut(ctx, err) }}
	if err := p.receive(ctx, c, a, resp); err != nil {
		a.Close()
		return nil, err
	}
	if !c.Stream {
		a.Close()
	}
	return a, nil
}

// receive sets the stream or the body of a from the response. It returns a *Failure for
// a status from 300, and for a body that is too large, nested too deep or incomplete.
func (p *Provider) receive(ctx context.Context, c *Call, a *Answer, resp *http.Response) error {
	body := pieces{resp.Body, a.idle}
	if resp.StatusCode >= 300 {
		b, _ := io.ReadAll(io.LimitReader(body, maxRefusal))
		return p.refused(c, resp, b)
	}
	if c.Stream {
		if frame := c.API.Source; frame != nil {
			a.stream = frame(resp.Body)
		} else {
			a.stream = sse.NewReader(resp.Body)
		}
		return nil
	}
	var err error
	if a.Body, err = io.ReadAll(io.LimitReader(body, maxAnswer+1)); err != nil {
		return p.cut(ctx, err)
	}
	if canon.CheckDepth(a.Body) != nil {
		return p.cut(ctx, ErrDeep)
	}
	if len(a.Body) > maxAnswer {
		f := p.Malformed("sent a response above 32 MiB")
		f.Status = resp.StatusCode
		return f
	}
	return nil
}

// closer is a response body whose Close also cancels the request.
type closer struct {
	io.Closer
	cancel context.CancelCauseFunc
}

// Close cancels the request before it closes the body, so that a provider that is still
// sending does not delay it.
func (c closer) Close() error { c.cancel(nil); return c.Closer.Close() }
