package llmapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/durable"
)

// response is the await.Sink that writes the response to one call from the frames of the
// call. It is not safe for concurrent use.
type response struct {
	s        *API
	c        echo.Context
	r        propose.Request
	frames   Frames
	head     *llm.Head
	body     []byte // the body of a response that is not a stream, or the held-back end of a stream
	open     bool   // the status and headers of a stream were sent
	got      int64  // number of frames received
	taken    int64  // bytes written or held in body
	credited int64  // value of taken in the last credit
	n        int64  // number of credits sent
}

// Wake implements await.Sink.
func (a *response) Wake() <-chan struct{} { return a.frames.Wake() }

// Take implements await.Sink.
func (a *response) Take() (running bool, err error) {
	for {
		f, ok, err := a.frames.Try()
		if err != nil || !ok {
			return running, err
		}
		if err := a.frame(f); err != nil {
			return running, err
		}
		running = true
	}
}

// Complete implements await.Sink.
func (a *response) Complete(r *contract.Recorded) bool { return a.got >= r.Effect.Frames }

// streams reports whether the response is a stream of server-sent events.
func (a *response) streams() bool {
	return a.head != nil && a.head.Status == http.StatusOK && a.head.Headers["Content-Type"] == "text/event-stream"
}

// frame processes one frame. It writes the data of a stream at once and holds everything
// else in body. Each time that half of llm.Window has been processed, it sends a credit
// to the executor, which otherwise stops sending. Only the error of a failed write to
// the client wraps await.ErrGone.
func (a *response) frame(t transient.Frame) error {
	f, err := llm.ParseFrame(t.Data)
	if err != nil {
		return err
	}
	a.got++
	if f.Head != nil {
		a.head = f.Head
	}
	if !a.streams() {
		a.body = append(a.body, f.Data...)
	} else if len(f.Data) > 0 {
		durable.Known(a.c)
		if err := a.write(f.Data); err != nil {
			return err
		}
	}
	a.body = append(a.body, f.End...)
	a.taken += int64(len(f.Data) + len(f.End))
	if a.taken-a.credited >= llm.Window/2 && a.head != nil {
		a.credited = a.taken
		a.n++
		if err := a.s.Post(a.head.Instance, llm.CreditID(a.r.ID), a.n, fmt.Appendf(nil, "%d", a.taken)); err != nil {
			return fmt.Errorf("no credit could be sent to the executor: %w", err)
		}
	}
	return nil
}

// begin sets the headers of the response from the call, the verdict and the first frame,
// and returns them.
func (a *response) begin(verdict string) http.Header {
	calls.Headers(a.c, a.r, verdict)
	h := a.c.Response().Header()
	if a.head != nil {
		for k, v := range a.head.Headers {
			h.Set(k, v)
		}
	}
	return h
}

// write writes data of a stream to the client. The first write is preceded by the status
// and the headers. The error wraps await.ErrGone.
func (a *response) write(data []byte) error {
	resp := a.c.Response()
	if !a.open {
		a.open = true
		h := a.begin(contract.Allow) // only an allowed call has frames
		h.Set("Cache-Control", "no-cache")
		resp.WriteHeader(http.StatusOK)
	}
	if _, err := resp.Write(data); err != nil {
		return errors.Join(await.ErrGone, err)
	}
	resp.Flush()
	return nil
}

// end completes the response to a call whose outcome r is on the ledger.
func (a *response) end(r *contract.Recorded) error {
	e := apierr.OfOutcome(r)
	switch {
	case e == nil && a.streams():
		return a.write(a.body)
	case e == nil && a.head == nil: // the call succeeded without a frame
		return a.broken(transient.ErrGap)
	case a.open:
		return a.fail(e)
	case a.head != nil && a.head.Status != http.StatusOK && r.Effect.Status == contract.Failed:
		h := a.begin(r.Receipt.Verdict)
		if a.head.Fault == nil {
			h.Set("Content-Type", "application/json")
			return a.c.Blob(a.head.Status, "application/json", a.body)
		}
		e.Status, e.Param, e.Message, e.Code = a.head.Status, a.head.Fault.Param, a.head.Fault.Message, a.head.Fault.Code
		e.Type = apierr.TypeOf(e.Status)
		return e
	case e != nil:
		calls.Headers(a.c, a.r, r.Receipt.Verdict)
		return e
	}
	a.begin(r.Receipt.Verdict)
	return a.c.Blob(http.StatusOK, "application/json", a.body)
}

// fail ends a stream that has begun. It writes an error event in the shape of the
// stream's API, so that the stream cannot be mistaken for a complete one.
func (a *response) fail(e *apierr.Error) error { return a.write(e.Event(a.r.Kind)) }

// broken ends a response that cannot be completed, for example because frames were lost
// or malformed. If the response has begun, it ends with an error event; otherwise broken
// returns an error with status 502.
func (a *response) broken(err error) error {
	msg := "the live stream broke; what was recorded is on the ledger under the receipt id"
	if !errors.Is(err, transient.ErrGap) {
		msg = err.Error()
	}
	e := &apierr.Error{Status: http.StatusBadGateway, Type: "server_error", Code: contract.CodeStreamBroken, Message: msg, CallID: a.r.ID, ReceiptID: receipt.ID(a.r.ID)}
	if !a.open {
		calls.Headers(a.c, a.r, contract.Allow)
		return e
	}
	return a.fail(e)
}

// revoked ends the response if, during the wait, the caller was suspended or its
// credential became invalid. The cause of the context allowed is then the error to send:
// as an error event if the response has begun, and otherwise as the returned error.
// revoked sends nothing if the client has disconnected.
func (a *response) revoked(request, allowed context.Context) error {
	var e *apierr.Error
	switch {
	case request.Err() != nil || !errors.As(context.Cause(allowed), &e):
		return nil
	case a.open:
		return a.fail(e)
	}
	return e
}
