// Package durable withholds responses until the events that they may depend on are synced
// to disk.
package durable

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Handler returns a handler that calls next, and whose response waits for wait: before
// the status and the headers, and, once data was sent or flushed, before each write
// unless Known was called for it. wait returns nil when all that this process has read or
// stored is durable. If it returns an error, the response is 503 or, if it has begun, the
// connection is aborted, so that the response is not mistaken for a complete one.
func Handler(wait func(context.Context) error, next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		resp := c.Response()
		w := &writer{ResponseWriter: resp.Writer, wait: func() error { return wait(context.WithoutCancel(c.Request().Context())) }}
		resp.Writer = w
		resp.Before(func() {
			w.begun = true
			if err := w.wait(); err != nil {
				resp.Status = w.refuse(c, err)
			}
		})
		return next(c) // the writer remains for the response to an error
	}
}

// Known exempts the next write of the response from waiting. The caller must ensure that this write
// contains only output of an effect that runs, which the executor started after its claim was
// durable, or entries that were stored before the headers were written.
func Known(c echo.Context) {
	if w, ok := c.Response().Writer.(*writer); ok {
		w.known = true
	}
}

// writer is the http.ResponseWriter of a handler that Handler returns.
type writer struct {
	http.ResponseWriter
	wait    func() error
	begun   bool // wait was called before the headers
	later   bool // data was sent or flushed, so each further write must wait
	known   bool // Known was called for the next write
	refused bool // the response is 503; the handler's writes are dropped
}

// refuse changes the response to 503 and returns the status. The headers of the handler
// are removed, except those that identify the call.
func (w *writer) refuse(c echo.Context, err error) int {
	e := apierr.Unavailable("the ledger cannot be synced to disk now, so no response is given: " + err.Error())
	kind, _ := c.Get(apierr.ShapeKey).(string)
	body, _ := json.Marshal(e.Doc(kind)) // the document has no member that cannot be encoded
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", echo.MIMEApplicationJSON)
	h.Set("Retry-After", e.RetryAfter)
	w.refused = true
	w.ResponseWriter.WriteHeader(e.Status)
	_, _ = w.ResponseWriter.Write(body) // the client may have disconnected
	return e.Status
}

// WriteHeader implements http.ResponseWriter. The wait is over when echo calls it.
func (w *writer) WriteHeader(code int) {
	if !w.refused {
		w.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (w *writer) Write(b []byte) (int, error) {
	if w.refused {
		return len(b), nil
	}
	if !w.begun || w.later && !w.known {
		w.must()
	}
	w.later, w.known = true, false
	return w.ResponseWriter.Write(b)
}

// FlushError implements the method that http.ResponseController.Flush calls.
func (w *writer) FlushError() error {
	if w.refused {
		return nil
	}
	if !w.begun {
		w.must()
	}
	w.later = true
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// must waits, and aborts the connection if that fails.
func (w *writer) must() {
	w.begun = true
	if err := w.wait(); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
