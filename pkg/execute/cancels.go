package execute

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// maxCancels is the maximum number of cancellations that a cancels stores.
const maxCancels = 4096

// clockSkew is the maximum difference that is assumed between the clocks of services.
const clockSkew = 10 * time.Second

// cancels stores the cancellations of calls that have not started in this process, so
// that they do not start later. It stores the newest maxCancels. The zero value is empty,
// and counts as complete for every call. It is safe for concurrent use.
type cancels struct {
	mu    sync.Mutex
	seen  map[cancel]string // times of the events, in contract.TimeFormat
	order []cancel          // keys of seen, oldest first
	since string            // calls that were proposed before this time may have cancellations in the ledger that are not stored here; contract.TimeFormat
}

// cancel identifies a call and the service that requested its cancellation: only a request
// of the service that proposed the call counts.
type cancel struct {
	callKey
	service string
}

// add stores the cancellation that e requests.
func (c *cancels) add(e *contract.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[cancel]string{}
	}
	k := cancel{callKey{e.Tenant, e.CallID}, e.Service()}
	if _, ok := c.seen[k]; ok {
		return
	}
	if len(c.order) == maxCancels {
		if at, err := contract.ParseTime(c.seen[c.order[0]]); err == nil {
			c.since = max(c.since, contract.Time(at.Add(clockSkew)))
		}
		delete(c.seen, c.order[0])
		c.order = c.order[1:]
	}
	c.seen[k], c.order = e.Time, append(c.order, k)
}

// begin states that the cancellations before now are not stored.
func (c *cancels) begin(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = contract.Time(now.Add(clockSkew))
}

// has reports whether a cancellation is stored. complete reports whether all
// cancellations of calls that were proposed at the given time are stored.
func (c *cancels) has(k cancel, proposed string) (found, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, found = c.seen[k]
	return found, proposed >= c.since
}

// obey calls stop with errCancelled if the service that proposed the call has requested its
// cancellation. It reads the ledger only if the stored cancellations may be incomplete for the
// call, for example because the call was proposed before this process started and approved
// afterwards. The cost of that grows with the number of cancellations in the call's session. An
// error means that the ledger could not be read.
func (c *cancels) obey(ctx context.Context, log eventlog.Log, w *item, stop context.CancelCauseFunc) error {
	e, proposer := w.event, proposerOf(w.a.Decision.Facts)
	found, complete := c.has(cancel{callKey{e.Tenant, e.CallID}, proposer}, factOf(w.a.Decision.Facts, "proposed"))
	if !found && !complete && proposer != "" {
		filter := bus.Filter{Tenant: e.Tenant, Service: proposer, Event: contract.EventCancelRequested, Key: e.Session}.String()
		_, err := eventlog.Before(ctx, log, filter, 0, eventlog.OfCall(e.CallID, nil))
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return err
		}
		found = err == nil
	}
	if found {
		stop(errCancelled)
	}
	return nil
}

// factOf returns the text of a member of a decision's facts without decoding them, or ""
// if they have no such member. The facts are canonical JSON, in which quotes within
// strings are escaped, so the search does not find the name within a string.
func factOf(facts contract.Raw, name string) string {
	_, rest, _ := bytes.Cut(facts, []byte(`"`+name+`":"`))
	text, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(text)
}
