// Package queries reads from other services on behalf of the gateway's callers.
// Nothing here has an effect; the route of each query requires its scope.
package queries

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Services reaches the mesh's other services; run.Env implements it.
type Services interface {
	// Ask queries a live instance of service for one document.
	Ask(ctx context.Context, service, verb string, args, out any) error
	// AskStream queries it for a stream of documents, which the caller closes.
	AskStream(ctx context.Context, service, verb string, args any) (*transient.Stream, error)
}

// Client queries services. It is safe for concurrent use.
type Client struct{ Services }

// Timeout bounds a query.
const Timeout = 60 * time.Second

// Lines streams a service's response as JSON lines; each of its frames is an array.
func (s *Client) Lines(c echo.Context, service, verb string, args any) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), Timeout)
	defer cancel()
	st, err := s.AskStream(ctx, service, verb, args)
	if err != nil {
		return apierr.Unavailable("audit does not answer: " + err.Error())
	}
	defer st.Close()
	open := false
	for {
		f, err := st.Next(ctx)
		if errors.Is(err, transient.ErrEnd) {
			if !open {
				c.Response().Header().Set("Content-Type", "application/x-ndjson")
				c.Response().WriteHeader(http.StatusOK)
			}
			return nil
		}
		if err != nil {
			if !open {
				return Error(err)
			}
			// The status line is gone; break the connection so that a half
			// answer is not taken for a whole one.
			panic(http.ErrAbortHandler)
		}
		var items []json.RawMessage
		if err := json.Unmarshal(f.Data, &items); err != nil {
			return err
		}
		if !open {
			open = true
			c.Response().Header().Set("Content-Type", "application/x-ndjson")
			c.Response().WriteHeader(http.StatusOK)
		}
		for _, it := range items {
			if _, err := c.Response().Write(append(it, '\n')); err != nil {
				return nil
			}
		}
	}
}

// Array collects a service's response, frames of arrays, into one.
func (s *Client) Array(c echo.Context, service, verb string, args any) ([]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(c.Request().Context(), Timeout)
	defer cancel()
	st, err := s.AskStream(ctx, service, verb, args)
	if err != nil {
		return nil, apierr.Unavailable("audit does not answer: " + err.Error())
	}
	defer st.Close()
	out := []json.RawMessage{}
	for {
		f, err := st.Next(ctx)
		if errors.Is(err, transient.ErrEnd) {
			return out, nil
		}
		if err != nil {
			return nil, Error(err)
		}
		var part []json.RawMessage
		if err := json.Unmarshal(f.Data, &part); err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
}

// Error is the error of a query that failed with err.
func Error(err error) error {
	if strings.HasPrefix(err.Error(), "not found") {
		return apierr.NotFound(err.Error())
	}
	return apierr.Unavailable("audit: " + err.Error())
}

// Doc sends a service's response, one document, as it is.
func (s *Client) Doc(c echo.Context, service, verb string, args any) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), Timeout)
	defer cancel()
	var doc json.RawMessage
	if err := s.Ask(ctx, service, verb, args, &doc); err != nil {
		return Error(errors.Unwrap(err))
	}
	return c.JSONBlob(http.StatusOK, doc)
}

// Into decodes a service's response, one document, into the value that out points to.
func (s *Client) Into(c echo.Context, service, verb string, args, out any) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), Timeout)
	defer cancel()
	if err := s.Ask(ctx, service, verb, args, out); err != nil {
		return Error(errors.Unwrap(err))
	}
	return nil
}

// Last is the ledger's newest event of a call, or nil where there is none.
func (s *Client) Last(ctx context.Context, call string) (*contract.Event, error) {
	return s.Event(ctx, "call", call)
}

// Event is the event of a call that audit returns for verb, or nil where there is
// none.
func (s *Client) Event(ctx context.Context, verb, call string) (*contract.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var raw json.RawMessage
	if err := s.Ask(ctx, "audit", verb, map[string]string{"call_id": call}, &raw); err != nil {
		if cause := errors.Unwrap(err); cause != nil && strings.HasPrefix(cause.Error(), "not found") {
			return nil, nil
		}
		return nil, apierr.Unavailable("audit does not answer: " + err.Error())
	}
	return contract.DecodeEvent(raw)
}

// Frames reads the bytes of a response's binary frames.
type Frames struct {
	Ctx  context.Context
	St   *transient.Stream
	left []byte
}

// Peek waits for the next bytes and returns them without consuming them.
func (f *Frames) Peek() ([]byte, error) {
	for len(f.left) == 0 {
		fr, err := f.St.Next(f.Ctx)
		if errors.Is(err, transient.ErrEnd) {
			return nil, io.EOF
		}
		if err != nil {
			return nil, err
		}
		f.left = fr.Data
	}
	return f.left, nil
}

// Read implements io.Reader.
func (f *Frames) Read(b []byte) (int, error) {
	left, err := f.Peek()
	n := copy(b, left)
	f.left = f.left[n:]
	return n, err
}
