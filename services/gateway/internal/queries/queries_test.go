package queries

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// frames is the response to a query: the document doc, unless it is nil, followed by the
// error err.
type frames struct {
	doc any
	err error
}

func (f *frames) Next(context.Context) (transient.Frame, error) {
	if f.doc == nil {
		return transient.Frame{}, f.err
	}
	b, err := transient.Encode(f.doc)
	f.doc = nil
	return transient.Frame{Kind: transient.Data, Data: b}, err
}

func (*frames) Close() {}

// one returns a client for which every query returns the document doc, unless it is nil,
// and then the error err.
func one(doc any, err error) *Client {
	return &Client{&rpc.Client{Live: func(context.Context, string) (rpc.Instance, error) { return rpc.Instance{Name: "audit-1"}, nil },
		Send: func(context.Context, string, string, string, any) (rpc.Frames, error) { return &frames{doc, err}, nil }}, "t"}
}

func status(err error) int {
	var e *apierr.Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

func request() (echo.Context, *httptest.ResponseRecorder) {
	rec := httptest.NewRecorder()
	return echo.New().NewContext(httptest.NewRequest("GET", "/x", nil), rec), rec
}

// TestErrors checks the HTTP status for four error codes of a service and for a service
// that does not respond, with Send, Do, Lines and Collect.
func TestErrors(t *testing.T) {
	missing, down := rpc.Errorf(contract.CodeNotFound, "no such thing"), errors.New("no running instance")
	wrong := &rpc.Error{Code: contract.CodeInvalidInput, Param: "by", Message: "by: no such dimension"}
	for _, c := range []struct {
		err  error
		want int
	}{{missing, http.StatusNotFound}, {wrong, http.StatusBadRequest}, {rpc.Errorf(contract.CodeReadsExceeded, "too many"), http.StatusTooManyRequests}, {down, http.StatusServiceUnavailable},
		{rpc.Errorf(contract.CodeQueryUnknown, "unknown"), http.StatusServiceUnavailable}} {
		s := one(nil, c.err)
		ctx, _ := request()
		if got := status(Send(ctx, s, audit.ProofQuery, audit.ProofRequest{Seq: 1})); got != c.want {
			t.Error("Send:", got, c.err)
		}
		if _, err := Do(t.Context(), s, audit.CheckpointQuery, audit.CheckpointRequest{}); status(err) != c.want {
			t.Error("Do:", err, c.err)
		}
		if got := status(Lines(ctx, s, audit.ReceiptsQuery, audit.ReceiptsRequest{})); got != c.want {
			t.Error("Lines:", got, c.err)
		}
		if _, err := Collect(ctx, s, audit.ReceiptsQuery, audit.ReceiptsRequest{}); status(err) != c.want {
			t.Error("Collect:", err)
		}
	}
}

// TestLines checks that items are sent unchanged, one per line, and that an error after
// the first item aborts the connection.
func TestLines(t *testing.T) {
	part := []json.RawMessage{json.RawMessage(`{"b":"<"}`), json.RawMessage(`{"a":1}`)}
	ctx, rec := request()
	if err := Lines(ctx, one(part, transient.ErrEnd), audit.ReceiptsQuery, audit.ReceiptsRequest{}); err != nil || rec.Body.String() != "{\"b\":\"<\"}\n{\"a\":1}\n" {
		t.Error(rec.Body, err)
	}
	ctx, _ = request()
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			t.Error("half a response was taken for a whole one")
		}
	}()
	_ = Lines(ctx, one(part, transient.ErrGap), audit.ReceiptsQuery, audit.ReceiptsRequest{})
}

// TestEventOfCall checks that Last returns the event in audit's response, or nil if
// there is none, and that Event returns an error if audit does not respond.
func TestEventOfCall(t *testing.T) {
	e := &contract.Event{ID: "p-c-1", Source: "gateway/gw1", Name: contract.EventCallProposed, Version: contract.VersionOf(contract.EventCallProposed), Key: "s-1", Session: "s-1", CallID: "c-1",
		Tenant: "t", Actor: "alice", Client: "-", Origin: "gw1", Time: "2026-01-01T00:00:00.000Z", Lamport: 1, Data: []byte("{}")}
	raw, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := one(json.RawMessage(raw), nil).Last(t.Context(), "c-1"); err != nil || got.ID != e.ID {
		t.Error(got, err)
	}
	if got, err := one(nil, rpc.Errorf(contract.CodeNotFound, "no call c-1")).Last(t.Context(), "c-1"); err != nil || got != nil {
		t.Error(got, err)
	}
	if _, err := one(nil, errors.New("no running instance")).Event(t.Context(), audit.ProposalQuery, "c-1"); status(err) != http.StatusServiceUnavailable {
		t.Error(err)
	}
}

// TestSend checks that a document is sent with the members of its type only.
func TestSend(t *testing.T) {
	ctx, rec := request()
	doc := map[string]any{"limits": []any{}, "accounts": []any{}, "later": 1}
	if err := Send(ctx, one(doc, nil), policy.LimitsQuery, policy.LimitsRequest{}); err != nil || rec.Body.String() != `{"accounts":[],"limits":[]}` {
		t.Error(rec.Body, err)
	}
}
