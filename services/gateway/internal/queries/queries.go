// Package queries sends the gateway's queries to other services, and converts their
// responses and errors into responses and errors of the API. A query is not a call:
// policy does not decide it, and it has no receipt. Each route checks the scope that its
// query requires.
package queries

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Services makes the clients that query other services for the callers of a tenant. It is
// safe for concurrent use.
type Services struct {
	client *rpc.Client
	mesh   *Client
}

// New returns a Services whose queries are sent with client.
func New(client *rpc.Client) *Services {
	return &Services{client, &Client{client.In(contract.CellTenant), contract.CellTenant}}
}

// In returns the client for the callers of a tenant.
func (s *Services) In(tenant string) *Client { return &Client{s.client.In(tenant), tenant} }

// OfMesh returns the client for queries about the mesh as a whole. Services respond to
// these queries for contract.CellTenant even before the cell is opened.
func (s *Services) OfMesh() *Client { return s.mesh }

// Client queries services for the callers of one tenant. It is safe for concurrent use.
type Client struct {
	*rpc.Client
	tenant string
}

// Timeout is the maximum time that a request waits for a response or outcome that is not
// available yet. Queries have the deadlines of their schemas.
const Timeout = 60 * time.Second

// Error returns the API's error for a failed query to service: 404 for the code
// not_found, 400 for invalid_input if the service names the invalid parameter, 429 for
// reads_exceeded, and 503 for everything else.
func Error(service string, err error) error {
	e := transient.ErrorOf(err)
	switch {
	case e.Code == contract.CodeNotFound:
		return apierr.NotFound(e.Message)
	case e.Code == contract.CodeInvalidInput && e.Param != "":
		return apierr.BadRequest(e.Param, e.Message)
	case e.Code == contract.CodeReadsExceeded:
		return apierr.ReadsExceeded(e.Message)
	case e.Cause != nil:
		return apierr.Unavailable(e.Message)
	}
	return apierr.Unavailable(service + ": " + e.Message)
}

// Do sends a query and returns the document of its response. Errors are those of Error.
func Do[Q, A any](ctx context.Context, s *Client, q query.Query[Q, A], req Q) (doc A, err error) {
	r, err := rpc.Do(ctx, s.Client, q, req)
	if err != nil {
		return doc, Error(q.Service, err)
	}
	return r.Value, nil
}

// Send responds to a request with the document that a query returns.
func Send[Q, A any](c echo.Context, s *Client, q query.Query[Q, A], req Q) error {
	doc, err := Do(c.Request().Context(), s, q, req)
	if err != nil {
		return err
	}
	b, err := transient.Encode(doc)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, b)
}

// Lines responds to a request with the items that a query returns, as JSON lines, as
// they arrive. An error before the first item is returned as Error converts it. A later
// error aborts the connection, so that the response is not mistaken for a complete one.
// If a line cannot be written because the client has disconnected, Lines returns nil.
func Lines[Q, I any](c echo.Context, s *Client, q query.List[Q, I], req Q) error {
	open := false
	begin := func() {
		if !open {
			open = true
			c.Response().Header().Set("Content-Type", "application/x-ndjson")
			c.Response().WriteHeader(http.StatusOK)
		}
	}
	err := rpc.List(c.Request().Context(), s.Client, q, req, func(part []I) error {
		begin()
		for _, item := range part {
			line, err := transient.Encode(item)
			if err != nil {
				return err
			}
			if _, err := c.Response().Write(append(line, '\n')); err != nil {
				return errGone
			}
		}
		return nil
	})
	switch {
	case err == nil:
		begin()
	case errors.Is(err, errGone):
	case open:
		panic(http.ErrAbortHandler)
	default:
		return Error(q.Service, err)
	}
	return nil
}

// errGone reports that the client has disconnected.
var errGone = errors.New("the client has disconnected")

// Collect returns the items that a query returns. Without an error the slice is not nil.
// Errors are those of Error.
func Collect[Q, I any](c echo.Context, s *Client, q query.List[Q, I], req Q) ([]I, error) {
	all, err := rpc.Collect(c.Request().Context(), s.Client, q, req)
	if err != nil {
		return nil, Error(q.Service, err)
	}
	return all, nil
}

// EventQuery is a query that returns one event of a call.
type EventQuery = query.Query[audit.CallRef, json.RawMessage]

// Last returns the event that determines the state of a call: its outcome, or else its
// claim or the expiry of its start, its decision, its escalation, or its proposal. It
// returns nil if audit has none of them, or if the call is another tenant's.
func (s *Client) Last(ctx context.Context, call string) (*contract.Event, error) {
	return s.Event(ctx, audit.CallQuery, call)
}

// LastAt is Last, and also returns a ledger sequence: no event up to it is newer than the
// returned one. The sequence is 0 if audit does not report its position.
func (s *Client) LastAt(ctx context.Context, call string) (e *contract.Event, at uint64, err error) {
	return s.event(ctx, audit.CallQuery, call)
}

// Event returns the event of a call that the query q returns, or nil if there is none or
// if the call is another tenant's.
func (s *Client) Event(ctx context.Context, q EventQuery, call string) (*contract.Event, error) {
	e, _, err := s.event(ctx, q, call)
	return e, err
}

// event is Event, and also returns the position of the view that was queried, or 0.
func (s *Client) event(ctx context.Context, q EventQuery, call string) (e *contract.Event, at uint64, err error) {
	r, err := rpc.Do(ctx, s.Client, q, audit.CallRef{CallID: call})
	switch {
	case rpc.CodeOf(err) == contract.CodeNotFound:
		return nil, 0, nil
	case err != nil:
		return nil, 0, Error(q.Service, err)
	}
	if r.View != nil {
		at = r.View.Position
	}
	e, err = eventlog.OpenBytes(r.Value, eventlog.Every)
	if err == nil && e.Tenant != s.tenant {
		return nil, 0, nil
	}
	return e, at, err
}
