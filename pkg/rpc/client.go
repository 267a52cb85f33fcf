// Package rpc sends and handles typed queries over pkg/transient. The descriptor of a
// query (pkg/core/query) defines its request and response types, the services that may
// send it, its deadline and the view that it reads.
//
// On the wire a response is a sequence of transient.Frame. To add a query, add its schema
// to schemas/queries, register a handler with Serve, ServeList or ServeBytes, and call
// it with Do, List or Bytes.
package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Error is the failure of a query. It has a code of schemas/errors.json and a message.
type Error = transient.Error

// Errorf returns an *Error with a code of schemas/errors.json and a formatted message.
func Errorf(code, format string, args ...any) *Error { return transient.Errorf(code, format, args...) }

// Client sends the queries of one instance. It is safe for concurrent use.
type Client struct {
	Transport *transient.Transport
	// Live returns a running instance of a service, or an error if there is none.
	Live func(ctx context.Context, service string) (Instance, error)
	// All returns the running instances of a service, at least one, or an error. If it is nil, the
	// one that Live returns is the only one.
	All func(ctx context.Context, service string) ([]Instance, error)
	// Send sends a query to an instance and returns the frames of its response. If it is
	// nil, queries are sent through Transport; tests without an inbox set it. The handler that
	// it calls can read the tenant of the query with transient.Tenant.
	Send func(ctx context.Context, service, to, verb string, args any) (Frames, error)

	tenant string // tenant of the queries; "" for that of Transport
}

// In returns a client whose queries are sent for the given tenant.
func (c *Client) In(tenant string) *Client {
	d := &Client{Live: c.Live, All: c.All, Send: c.Send, tenant: tenant}
	if c.Transport != nil {
		d.Transport = c.Transport.In(tenant)
	}
	return d
}

// Frames is the sequence of frames of one response. *transient.Stream implements it.
type Frames interface {
	// Next returns the next frame; see transient.Stream.
	Next(ctx context.Context) (transient.Frame, error)
	Close()
}

// To returns a client whose queries go to the given instance. The client does not check
// that the instance runs.
func (c *Client) To(instance string) *Client {
	return &Client{Transport: c.Transport, Send: c.Send, tenant: c.tenant, Live: func(context.Context, string) (Instance, error) { return Instance{Name: instance}, nil }}
}

// At returns a client whose queries go to the given instance, like To. A query fails with the code
// unavailable as soon as the lease of the instance has ended, for which the lease is read before
// each one.
func (c *Client) At(to Instance) *Client {
	d := c.To(to.Name)
	if to.Lease != nil {
		d.Live = func(ctx context.Context, _ string) (Instance, error) {
			if _, ended, err := to.Lease.Read(ctx); ended || err != nil {
				return Instance{}, errors.Join(errEnded, err)
			}
			return to, nil
		}
	}
	return d
}

// Running returns the running instances of a service, or an error if there is none.
func (c *Client) Running(ctx context.Context, service string) ([]Instance, error) {
	if c.All != nil {
		return c.All(ctx, service)
	}
	one, err := c.Live(ctx, service)
	if err != nil {
		return nil, err
	}
	return []Instance{one}, nil
}

// Response is the document of a response and the state of the view that it was read
// from. View is nil if the document was not read from a view, or if the service did not
// report the view's state, as in release 0.5 and earlier.
type Response[A any] struct {
	Value A
	View  *transient.At
}

// Do sends a query with one response and waits for it until the query's deadline or the
// end of ctx. If the lease of the instance ends before it responds, Do sends the query to
// another running instance, with a new deadline. An instance that has neither responded at
// the deadline nor renewed its lease since the query was sent may have died, so Do waits
// until the instance responds, renews or loses the lease. All this takes at most Patience
// longer than the query's deadline.
//
// Every error is or wraps an *Error. It has the code that the service returned, or else
// timeout if the deadline passed, internal if the response has no document, or unavailable
// for any other cause, such as a service without an instance or an incomplete or invalid
// response. A timeout or unavailable error that the service did not return wraps its
// cause. If the query was sent and no frame of a response arrived, the message of the error
// names the instance.
func Do[Q, A any](ctx context.Context, c *Client, q query.Query[Q, A], req Q) (r Response[A], err error) {
	st, err := open(ctx, c, q.Info, req)
	if err != nil {
		return r, err
	}
	defer st.close()
	f, err := st.next()
	if errors.Is(err, transient.ErrEnd) {
		err = Errorf(contract.CodeInternal, "the response has no document")
	}
	if err == nil {
		r.View = f.View
		err = json.Unmarshal(f.Data, &r.Value)
	}
	return r, wrap(q.Info, err)
}

