package health

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// part returns the health of a part that is OK.
func part(name string, position uint64) run.Health {
	return run.Health{Name: name, OK: true, Position: position}
}

// late is a response that arrives after a time.
type late struct {
	after time.Duration
	parts []run.Health
}

func (l late) Next(ctx context.Context) (transient.Frame, error) {
	select {
	case <-ctx.Done():
		return transient.Frame{}, ctx.Err()
	case <-time.After(l.after):
		b, err := json.Marshal(l.parts)
		return transient.Frame{Kind: transient.Data, Data: b}, err
	}
}

func (late) Close() {}

// ledger is a ledger of one registration of a tool, at a position. It responds after a time.
type ledger struct {
	eventlog.Log
	newest uint64
	after  time.Duration
}

func (l ledger) Last(ctx context.Context, _ string) (eventlog.Entry, error) {
	select {
	case <-ctx.Done():
		return eventlog.Entry{}, ctx.Err()
	case <-time.After(l.after):
		return eventlog.Entry{Seq: l.newest}, nil
	}
}

// TestReadiness shows that an instance which does not respond is listed as not OK, with the
// reason, and that the mesh is ready nevertheless if its service has a healthy one; that the
// mesh is not ready if a service has only such instances, or none, if the ledger cannot be
// read, or if an instance that responds has not applied the newest tool; and that a part
// that does not respond takes no time from another.
func TestReadiness(t *testing.T) {
	const silent = time.Hour
	policy := func(position uint64) []run.Health { return []run.Health{part("policy.state", position)} }
	for name, c := range map[string]struct {
		policy  []late // instances of the service policy
		audit   []late
		own     time.Duration // time after which the gateway's own parts respond
		ledger  time.Duration // time after which the ledger responds
		ready   bool
		missing string
		ok      []bool // instances of policy
		took    time.Duration
	}{
		"all respond":          {policy: []late{{0, policy(7)}, {0, policy(8)}}, audit: []late{{}}, ready: true, ok: []bool{true, true}},
		"the first is silent":  {policy: []late{{silent, nil}, {0, policy(7)}}, audit: []late{{}}, ready: true, ok: []bool{false, true}, took: readyWithin},
		"the second is silent": {policy: []late{{0, policy(7)}, {silent, nil}}, audit: []late{{}}, ready: true, ok: []bool{true, false}, took: readyWithin},
		"silent, and the rest is late": {policy: []late{{silent, nil}, {1900 * time.Millisecond, policy(7)}}, audit: []late{{after: 1900 * time.Millisecond}},
			own: 1900 * time.Millisecond, ledger: 900 * time.Millisecond, ready: true, ok: []bool{false, true}, took: readyWithin},
		"all are silent":         {policy: []late{{silent, nil}, {silent, nil}}, audit: []late{{}}, ok: []bool{false, false}, took: readyWithin},
		"the only one is silent": {policy: []late{{0, policy(7)}}, audit: []late{{after: silent}}, ok: []bool{true}, took: readyWithin},
		"no instance":            {policy: []late{{0, policy(7)}}, missing: "audit", ok: []bool{true}},
		"a silent ledger":        {policy: []late{{0, policy(7)}}, audit: []late{{}}, ledger: silent, missing: "the ledger: context deadline exceeded", ok: []bool{true}, took: readyWithin},
		"one has an old catalog": {policy: []late{{0, policy(7)}, {0, policy(6)}}, audit: []late{{}}, missing: "policy-2 has not applied the newest registration or retirement of a tool yet", ok: []bool{true, true}},
		"one is not healthy":     {policy: []late{{0, []run.Health{part("policy.state", 7), {Name: "service"}}}, {0, policy(7)}}, audit: []late{{}}, ready: true, ok: []bool{false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				live := map[string][]late{"policy": c.policy, "audit": c.audit}
				names := map[string]late{}
				s := &API{Instance: "gw1", Expect: []string{"audit", "policy"}, Ledger: ledger{newest: 7, after: c.ledger},
					Health: func(context.Context) []run.Health { time.Sleep(c.own); return []run.Health{part("gateway.catalog", 7)} },
					Live: func(_ context.Context, service string) (out []string, err error) {
						for i := range live[service] {
							out = append(out, service+"-"+string(rune('1'+i)))
						}
						return out, nil
					},
					Queries: &rpc.Client{Send: func(_ context.Context, _, to, _ string, _ any) (rpc.Frames, error) { return names[to], nil }}}
				for service, list := range live {
					for i, l := range list {
						names[service+"-"+string(rune('1'+i))] = l
					}
				}
				began := time.Now()
				r := s.Now()
				if took := time.Since(began); r.Ready != c.ready || strings.Join(r.Missing, ", ") != c.missing || took != c.took {
					t.Errorf("ready %v, missing %v after %v; want %v, %q after %v", r.Ready, r.Missing, took, c.ready, c.missing, c.took)
				}
				var ok []bool
				for _, d := range r.Services["policy"] {
					ok = append(ok, d.OK)
					if want := "policy does not respond to health: context deadline exceeded; the query was sent to " + d.Instance; len(d.Parts) == 0 && d.Detail != want {
						t.Errorf("%s: %q, want %q", d.Instance, d.Detail, want)
					}
				}
				if !slices.Equal(ok, c.ok) || r.Services["gateway"][0].Instance != "gw1" || !r.Services["gateway"][0].OK {
					t.Errorf("instances %+v, want %v", r.Services, c.ok)
				}
			})
		})
	}
	s := &API{Expect: []string{"audit"}, Ledger: ledger{}, Health: func(context.Context) []run.Health { return nil },
		Live: func(context.Context, string) ([]string, error) { return nil, errors.New("no server") }}
	if r := s.Now(); r.Ready || !slices.Equal(r.Missing, []string{"audit"}) {
		t.Errorf("without a server: %+v", r)
	}
}

// TestCached checks that a value is computed once within its lifetime, for any number of
// callers, and again after it.
func TestCached(t *testing.T) {
	var c Cached[int]
	var n atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 100 {
				c.Get(time.Second, func(context.Context) (int, time.Duration) { n.Add(1); return 1, time.Minute })
			}
		})
	}
	wg.Wait()
	if n.Load() != 1 {
		t.Error("computed", n.Load(), "times")
	}
	c.until = time.Time{}
	c.Get(time.Second, func(context.Context) (int, time.Duration) { n.Add(1); return 1, 0 })
	if n.Load() != 2 {
		t.Error("not computed again after its time")
	}
}
