package queries

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// one is a service that gives one answer.
type one struct {
	doc any
	err error
}

func (o one) Ask(_ context.Context, service, verb string, _, out any) error {
	if o.err != nil {
		return fmt.Errorf("ask %s %s: %w", service, verb, o.err)
	}
	b, err := json.Marshal(o.doc)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}

func (o one) AskStream(context.Context, string, string, any) (*transient.Stream, error) {
	return nil, o.err
}

func status(err error) int {
	var e *apierr.Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

// TestErrors: what is not there is 404, and a service that does not respond 503, for
// every form of a response.
func TestErrors(t *testing.T) {
	ctx := echo.New().NewContext(httptest.NewRequest("GET", "/x", nil), httptest.NewRecorder())
	missing, down := errors.New("not found: no such thing"), errors.New("no running instance")
	for _, c := range []struct {
		err  error
		want int
	}{{missing, http.StatusNotFound}, {down, http.StatusServiceUnavailable}} {
		q := &Client{one{err: c.err}}
		if got := status(q.Doc(ctx, "audit", "x", nil)); got != c.want {
			t.Error("Doc:", got, c.err)
		}
		var v any
		if got := status(q.Into(ctx, "audit", "x", nil, &v)); got != c.want {
			t.Error("Into:", got, c.err)
		}
	}
	q := &Client{one{err: down}}
	if got := status(q.Lines(ctx, "audit", "x", nil)); got != http.StatusServiceUnavailable {
		t.Error("Lines:", got)
	}
	if _, err := q.Array(ctx, "audit", "x", nil); status(err) != http.StatusServiceUnavailable {
		t.Error("Array:", err)
	}
}

// TestEventOfCall: the newest event of a call, nil where there is none, and an error
// where audit does not respond.
func TestEventOfCall(t *testing.T) {
	e := &contract.Event{ID: "p-c-1", Source: "gateway/gw1", Name: contract.EventCallProposed, Version: contract.VersionOf(contract.EventCallProposed), Key: "s-1", Session: "s-1", CallID: "c-1",
		Tenant: "t", Actor: "alice", Client: "-", Origin: "gw1", Time: "2026-01-01T00:00:00.000Z", Lamport: 1, Data: []byte("{}")}
	raw, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := (&Client{one{doc: json.RawMessage(raw)}}).Last(t.Context(), "c-1"); err != nil || got.ID != e.ID {
		t.Error(got, err)
	}
	if got, err := (&Client{one{err: errors.New("not found: no call c-1")}}).Last(t.Context(), "c-1"); err != nil || got != nil {
		t.Error(got, err)
	}
	if _, err := (&Client{one{err: errors.New("no running instance")}}).Event(t.Context(), "proposal", "c-1"); status(err) != http.StatusServiceUnavailable {
		t.Error(err)
	}
}

// TestDoc: a document is sent as it is.
func TestDoc(t *testing.T) {
	rec := httptest.NewRecorder()
	ctx := echo.New().NewContext(httptest.NewRequest("GET", "/x", nil), rec)
	if err := (&Client{one{doc: map[string]int{"a": 1}}}).Doc(ctx, "policy", "x", nil); err != nil || rec.Body.String() != `{"a":1}` {
		t.Error(rec.Body, err)
	}
}
