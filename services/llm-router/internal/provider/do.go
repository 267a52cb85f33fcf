package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/sse"
)

// Answer is a provider's success: a stream, or a body that was read whole. It is
// used by one goroutine; Close must follow.
type Answer struct {
	Status  int
	Headers http.Header
	Body    []byte        // of a plain answer
	First   time.Duration // until the header of the response
	stream  dialect.Source
	body    io.Closer
	idle    *idle
}

// Next returns the next event of a stream. The errors are those of
// dialect.Source, ErrDeep, and *ir.Fault for an error that the framing reports.
func (a *Answer) Next() (sse.Event, error) {
	e, err := a.stream.Next()
	a.idle.touch()
	if err == nil && canon.CheckDepth(e.Data) != nil {
		err = ErrDeep
	}
	return e, err
}

// ErrDeep says that a provider sent JSON which nests deeper than any parser here
// may follow.
var ErrDeep = fmt.Errorf("it sent JSON nesting deeper than %d", canon.MaxDepth)

// Close ends the request, also in the middle of its answer, and frees its
// connection. It may be called more than once.
func (a *Answer) Close() {
	a.idle.stop()
	if a.body != nil {
		a.body.Close()
	}
}

const (
	// maxAnswer bounds a plain answer in bytes, maxRefusal what is read of an error.
	maxAnswer  = 32 << 20
	maxRefusal = 256 << 10
	// longest is how long a provider may be silent where the configuration does not
	// say.
	longest = 2 * time.Minute
)

// idle cancels a request that stays silent for too long. A nil idle does nothing.
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

// errSilent is the cause of a context that ended because nothing came.
var errSilent = errors.New("nothing came")

func milliseconds(ms int64) time.Duration {
	if ms == 0 {
		return longest
	}
	return time.Duration(ms) * time.Millisecond
}

// Do sends one request and counts what it sends in c.Egress. A stream is returned
// as soon as its header came; any other answer is read whole. Every error is a
// *Failure. Cancelling ctx ends the request, also after Do has returned a stream.
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
		idle: &idle{time.AfterFunc(wait, func() { cancel(errSilent) }), wait}}
	if err := p.receive(ctx, c, a, resp); err != nil {
		a.Close()
		return nil, err
	}
	if !c.Stream {
		a.Close()
	}
	return a, nil
}

// receive makes the response a's: as a stream, or read whole.
func (p *Provider) receive(ctx context.Context, c *Call, a *Answer, resp *http.Response) error {
	if resp.StatusCode >= 300 {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
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
	if a.Body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1)); err != nil {
		return p.Cut(ctx, err)
	}
	if canon.CheckDepth(a.Body) != nil {
		return p.Cut(ctx, ErrDeep)
	}
	if len(a.Body) > maxAnswer {
		f := p.Malformed("sent an answer above 32 MiB")
		f.Status = resp.StatusCode
		return f
	}
	return nil
}

type closer struct {
	io.Closer
	cancel context.CancelCauseFunc
}

// Close cancels the request's context before it closes the body, so that a
// provider that still sends is cut off.
func (c closer) Close() error { c.cancel(nil); return c.Closer.Close() }
