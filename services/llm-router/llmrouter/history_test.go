package llmrouter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// reply is the response to a query: one document, or an error.
type reply struct {
	doc []byte
	err error
}

func (r reply) Next(context.Context) (transient.Frame, error) {
	return transient.Frame{Kind: transient.Data, Data: r.doc}, r.err
}

func (reply) Close() {}

// TestHistoryOutage shows that a request that continues a stored response fails with 503
// if audit or the object store does not respond, and with 404 if the response does not
// exist, is erased or is another caller's.
func TestHistoryOutage(t *testing.T) {
	args, _ := blob.Refer([]byte(`{}`), typeJSON)
	erased, gone := args, args
	erased.Salt, gone.Store, gone.Salt, gone.Text = "", contract.StoreObject, "", ""
	proposed := func(actor string, args contract.Content) []byte {
		doc, err := (&contract.Event{ID: "e-1", Name: contract.EventCallProposed, Version: contract.VersionOf(contract.EventCallProposed), Source: "gateway/gw1", Tenant: "t", Origin: "gw1", Key: "s-1", Session: "s-1",
			CallID: "c-0", Actor: actor, Client: "-", Correl: "e-1", Cause: "e-1", Lamport: 1, Time: contract.Time(time.Unix(1e9, 0)),
			Data: contract.Bytes(&contract.Call{Args: args, ID: "c-0", Kind: llm.Responses, Tool: llm.Responses, Deadline: contract.Time(time.Unix(1e9, 0)), Scopes: []string{}})}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}
	for name, c := range map[string]struct {
		reply  reply
		code   string
		status int
	}{
		"audit is gone":     {reply{err: errors.New("no responders")}, fault.ProviderUnavailable, 503},
		"audit is late":     {reply{err: context.DeadlineExceeded}, fault.ProviderUnavailable, 503},
		"audit has none":    {reply{err: rpc.Errorf(contract.CodeNotFound, "not found: call c-0")}, fault.NotFound, 404},
		"blobs are gone":    {reply{doc: proposed("alice", gone)}, fault.ProviderUnavailable, 503},
		"content is erased": {reply{doc: proposed("alice", erased)}, fault.NotFound, 404},
		"another's":         {reply{doc: proposed("bob", args)}, fault.NotFound, 404},
	} {
		s := plays(t, newUpstreams(t, nil), nil)
		s.env.Blobs = &blob.Store{Conn: &bus.Conn{}, Tenant: "t"}
		s.env.Queries = &rpc.Client{Live: func(context.Context, string) (rpc.Instance, error) { return rpc.Instance{Name: "audit-1"}, nil },
			Send: func(context.Context, string, string, string, any) (rpc.Frames, error) { return c.reply, nil }}
		m := s.made(t, t.Context(), llm.Responses, `{"model":"a/m","input":"hi","previous_response_id":"resp_1"}`)
		m.w.Event.Tenant = "t"
		_, _, err := m.turn(t.Context(), "c-0")
		var f *provider.Failure
		if !errors.As(m.call.unreadable(err, "no: "), &f) || f.Code != c.code || f.Row().EdgeStatus(f.Status, f.Overloaded) != c.status {
			t.Errorf("%s: %v became %+v", name, err, f)
		}
		if c.status == 503 && !contract.Codes[f.Code].Retryable {
			t.Errorf("%s: callers do not retry %s", name, f.Code)
		}
	}
}
