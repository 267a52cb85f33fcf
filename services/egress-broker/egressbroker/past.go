package egressbroker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

// past describes the earlier proxies of a call, according to the ledger.
type past struct {
	used  int64  // bytes of their flows
	other bool   // a proxy was opened for another request, earlier than any for this one, and not closed
	last  string // id of the last event egress_opened, or ""
}

// ledger reads events about proxies, and appends those for which instances compete.
type ledger struct {
	env      *run.Env
	patience time.Duration // longest time for which an event is appended again and again
}

// ledger returns a ledger with the connections of the instance.
func (s *Service) ledger() ledger {
	return ledger{env: s.env, patience: cmp.Or(s.patience, appendTime)}
}

// repeated reports whether a request for the call of e was recorded before e, which has the
// sequence seq. It reads the session's requests from the sequence of the event that allows the
// call up to the first one of the call.
func (l ledger) repeated(ctx context.Context, e *contract.Event, from, seq uint64) (bool, error) {
	filter := bus.Filter{Tenant: e.Tenant, Service: e.Service(), Event: contract.EventEgressRequested, Key: e.Session}.String()
	own := eventlog.OfCall(e.CallID, nil)
	en, err := eventlog.First(ctx, l.env.Emit.Log, filter, from, func(en eventlog.Entry) bool { return en.Seq >= seq || own(en) })
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil && en.Seq < seq, err
}

// claim appends egress_opened. Its message id follows from the call and
// from what is known of its past, so that of several instances which know of the same last proxy
// only one opens the next. If another one was stored within the ledger's duplicate window of five
// minutes, the error is an *eventlog.TakenError.
func (l ledger) claim(ctx context.Context, opened *contract.Event, before past) error {
	b, err := opened.Encode()
	if err != nil {
		return err
	}
	log := l.env.Emit.Log
	_, err = eventlog.Contend(ctx, log, "egress:"+opened.CallID+":"+before.last, func(e *contract.Event) bool {
		return e.Tenant == opened.Tenant && e.CallID == opened.CallID && e.Name == opened.Name && e.Service() == services.EgressBroker
	}, func(id string) (uint64, error) { return log.Append(ctx, opened.Subject(), id, b) })
	return err
}

// pastOf reads the events about the proxies of the call of a request, up to the end of the
// ledger. from is the sequence of the event that allows the call.
func (l ledger) pastOf(ctx context.Context, e *contract.Event, from uint64, inbox string) (past, error) {
	filters := []string{bus.Filter{Tenant: e.Tenant, Service: e.Service(), Event: contract.EventEgressRequested, Key: e.Session}.String()}
	for _, name := range []string{events.EgressOpenedName, events.FlowEndedName, events.EgressClosedName} {
		filters = append(filters, bus.Filter{Tenant: e.Tenant, Service: services.EgressBroker, Event: name, Key: e.Session}.String())
	}
	type stored struct {
		seq   uint64
		event *contract.Event
	}
	var found []stored
	for _, filter := range filters {
		for en, err := range l.env.Emit.Log.Scan(ctx, filter, from) {
			if err != nil {
				return past{}, err
			}
			if x, err := eventlog.Open(en, filter); err == nil && x.CallID == e.CallID {
				found = append(found, stored{en.Seq, x})
			}
		}
	}
	slices.SortFunc(found, func(a, b stored) int { return cmp.Compare(a.seq, b.seq) })
	list := make([]*contract.Event, len(found))
	for i := range found {
		list[i] = found[i].event
	}
	return fold(list, inbox), nil
}

// opening is a proxy that is open, according to the events that fold has read.
type opening struct {
	inbox string
	bytes int64
	order int // position of egress_opened
}

// fold returns the past of a call from the events about its proxies in the order of the
// ledger. inbox is that of the request for which a proxy is to be opened: the session-runner
// repeats a request with the same one.
func fold(list []*contract.Event, inbox string) (p past) {
	inboxes := map[string]string{} // by id of the request
	open := map[string]opening{}   // by id of the request, which is the cause of all events of a proxy
	for i, e := range list {
		switch e.Name {
		case contract.EventEgressRequested:
			var r egress.Request
			if contract.Decode(e.Data, &r) == nil {
				inboxes[e.ID] = r.Inbox
			}
		case events.EgressOpenedName:
			o := open[e.Cause]
			open[e.Cause] = opening{inboxes[e.Cause], o.bytes, i}
			p.last = e.ID
		case events.FlowEndedName:
			var f events.FlowEnded
			if contract.Decode(e.Data, &f) == nil {
				o := open[e.Cause]
				o.bytes += f.BytesIn + f.BytesOut
				open[e.Cause] = o
			}
		case events.EgressClosedName:
			var c events.EgressClosed
			if contract.Decode(e.Data, &c) == nil {
				p.used += max(open[e.Cause].bytes, c.BytesIn+c.BytesOut) // the totals are 0 if the process was killed
				delete(open, e.Cause)
			}
		}
	}
	own := len(list)
	for _, o := range open {
		p.used += o.bytes
		if o.inbox == inbox {
			own = min(own, o.order)
		}
	}
	for _, o := range open {
		p.other = p.other || o.inbox != inbox && o.order < own
	}
	return p
}