// List sends a query whose response is a list, and calls the function each with the
// parts of the list, in order, as they arrive. If that function returns an error, List
// stops receiving, without notice to the service, and returns that error unchanged.
// Other errors are those of Do; parts may have been passed to the function before one
// occurs. The query is sent to another instance only before the first part has arrived. The
// whole response takes at most Patience longer than the query's deadline.
func List[Q, I any](ctx context.Context, c *Client, q query.List[Q, I], req Q, each func([]I) error) error {
	st, err := open(ctx, c, q.Info, req)
	if err != nil {
		return err
	}
	defer st.close()
	for {
		f, err := st.next()
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

// Collect sends a query whose response is a list and returns the whole list, which is
// not nil. After an error, which is one of List, it returns the items received before.
func Collect[Q, I any](ctx context.Context, c *Client, q query.List[Q, I], req Q) ([]I, error) {
	all := []I{}
	err := List(ctx, c, q, req, func(part []I) error { all = append(all, part...); return nil })
	return all, err
}

// Bytes sends a query whose response is bytes, and returns a reader for them once the
// first bytes or the end of the response have arrived. Errors, also those of the reader,
// are those of Do; io.EOF means that the response is complete. The whole response takes at
// most Patience longer than the query's deadline, and the query is sent to another instance
// only before the first bytes have arrived. The caller must close the reader, also before
// io.EOF if it needs no more bytes; the service is not notified.
func Bytes[Q any](ctx context.Context, c *Client, q query.Bytes[Q], req Q) (*Reader, error) {
	st, err := open(ctx, c, q.Info, req)
	if err != nil {
		return nil, err
	}
	r := &Reader{info: q.Info, st: st}
	// Waiting for the first bytes lets callers handle an error of the service before
	// they start a response of their own.
	if err := r.fill(); err != nil && !errors.Is(err, io.EOF) {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// Reader reads the bytes of a response. It is not safe for concurrent use.
type Reader struct {
	info query.Info
	st   *response
	left []byte
}

// fill waits until unread bytes are available. It returns io.EOF after the last ones.
func (r *Reader) fill() error {
	for len(r.left) == 0 {
		f, err := r.st.next()
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

// Expect makes each later Read fail with the code unavailable if it waits and no frame of the response
// arrives within d, not even one without bytes. A service that may have nothing to send for longer
// than d must send such frames.
func (r *Reader) Expect(d time.Duration) { r.st.silence = d }

// Read implements io.Reader.
func (r *Reader) Read(b []byte) (int, error) {
	if err := r.fill(); err != nil {
		return 0, err
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	return n, nil
}

// Close implements io.Closer. It returns nil.
func (r *Reader) Close() error {
	r.st.close()
	return nil
}

// wrap converts the error of a query to an *Error with code timeout or unavailable. It
// returns nil unchanged, and also an error that is or wraps an *Error, such as one that
// the service returned, because its code and message are meant for the end user.
func wrap(q query.Info, err error) error {
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	code := contract.CodeUnavailable
	if errors.Is(err, context.DeadlineExceeded) {
		code = contract.CodeTimeout
	}
	return &Error{Code: code, Message: fmt.Sprintf("%s does not respond to %s: %v", q.Service, q.Verb, err), Cause: err}
}

// CodeOf returns the code of a query's error: "" for nil, and unavailable for an error
// that neither is nor wraps an *Error.
func CodeOf(err error) string {
	if err == nil {
		return ""
	}
	return transient.ErrorOf(err).Code
}
