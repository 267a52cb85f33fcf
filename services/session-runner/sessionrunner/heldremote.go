package sessionrunner

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// All instances take work from one consumer, so an instance may claim a call for a held
// sandbox that another instance holds. The claiming instance verifies the intent, forwards
// the call to the holder by a query, and records the outcome. The permissions of the stream
// allow only the session-runner to send that query.

// remotes are the forwarded calls that this instance carries out, by tenant and call.
type remotes struct {
	mu  sync.Mutex
	all map[[2]string]context.CancelFunc
}

// forward sends a call to the instance that holds its sandbox, and returns the result.
func (h *holder) forward(ctx context.Context, c *heldCall, args []byte) execute.Result {
	to := c.sandbox.Holder
	if runs, err := h.runs(ctx, to); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the instances of the session-runner cannot be read: %v", err)
	} else if !runs {
		return execute.Fail(contract.CodeUnavailable, "%s, which holds sandbox %s, does not run: call again when another one has adopted it", to, c.sandbox.ID)
	}
	client := h.env.Queries.In(c.tenant).To(to)
	req := events.SandboxCallRequest{Actor: c.actor, Allowed: int64(contentkeys.CallOf(ctx)), Args: string(args), CallID: c.id, KeyID: c.key, Kind: c.kind, Session: c.session, WallMS: c.wall.Milliseconds()}
	if c.egress != nil {
		req.EgressSocket, req.EgressAuthority = c.egress.Socket, string(c.egress.CA)
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go h.watch(waiting, to, stop)
	r, err := rpc.Do(waiting, client, events.SandboxCallQuery, req)
	if ctx.Err() != nil {
		last, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		req.Cancel = true
		_, _ = rpc.Do(last, client, events.SandboxCallQuery, req) // if the instance does not receive the query, it ends the command at its time limit
	}
	if err != nil {
		return execute.Result{Status: contract.Unknown, ErrorCode: contract.CodeExecutorLost, ErrorMessage: to + ", which holds sandbox " + c.sandbox.ID + ", did not report how the call ended: " + err.Error()}
	}
	v := &r.Value
	res := execute.Result{Status: v.Status, ErrorCode: v.ErrorCode, ErrorMessage: v.ErrorMessage, Usage: &contract.Usage{CPUMillis: v.CpuMillis, EgressBytes: v.EgressBytes, Measured: []string{contract.MeasureCompute, contract.MeasureEgress}}}
	if v.Output != "" {
		res.Output = []byte(v.Output)
	}
	if v.Attestation != "" {
		res.Attestation = &contract.Attestation{}
		if err := contract.Decode([]byte(v.Attestation), res.Attestation); err != nil {
			return execute.Fail(contract.CodeInternal, "the attestation of %s: %v", to, err)
		}
	}
	return res
}

// runs reports whether an instance of the session-runner runs, according to its lease.
func (h *holder) runs(ctx context.Context, instance string) (bool, error) {
	live, err := bus.Live(ctx, h.env.Conn, h.env.Service)
	return slices.Contains(live, instance), err
}

// watch calls lost when an instance no longer runs, unless ctx ends first.
func (h *holder) watch(ctx context.Context, instance string, lost func()) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if runs, err := h.runs(ctx, instance); err == nil && !runs {
				lost()
				return
			}
		}
	}
}

// serveHeld registers the query for the view, and the query that carries out the calls which other
// instances forward.
func serveHeld(h *holder) {
	serveView(h, h.env.Transport)
	serveTerminals(h, h.env.Transport)
	rpc.Serve(&rpc.Server{Transport: h.env.Transport}, events.SandboxCallQuery, func(ctx context.Context, q *events.SandboxCallRequest) (events.SandboxCallResult, error) {
		c := &heldCall{tenant: transient.Tenant(ctx), actor: q.Actor, session: q.Session, id: q.CallID, kind: q.Kind, key: q.KeyID, wall: time.Duration(q.WallMS) * time.Millisecond}
		key := [2]string{c.tenant, c.id}
		if q.Cancel {
			h.remote.cancel(key)
			return events.SandboxCallResult{}, nil
		}
		if err := json.Unmarshal([]byte(q.Args), &c.args); err != nil {
			return events.SandboxCallResult{}, err
		}
		if q.EgressSocket != "" {
			c.egress = &sandbox.Egress{Socket: q.EgressSocket, CA: []byte(q.EgressAuthority)}
		}
		if err := h.follower.Poll(ctx); err != nil {
			return events.SandboxCallResult{}, err
		}
		res := h.find(c)
		if res.ErrorCode == "" && c.sandbox.Holder != h.env.Instance {
			return events.SandboxCallResult{}, errors.New("the sandbox is held by " + c.sandbox.Holder)
		}
		if res.ErrorCode == "" {
			ctx, stop := context.WithCancel(ctx)
			defer h.remote.begin(key, stop)()
			res = h.local(contentkeys.ForCall(ctx, uint64(max(q.Allowed, 0))), c)
		}
		out := events.SandboxCallResult{Status: res.Status, ErrorCode: res.ErrorCode, ErrorMessage: res.ErrorMessage, Output: string(res.Output)}
		if res.Usage != nil {
			out.CpuMillis, out.EgressBytes = res.Usage.CPUMillis, res.Usage.EgressBytes
		}
		if res.Attestation != nil {
			out.Attestation = string(contract.Bytes(res.Attestation))
		}
		return out, nil
	})
}

// begin registers a call with the function that cancels it. The returned function calls stop
// and removes the call.
func (r *remotes) begin(key [2]string, stop context.CancelFunc) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[[2]string]context.CancelFunc{}
	}
	r.all[key] = stop
	return func() {
		stop()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.all, key)
	}
}

// cancel cancels a call, if it runs.
func (r *remotes) cancel(key [2]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stop := r.all[key]; stop != nil {
		stop()
	}
}
