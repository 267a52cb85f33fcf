package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/services/session-runner/containertest"
)

// runner replaces the session-runner. It has the same declaration, and uses pkg/execute and the
// containers of the session-runner as the session-runner does. Its effects run no program: the
// world records them.
type runner struct {
	in         *instance
	env        *run.Env
	containers *containertest.Runner
}

// Declaration implements run.Service.
func (*runner) Declaration() bus.Declaration {
	return bus.Declaration{Service: "session-runner", Slots: 8, Work: []bus.Work{bus.ExecutorWork("session-runner")}, Readers: []bus.Reader{bus.ExecutorControl("session-runner")}}
}

func fake(name string, rerun bool, secrets ...contract.SecretGrant) contract.Tool {
	const any = `{"additionalProperties":true,"type":"object"}`
	return contract.Tool{Class: "E1", Description: "An effect of the simulation.", Executor: "session-runner", InputSchema: contract.Raw(any), Kind: "tool." + name,
		OutputSchema: contract.Raw(any), Rerunnable: rerun, Secrets: secrets, Tool: name, Version: "v1"}
}

const secretName = "sim-key"

var tools = []contract.Tool{fake("once", false), fake("again", true), fake("secret", false, contract.SecretGrant{Name: secretName}), online()}

// simulated reports whether the effects of a kind of calls are simulated.
func simulated(kind string) bool {
	return slices.ContainsFunc(tools, func(t contract.Tool) bool { return t.Kind == kind })
}

// Run implements run.Service.
func (r *runner) Run(ctx context.Context, env *run.Env, ready func()) error {
	if err := catalog.Register(ctx, env.Emit, env.Cell.Now, "session-runner", tools); err != nil {
		return err
	}
	var err error
	if r.containers, err = r.in.w.boxes.open(r.in); err != nil {
		return err
	}
	defer r.containers.Close()
	r.env = env
	x := execute.New(env, 16, tools, r.handle)
	x.Secrets = secret.FromBroker(env.Emit, env.Transport, env.Instance)
	x.ReRunable = func(kind string) bool { return kind == "tool.again" }
	ready()
	return x.Run(ctx)
}

// order describes the behaviour of an effect. It is in the arguments of the call.
type order struct {
	N    int    `json:"n"`
	MS   int    `json:"ms"`   // duration of the effect in milliseconds
	Fail string `json:"fail"` // error code of the effect; empty: it succeeds
	Die  bool   `json:"die"`  // whether the effect's handler panics
}

// effect is an effect that has started.
type effect struct {
	by   string // name of the instance that executes it
	kind string
}

func (r *runner) handle(ctx context.Context, work *execute.Work) execute.Result {
	if r.in.dead.Load() {
		return execute.Fail("dead", "the process does not exist any more")
	}
	var o order
	if err := json.Unmarshal(work.Args, &o); err != nil {
		return execute.Fail("invalid_args", "%v", err)
	}
	refused := make(chan error, 1)
	out, exit, err := r.containers.Run(ctx, work.Call.ID, func(ctx context.Context, _ []byte) ([]byte, int) {
		r.in.w.effect(r.in, work)
		if mine := work.Event.Tenant == original; work.Call.Kind == "tool.secret" && (work.Secrets[secretName] == secretValue) != mine {
			r.in.w.violate("effect of call %s of tenant %s has the secret: %v", work.Call.ID, work.Event.Tenant, !mine)
		}
		if work.Call.Kind == egressKind {
			if err := r.flow(ctx, work); err != nil {
				refused <- err
				return nil, 1
			}
		}
		t := time.NewTimer(time.Duration(o.MS)*time.Millisecond + time.Duration(o.N)*time.Microsecond)
		defer t.Stop()
		select {
		case <-t.C:
			return fmt.Appendf(nil, `{"n":%d}`, o.N), 0
		case <-ctx.Done():
			return nil, 1
		}
	}, time.Hour)
	select {
	case err := <-refused:
		return execute.Fail(contract.CodeEgressRefused, "%v", err)
	default:
	}
	switch {
	case r.in.dead.Load():
		return execute.Fail("dead", "the process was killed")
	case err != nil:
		return execute.Fail(contract.CodeSandboxUnavailable, "%v", err)
	case exit != 0:
		return execute.Fail("stopped", "exit %d", exit)
	case o.Die:
		panic("the simulated effect panics")
	case o.Fail != "":
		return execute.Fail(o.Fail, "as ordered")
	}
	return execute.Result{Output: out}
}

// effect records the start of an effect and checks the state of its call on the ledger
// at this moment. It runs in the executor's goroutine.
func (w *world) effect(in *instance, work *execute.Work) {
	e := work.Event
	found := map[string]bool{}
	for en, err := range w.bus.ledger().Scan(context.Background(), "evt."+e.Tenant+".*.*.*."+e.Session, 1) {
		if err != nil {
			w.violate("ledger: %v", err)
			return
		}
		if contract.PeekCallID(en.Data) == e.CallID {
			t := split(en.Subject)
			name := t[4]
			if strings.HasPrefix(name, "allowed_") {
				name = "allowed"
			}
			found[name] = true
		}
	}
	switch {
	case !found["allowed"]:
		w.violate("effect of call %s begins without a decision on the ledger", e.CallID)
	case !found["effect_started"]:
		w.violate("effect of call %s begins without a claim on the ledger", e.CallID)
	case found["start_expired"]:
		w.violate("effect of call %s begins behind its expiry", e.CallID)
	case found["effect_recorded"]:
		w.violate("effect of call %s begins behind its outcome", e.CallID)
	}
	if w.halts(in, e.Tenant) {
		w.violate("effect of call %s begins although %s has read that tenant %s is suspended", e.CallID, in.name, e.Tenant)
	}
	w.mu.Lock()
	w.effects[e.CallID] = append(w.effects[e.CallID], effect{by: in.name, kind: work.Call.Kind})
	n := len(w.effects[e.CallID])
	w.mu.Unlock()
	w.say("EFFECT %s of %s at %s", work.Call.Kind, e.Session, in.name)
	if n > 1 && work.Call.Kind != "tool.again" {
		w.violate("call %s has %d effects", e.CallID, n)
	}
}
