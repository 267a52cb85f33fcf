package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
)

func (s *API) now() time.Time { return time.Now() }

// await proposes a call that the mcp-router executes, passes the server's
// notifications to the client, and waits for the outcome with the sink a. If the server refused the
// request with an error of JSON-RPC, the returned error wraps that error.
func (e *edge) await(ctx context.Context, r propose.Request, p proposal, a *approval) (*propose.Outcome, []byte, error) {
	round := mcpdoc.Round{RequestState: p.state}
	if string(p.responses) != "null" {
		round.InputResponses = p.responses
	}
	if level, ok := p.meta[mcp.MetaKeyLogLevel].(string); ok {
		round.LogLevel = level
	} else if l := e.level.Load(); l != nil {
		round.LogLevel = *l
	}
	round.Capabilities = capabilities(p)
	n := &notices{ctx: ctx, session: p.session, token: p.meta["progressToken"]}
	if p.session == nil { // no client receives notifications
		round.LogLevel, n.token = "", nil
	}
	round.Progress = n.token != nil
	if !round.Empty() && !p.resumed {
		b, err := json.Marshal(round)
		if err != nil {
			return nil, nil, err
		}
		c, err := r.Commit(ctx, e.Blobs.In(r.Tenant), b)
		if err != nil {
			return nil, nil, err
		}
		r.Body = &propose.Body{Content: c}
	}
	if round.Progress || round.LogLevel != "" {
		n.frames = e.Open(r.ID, mcpdoc.Executor)
		defer n.frames.Close()
	}
	a.Sink = n
	out, output, err := e.Calls.AwaitWith(ctx, r, p.async, a)
	if err != nil && out != nil && out.Recorded.Effect.ErrorCode == contract.CodeUpstreamRefused && out.Recorded.Output != nil {
		var x mcpdoc.Refusal
		if b, failed := e.Blobs.In(r.Tenant).Open(ctx, out.Recorded.Output); failed == nil && json.Unmarshal(b, &x) == nil && x.Error != nil {
			return out, nil, errors.Join(err, &jsonrpc.Error{Code: x.Error.Code, Message: x.Error.Message, Data: x.Error.Data})
		}
	}
	return out, output, err
}

// capabilities returns the client's capabilities that servers may use (elicitation, roots and
// sampling), or nil if the client has declared none of them.
func capabilities(p proposal) json.RawMessage {
	var all map[string]json.RawMessage
	declared := p.meta[mcp.MetaKeyClientCapabilities]
	if declared == nil && p.session != nil {
		init := p.session.InitializeParams()
		if init == nil || init.Capabilities == nil {
			return nil
		}
		declared = init.Capabilities
	}
	b, err := json.Marshal(declared)
	if err != nil || json.Unmarshal(b, &all) != nil {
		return nil
	}
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool {
		return name != "elicitation" && name != "roots" && name != "sampling"
	})
	if len(all) == 0 {
		return nil
	}
	b, err = json.Marshal(all)
	if err != nil {
		return nil
	}
	return b
}

// notices passes the notifications of a server to the client. It is an await.Sink. A
// notification that is lost does not fail the call.
type notices struct {
	ctx     context.Context // context of the request; it determines the stream of the notifications
	session *mcp.ServerSession
	token   any // progress token of the client, or nil
	frames  Frames
	taken   int64
	lost    bool
}

// Wake implements await.Sink.
func (n *notices) Wake() <-chan struct{} {
	if n.frames == nil {
		return nil
	}
	return n.frames.Wake()
}

// Take implements await.Sink.
func (n *notices) Take() (running bool, err error) {
	for !n.lost {
		f, ok, err := n.frames.Try()
		if err != nil {
			n.lost = true
			break
		}
		if !ok {
			break
		}
		n.taken, running = n.taken+1, true
		n.pass(f.Data)
	}
	return running, nil
}

// Complete implements await.Sink.
func (n *notices) Complete(r *contract.Recorded) bool {
	return n.frames == nil || n.lost || n.taken >= r.Effect.Frames
}

// pass sends one notification to the client.
func (n *notices) pass(data []byte) {
	var f mcpdoc.Frame
	if json.Unmarshal(data, &f) != nil {
		return
	}
	switch f.Method {
	case "notifications/progress":
		var p mcp.ProgressNotificationParams
		if n.token == nil || json.Unmarshal(f.Params, &p) != nil {
			return
		}
		p.ProgressToken = n.token
		_ = n.session.NotifyProgress(n.ctx, &p)
	case "notifications/message":
		var p mcp.LoggingMessageParams
		if json.Unmarshal(f.Params, &p) == nil {
			_ = n.session.Log(n.ctx, &p)
		}
	}
}
