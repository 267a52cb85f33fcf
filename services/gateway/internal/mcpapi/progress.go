package mcpapi

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
)

// waitStep is the increase of the progress from one notification to the next while a call
// waits for a sandbox. It is small, because later notifications have the percentage that the
// program reports as their progress, and MCP requires that the progress increases.
const waitStep = 0.0001

// progressing notifies the client of the position at which a call waits for a sandbox, when
// it no longer waits, and of the percentage that its program reports, until stop is called.
// It has no effect if the client gave no progress token. A percentage that does not exceed
// the progress of the notification before is not sent, as MCP requires.
func progressing(ctx context.Context, e *edge, r propose.Request, p proposal) (stop func()) {
	token := p.meta["progressToken"]
	if token == nil || p.session == nil { // no client receives notifications
		return func() {}
	}
	sent := 0.0
	return calls.Follow(ctx, e.Calls.Runner, r, func(n calls.Notice) {
		now := sent + waitStep
		if n.Reported {
			now = float64(n.Progress.Percent)
		}
		if now <= sent {
			return
		}
		sent = now
		_ = p.session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: now, Total: 100, Message: n.Text()})
	})
}
