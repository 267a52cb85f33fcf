// Package rpc sends and answers typed queries over pkg/transient: the descriptor
// of a query (pkg/core/query) fixes the types on both sides, the callers, the
// deadline and the view.
//
// What crosses the wire is what transient's frames hold. A query that a release
// adds is one schema in schemas/queries, a handler registered with Serve,
// ServeList or ServeBytes, and callers of Do, List or Bytes.
package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Error is the failure of a query: a code of schemas/errors.json, and a message.
type Error = transient.Error

// Errorf makes an error with a code.
func Errorf(code, format string, args ...any) *Error { return transient.Errorf(code, format, args...) }

// Client sends queries for an instance. It is safe for concurrent use.
type Client struct {
	Box *transient.Box
	// Live returns a running instance of a service, or an error where there is none.
	Live func(ctx context.Context, service string) (instance string, err error)
	// Send sends a query to an instance and returns the frames of its response; nil: it
	// goes through Box. A test that has no mailbox sets it.
	Send func(ctx context.Context, service, to, verb string, args any) (Frames, error)
}

// Frames are the frames of a response. *transient.Stream is one.
type Frames interface {
	// Next returns the next frame; see transient.Stream.
	Next(ctx context.Context) (transient.Frame, error)
	Close()
}

// To returns a client whose queries go to one instance.
func (c *Client) To(instance string) *Client {
	return &Client{Box: c.Box, Send: c.Send, Live: func(context.Context, string) (string, error) { return instance, nil }}
}

// Response is a document, and the state of the view that it was read from; View is
// nil where it was read from none, or by a service of release 0.5 or earlier.
type Response[A any] struct {
	Value A
	View  *transient.At
}

// Do sends a query with one response and waits for it, at most for the query's
// deadline. An error is an *Error, and its code says what to do: timeout and
// unavailable where the service does not answer. It wraps the context's error
// where the time is over.
func Do[Q, A any](ctx context.Context, c *Client, q query.Query[Q, A], req Q) (r Response[A], err error) {
	ctx, cancel := context.WithTimeout(ctx, q.Deadline)
	defer cancel()
	st, err := open(ctx, c, q.Info, req)
	if err != nil {
		return r, err
	}
	defer st.Close()
	f, err := st.Next(ctx)
	if errors.Is(err, transient.ErrEnd) {
		err = Errorf(contract.CodeInternal, "the response holds no document")
	}
	if err == nil {
		r.View = f.View
		err = json.Unmarshal(f.Data, &r.Value)
	}
	return r, wrap(q.Info, err)
}

// List sends a query whose response is a list, and calls each with its parts in
// order as they arrive. An error of each ends the query and is returned as it is.
// Other errors are those of Do; parts may have arrived before one.
func List[Q, I any](ctx context.Context, c *Client, q query.List[Q, I], req Q, each func([]I) error) error {
	ctx, cancel := context.WithTimeout(ctx, q.Deadline)
	defer cancel()
	st, err := open(ctx, c, q.Info, req)
	if err != nil {
		return err
	}
	defer st.Close()
	for {
		f, err := st.Next(ctx)
		if errors.Is(err, transient.ErrEnd) {
			return nil
		}
		var part []I
		if err == nil {
			err = json.Unmarshal(f.Data, &part)
		}
		if err != nil {
			return wrap(q.Info, err)
		}
		if err := each(part); err != nil {
			return err
		}
	}
}

// Collect sends a query whose response is a list and returns all of it; an empty
// list is not nil.
func Collect[Q, I any](ctx context.Context, c *Client, q query.List[Q, I], req Q) ([]I, error) {
	all := []I{}
	err := List(ctx, c, q, req, func(part []I) error { all = append(all, part...); return nil })
	return all, err
}

// Bytes sends a query whose response is bytes and returns their reader once the
// first of them arrived, or the response ended; an error before that is Do's. The
// reader's errors are Do's too: io.EOF means that the response is complete. Close
// ends the query.
func Bytes[Q any](ctx context.Context, c *Client, q query.Bytes[Q], req Q) (io.ReadCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, q.Deadline)
	st, err := open(ctx, c, q.Info, req)
	if err != nil {
		cancel()
		return nil, err
	}
	r := &reader{ctx: ctx, cancel: cancel, info: q.Info, st: st}
	if err := r.fill(); err != nil && !errors.Is(err, io.EOF) {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

type reader struct {
	ctx    context.Context
	cancel func()
	info   query.Info
	st     Frames
	left   []byte
}

// fill waits until bytes are left to read.
func (r *reader) fill() error {
	for len(r.left) == 0 {
		f, err := r.st.Next(r.ctx)
		if errors.Is(err, transient.ErrEnd) {
			return io.EOF
		}
		if err != nil {
			return wrap(r.info, err)
		}
		r.left = f.Data
	}
	return nil
}

// Read implements io.Reader.
func (r *reader) Read(b []byte) (int, error) {
	if err := r.fill(); err != nil {
		return 0, err
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	return n, nil
}

// Close implements io.Closer. It returns nil.
func (r *reader) Close() error {
	r.st.Close()
	r.cancel()
	return nil
}

func open(ctx context.Context, c *Client, q query.Info, req any) (Frames, error) {
	to, err := c.Live(ctx, q.Service)
	if err != nil {
		return nil, wrap(q, err)
	}
	if c.Send != nil {
		st, err := c.Send(ctx, q.Service, to, q.Verb, req)
		return st, wrap(q, err)
	}
	st, err := c.Box.Ask(ctx, q.Service, to, q.Verb, req)
	return st, wrap(q, err)
}

// wrap makes the *Error of a failed query; an error of the service itself is
// returned as it is, since its message is for the caller's caller.
func wrap(q query.Info, err error) error {
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	code := contract.CodeUnavailable
	if errors.Is(err, context.DeadlineExceeded) {
		code = contract.CodeTimeout
	}
	return &Error{Code: code, Message: fmt.Sprintf("%s does not answer %s: %v", q.Service, q.Verb, err), Cause: err}
}

// CodeOf returns the code of a query's error; "" for nil.
func CodeOf(err error) string {
	if err == nil {
		return ""
	}
	return transient.ErrorOf(err).Code
}
