package vaultbroker

import (
	"context"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
)

// everyTenant is a list of tenants in which every tenant exists and is not suspended.
type everyTenant struct{}

func (everyTenant) Await(context.Context, string) bool    { return true }
func (everyTenant) Check(string) (exists, suspended bool) { return true, false }

// decided returns the decision by which policy allows the call c-1 to the session-runner,
// with the secret "own" for the program and "token" for requests.
func decided(t *testing.T, key *sign.Key) *contract.Allowed {
	t.Helper()
	return decidedFor(t, key, "session-runner")
}

// decidedFor is decided for a call to another executor.
func decidedFor(t *testing.T, key *sign.Key, executor string) *contract.Allowed {
	t.Helper()
	now := time.Now()
	box := contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "process", WallMS: 1}
	tool := contract.Tool{Executor: executor, Kind: "tool.cmd.x", Tool: "cmd.x", Sandbox: &box, Secrets: []contract.SecretGrant{{Name: "own"}},
		EgressRules: []contract.EgressRule{{Host: "a.example", Mode: netrule.Terminate, Credential: &contract.EgressCredential{Secret: "token", Header: "Authorization"}}, {Host: "b.example", Mode: netrule.HTTP}}}
	a := &contract.Allowed{Call: contract.Call{ID: "c-1", Kind: tool.Kind, Tool: tool.Tool, Args: contract.Content{Commitment: "sha256:x"}}}
	a.Decision = guard.Decide(guard.Inputs{CallID: "c-1", Tool: &tool, P0: &guard.Ceilings{Sandbox: box, StartWindowMS: 60_000, EgressHosts: []string{"*.example"}}, P1: guard.Answer{Verdict: contract.Allow, Reason: "RULE_X"}, Lamport: 1,
		Facts: guard.Facts{Tenant: "t", Session: "s-1", Actor: "a", Kind: tool.Kind, Tool: tool.Tool, ArgsDigest: "sha256:x", Proposer: "gateway", Proposed: contract.Time(now), Now: contract.Time(now), Deadline: contract.Time(now.Add(time.Minute))}}, key)
	if a.Decision.Verdict != contract.Allow {
		t.Fatal(a.Decision.ReasonCode)
	}
	return a
}

// TestPermission shows which secrets of a running call are permitted. The executor that runs
// it may have the secret of the program, and the egress-broker that opened its proxy the
// credential of the intent's rule; neither may have the other's secret. Other instances of
// both services may not have the same secret, and another service may not have the credential.
// Nothing is permitted before the claim or after the outcome, and the credential is not
// permitted before the proxy is opened.
func TestPermission(t *testing.T) {
	log := &memlog.Log{}
	in := newSession(t, log)
	by := func(source string) *emit.Emitter {
		return &emit.Emitter{Log: log, Tenant: "t", Source: source, Now: time.Now}
	}
	runner, other, broker, second := by("session-runner/session-runner-1"), by("session-runner/session-runner-2"), by("egress-broker/egress-broker-1"), by("egress-broker/egress-broker-2")
	key, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{env: &run.Env{Emit: by("vault-broker/vault-broker-1")}}
	s.calls = running.New(log, func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil }, everyTenant{}, time.Now, nil)
	_, allowed := in.put(in.policy, contract.EventAllowed, "session-runner", "c-1", contract.Bytes(decided(t, key)))
	may := func(m *emit.Emitter, name string) bool {
		t.Helper()
		e, seq := in.put(m, contract.EventSecretRequested, "", "c-1", []byte(`{}`))
		g, refusal, err := s.permission(t.Context(), e, seq, &secret.Request{CallID: "c-1", Allowed: int64(allowed)})
		if err != nil {
			t.Fatal(err)
		}
		if refusal != "" {
			return false
		}
		_, permitted := g.use(name)
		return permitted
	}
	if may(runner, "own") || may(broker, "token") {
		t.Error("before the claim")
	}
	in.put(runner, contract.EventEffectStarted, "", "c-1", []byte(`{}`))
	if may(broker, "token") {
		t.Error("before the broker opened the proxy")
	}
	in.put(broker, contract.EventEgressOpened, "", "c-1", []byte(`{}`))
	for what, c := range map[string]struct {
		by   *emit.Emitter
		name string
		want bool
	}{"program": {runner, "own", true}, "broker": {broker, "token", true}, "credential to the executor": {runner, "token", false}, "secret of the program to the broker": {broker, "own", false},
		"another secret to the broker": {broker, "else", false}, "another broker": {second, "token", false}, "another executor": {other, "own", false}, "another service": {in.judge, "token", false}} {
		if got := may(c.by, c.name); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	in.put(runner, contract.EventEffectRecorded, "", "c-1", []byte(`{}`))
	if may(runner, "own") || may(broker, "token") {
		t.Error("after the outcome")
	}
}

// TestPermissionOfRouter shows that the egress-broker that opened the proxy of a call to the mcp-router
// may have the credential of its rule, and not that of a call to another executor.
func TestPermissionOfRouter(t *testing.T) {
	for executor, want := range map[string]bool{"mcp-router": true, "judge": false} {
		log := &memlog.Log{}
		in := newSession(t, log)
		by := func(source string) *emit.Emitter {
			return &emit.Emitter{Log: log, Tenant: "t", Source: source, Now: time.Now}
		}
		broker := by("egress-broker/egress-broker-1")
		key, err := sign.NewKey(make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		s := &Service{env: &run.Env{Emit: by("vault-broker/vault-broker-1")}}
		s.calls = running.New(log, func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil }, everyTenant{}, time.Now, nil)
		_, allowed := in.put(in.policy, contract.EventAllowed, executor, "c-1", contract.Bytes(decidedFor(t, key, executor)))
		in.put(by(executor+"/"+executor+"-1"), contract.EventEffectStarted, "", "c-1", []byte(`{}`))
		in.put(broker, contract.EventEgressOpened, "", "c-1", []byte(`{}`))
		e, seq := in.put(broker, contract.EventSecretRequested, "", "c-1", []byte(`{}`))
		g, refusal, err := s.permission(t.Context(), e, seq, &secret.Request{CallID: "c-1", Allowed: int64(allowed)})
		if err != nil || (refusal == "") != want {
			t.Errorf("%s: %q %v", executor, refusal, err)
		}
		if g != nil {
			if _, own := g.use("own"); own {
				t.Errorf("%s: the broker may have the secret of a file", executor)
			}
			if _, token := g.use("token"); !token {
				t.Errorf("%s: the broker may not have the credential", executor)
			}
		}
	}
}
