package resources

import (
	"context"
	"errors"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
)

// followEvery is the interval at which the newest outcome of a followed session is read.
const followEvery = time.Second

// Follow starts a goroutine that calls changed when the resource with a URI has changed, at most
// once in followEvery, until ctx is done or the caller's access ends. Only sessions and their
// evidence change. The errors are those of Read, 400 for a resource that does not change, and 429
// if the tenant follows too many sessions at this gateway.
func (r *Reader) Follow(ctx context.Context, who *auth.Caller, uri string, changed func()) error {
	kind, rest := Kind(uri)
	if kind != Session && kind != Evidence {
		if _, err := r.Read(ctx, who, uri); err != nil {
			return err
		}
		return apierr.BadRequest("uri", "the content of "+uri+" does not change: read it, or subscribe to a session")
	}
	id, _, _ := parseSession(rest)
	if _, err := r.Read(ctx, who, Session+id); err != nil {
		return err
	}
	leave, ok := r.Streams.Take(who.Tenant)
	if !ok {
		return apierr.ReadsExceeded("tenant " + who.Tenant + " follows as many sessions at this gateway as it may; unsubscribe from one")
	}
	filter := bus.Filter{Tenant: who.Tenant, Event: contract.EventEffectRecorded, Key: id}.String()
	last, err := r.Ledger.Last(ctx, filter)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		leave()
		return apierr.Unavailable("the ledger does not respond: " + err.Error())
	}
	ctx, done := r.Gate.WatchReads(ctx, who, false)
	go func() {
		defer leave()
		defer done()
		r.poll(ctx, filter, last.Seq, changed)
	}()
	return nil
}

// poll calls changed when an entry after the sequence last matches a filter, until ctx is done.
func (r *Reader) poll(ctx context.Context, filter string, last uint64, changed func()) {
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if now, err := r.Ledger.Last(ctx, filter); err == nil && now.Seq > last && ctx.Err() == nil {
			last = now.Seq
			changed()
		}
	}
}
