package propose

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// newProposer returns a Proposer whose ledger is log.
func newProposer(log eventlog.Log) *Proposer {
	return &Proposer{Emit: &emit.Emitter{Log: log, Tenant: "t", Source: "gateway/gw1", Now: time.Now}, Blobs: &blob.Store{Tenant: "t"}, Instance: "gw1"}
}

// request returns the request of call c-1 after change, unless change is nil.
func request(change func(*Request)) Request {
	r := Request{ID: "c-1", Kind: "tool.noop", Args: []byte("{}"), Actor: "ann", Client: "-", Session: "s-1", Timeout: time.Minute}
	if change != nil {
		change(&r)
	}
	return r
}

// data returns valid data of the events that Deliver decodes, and {} for others.
func data(name string) []byte {
	switch name {
	case contract.EventEffectRecorded:
		return contract.Bytes(&contract.Recorded{})
	case contract.EventEscalated:
		x := contract.Escalated{Expires: "2026-01-01T00:00:00.000Z"}
		x.Decision.Facts = contract.Raw(`{}`)
		return contract.Bytes(&x)
	}
	return []byte(`{}`)
}

// entry returns a ledger entry with an event of the given call.
func entry(t *testing.T, service, name, call string, data []byte) eventlog.Entry {
	t.Helper()
	e := &contract.Event{ID: emit.NewID(contract.IDEvent), Source: service + "/" + service + "-1", Name: name, Version: contract.VersionOf(name), Key: "s-1", Tenant: "t",
		Actor: "ann", Client: "-", Session: "s-1", CallID: call, Origin: "gw1", Time: contract.Time(time.Now()), Lamport: 7, Data: data}
	if name == contract.EventAllowed {
		e.Target = "judge"
	}
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return eventlog.Entry{Subject: e.Subject(), Seq: 9, Data: b}
}

// received receives from a channel of a Pending that holds a value, and returns the channel's
// name, or "" if none holds one.
func received(c *Pending) string {
	select {
	case <-c.Outcome():
		return "outcome"
	case <-c.Escalated():
		return "escalated"
	case <-c.Allowed():
		return "allowed"
	case <-c.Started():
		return "started"
	default:
		return ""
	}
}

// TestDeliver checks which events of a call reach its caller, and on which channel, by
// the service that produced them and by the call's executor.
func TestDeliver(t *testing.T) {
	allowed, started, escalated, recorded := contract.EventAllowed, contract.EventEffectStarted, contract.EventEscalated, contract.EventEffectRecorded
	byCaller := func(r *Request) { r.ReportWithin = time.Second }
	byJudge := func(r *Request) { r.Executor = "judge" }
	for _, c := range []struct {
		name          string
		change        func(*Request)
		service, call string
		event         string
		data          []byte // nil: valid data
		want          string
	}{
		{"outcome of policy", nil, "policy", "c-1", recorded, nil, "outcome"},
		{"outcome of the executor", byJudge, "judge", "c-1", recorded, nil, "outcome"},
		{"outcome of the catalog's executor", nil, "tools", "c-1", recorded, nil, "outcome"},
		{"outcome of another than the named executor", byJudge, "tools", "c-1", recorded, nil, ""},
		{"outcome of another than the catalog's executor", nil, "judge", "c-1", recorded, nil, ""},
		{"outcome that does not decode", nil, "policy", "c-1", recorded, []byte(`{}`), ""},
		{"outcome of another call", nil, "policy", "c-2", recorded, nil, ""},
		{"escalation of policy", nil, "policy", "c-1", escalated, nil, "escalated"},
		{"escalation of the executor", byJudge, "judge", "c-1", escalated, nil, ""},
		{"escalation that does not decode", nil, "policy", "c-1", escalated, []byte(`{}`), ""},
		{"claim, caller executes", byCaller, "gateway", "c-1", started, nil, "started"},
		{"claim, executor executes", byJudge, "judge", "c-1", started, nil, ""},
		{"permission, caller executes", byCaller, "policy", "c-1", allowed, nil, "allowed"},
		{"permission, executor executes", byJudge, "policy", "c-1", allowed, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProposer(&memlog.Log{})
			p.ExecutorOf = func(string) string { return "tools" }
			pend, err := p.Propose(t.Context(), request(c.change))
			if err != nil {
				t.Fatal(err)
			}
			defer pend.Close()
			b := c.data
			if b == nil {
				b = data(c.event)
			}
			// A second delivery has no effect while the channel holds the first.
			for range 2 {
				if err := p.Deliver(entry(t, c.service, c.event, c.call, b)); err != nil {
					t.Fatal(err)
				}
			}
			if got := received(pend); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if got := received(pend); got != "" {
				t.Errorf("%q a second time", got)
			}
			if p.Emit.Tick() <= 7 {
				t.Error("the clock is not after the event")
			}
		})
	}
}

