package egressbroker

import (
	"cmp"
	"context"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

// past is what the ledger contains about earlier proxies of a call.
type past struct {
	used  int64 // bytes of their flows
	other bool  // a proxy was opened for another request, earlier than any for this one, and not closed
}

// pastOf reads the events about the proxies of the call of a request. from is the sequence of
// the event that allows the call.
func (s *Service) pastOf(ctx context.Context, e *contract.Event, from uint64, inbox string) (past, error) {
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
		for en, err := range s.env.Emit.Log.Scan(ctx, filter, from) {
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
