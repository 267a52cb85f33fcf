package mcpapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
)

// queuedEvery is the time between two reads of the position of a call that waits for a sandbox.
const queuedEvery = time.Second

// queued notifies the client of the position at which a call waits for a sandbox, and when it
// no longer waits, until stop is called. It has no effect if the client gave no progress token.
// A call that ends within queuedEvery causes no read.
func queued(ctx context.Context, e *edge, r propose.Request, p proposal) (stop func()) {
	token := p.meta["progressToken"]
	if token == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	call := &contract.Event{Tenant: r.Tenant, Session: r.Session, CallID: r.ID, Time: contract.Time(e.now())}
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(queuedEvery)
		defer tick.Stop()
		for last, sent := int64(0), 0.0; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			position := e.Calls.Position(ctx, call)
			if position == last {
				continue
			}
			last, sent = position, sent+1
			text := fmt.Sprintf("waiting for a sandbox, at position %d", position)
			if position == 0 {
				text = "no longer waiting for a sandbox"
			}
			_ = p.session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: sent, Message: text})
		}
	})
	return func() { cancel(); done.Wait() }
}