// TestNoCatalog checks that without ExecutorOf an outcome of another service than policy
// is rejected. An entry that is not an event has no effect, and Position returns zeros
// before Run.
func TestNoCatalog(t *testing.T) {
	p := newProposer(&memlog.Log{})
	pend, err := p.Propose(t.Context(), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer pend.Close()
	p.Deliver(entry(t, "judge", contract.EventEffectRecorded, "c-1", data(contract.EventEffectRecorded)))
	p.Deliver(eventlog.Entry{Subject: "evt.t.policy.gw1.effect_recorded.s-1", Data: []byte("{}")})
	if got := received(pend); got != "" {
		t.Error(got)
	}
	if position, pending := p.Position(); position != 0 || pending != 0 {
		t.Errorf("position %d, %d pending before Run", position, pending)
	}
}

// TestProposal checks the members of a proposal's event that depend on the
// request, whether a joined call has the executor caller, and that Close
// removes only its own Pending from those that wait.
func TestProposal(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(*Request)
		executor string
		trace    string
		scopes   int
		body     string
	}{
		{"plain", nil, "", "", 0, ""},
		{"named executor", func(r *Request) { r.Executor = "judge" }, "judge", "", 0, ""},
		{"caller executes", func(r *Request) { r.Executor, r.ReportWithin = "judge", time.Millisecond }, contract.CallerExecutor, "", 0, ""},
		{"trace", func(r *Request) { r.TraceCtx = "00-a-b-01" }, "", "00-a-b-01", 0, ""},
		{"scopes", func(r *Request) { r.Scopes = []string{"x"} }, "", "", 1, ""},
		{"body", func(r *Request) {
			r.Body = &Body{Content: contract.Content{MediaType: "text/plain"}, Carried: []byte("b")}
		}, "", "", 0, "text/plain"},
	} {
		p := newProposer(&memlog.Log{})
		pend, err := p.Propose(t.Context(), request(c.change))
		if err != nil {
			t.Fatal(err)
		}
		<-pend.Stored()
		body := ""
		var call contract.Call
		if err := contract.Decode(pend.Event.Data, &call); c.body == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if call.Body != nil {
			body = call.Body.MediaType
		}
		if pend.executor != c.executor || pend.Event.TraceCtx != c.trace || len(call.Scopes) != c.scopes || body != c.body {
			t.Errorf("%s: executor %q, trace %q, scopes %v, body %q", c.name, pend.executor, pend.Event.TraceCtx, call.Scopes, body)
		}
		join := p.Join(pend.Event, &call)
		if want := c.executor == contract.CallerExecutor; (join.executor == contract.CallerExecutor) != want {
			t.Errorf("%s: joined with executor %q", c.name, join.executor)
		}
		<-join.Stored()
		join.Close()
		if got := p.waiting["c-1"]; len(got) != 1 || got[0] != pend {
			t.Errorf("%s: %d wait after one of two closed", c.name, len(got))
		}
		if pend.Close(); len(p.waiting) != 0 {
			t.Errorf("%s: %d calls wait after Close", c.name, len(p.waiting))
		}
	}
}

// TestJoinFirst checks that Join may be the first use of a Proposer, that the joined call
// receives its outcome, and that Wait returns ErrUnknownOutcome if its context has ended.
func TestJoinFirst(t *testing.T) {
	p := newProposer(&memlog.Log{})
	join := p.Join(&contract.Event{CallID: "c-1"}, &contract.Call{})
	defer join.Close()
	p.Deliver(entry(t, "policy", contract.EventEffectRecorded, "c-1", data(contract.EventEffectRecorded)))
	out, err := join.Wait(t.Context())
	if err != nil || out.Seq != 9 || out.Event.CallID != "c-1" {
		t.Error(out, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := join.Wait(ctx); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// failing is a ledger that stores nothing.
type failing struct{ memlog.Log }

var errFull = errors.New("the ledger is full")

func (*failing) Append(context.Context, string, string, []byte) (uint64, error) { return 0, errFull }

// TestLost checks that Wait returns the error of a proposal that cannot be stored, that Cancel
// then appends nothing, and that Cancel appends a request after a proposal that is stored.
func TestLost(t *testing.T) {
	p := newProposer(&failing{})
	pend, err := p.Propose(t.Context(), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer pend.Close()
	if _, err := pend.Wait(t.Context()); !errors.Is(err, errFull) {
		t.Error(err)
	}
	<-pend.Stored()
	if err := pend.Cancel(t.Context()); err != nil {
		t.Error("cancelled a proposal that is not stored:", err)
	}

	log := &memlog.Log{}
	p = newProposer(log)
	pend, err = p.Propose(t.Context(), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer pend.Close()
	if err := pend.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	en, err := log.Last(t.Context(), bus.Filter{Event: contract.EventCancelRequested}.String())
	if err != nil || en.Seq != 2 {
		t.Error(en.Seq, err)
	}
	select {
	case err := <-pend.Failed():
		t.Error("a stored proposal failed:", err)
	default:
	}
}
