package running

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// session appends the events of calls in the session s-1. The judge executes the calls.
type session struct {
	t             *testing.T
	log           eventlog.Log
	policy, judge *emit.Emitter
}

func newSession(t *testing.T, log eventlog.Log) *session {
	by := func(source string) *emit.Emitter {
		return &emit.Emitter{Log: log, Tenant: "t", Source: source, Now: time.Now}
	}
	return &session{t, log, by("policy/policy-1"), by("judge/judge-1")}
}

// put appends an event of a call and returns it with its sequence.
func (s *session) put(m *emit.Emitter, name, target, call string, data []byte) (*contract.Event, uint64) {
	e := m.New(name, "s-1", data, nil)
	e.Session, e.CallID, e.Target = "s-1", call, target
	seq, _, err := eventlog.AppendEvent(s.t.Context(), s.log, e)
	if err != nil {
		s.t.Fatal(err)
	}
	return e, seq
}

// start appends the event that allows a call and the call's claim, and returns the
// sequence of the first.
func (s *session) start(call string) uint64 {
	var a contract.Allowed
	a.Call.ID, a.Decision.CallID, a.Decision.Facts, a.Decision.Intent = call, call, contract.Raw(`{}`), &contract.ExecutionIntent{Executor: "judge"}
	_, seq := s.put(s.policy, contract.EventAllowed, "judge", call, contract.Bytes(&a))
	s.put(s.judge, contract.EventEffectStarted, "", call, []byte(`{}`))
	return seq
}

func (s *session) end(call string) {
	s.put(s.judge, contract.EventEffectRecorded, "", call, []byte(`{}`))
}

// fill appends the events of n calls that have ended. Their ids contain name.
func (s *session) fill(name string, n int) {
	for i := range n {
		s.start(fmt.Sprint("c-", name, i))
		s.end(fmt.Sprint("c-", name, i))
	}
}

// TestLookups shows that the number of reads for a request is the same in a session of 10 calls
// as in one of 100,000. This also holds if the request names another entry or none as the event
// that allowed its call, and if as many other calls ended while the call ran, once their
// outcomes have been read.
func TestLookups(t *testing.T) {
	read := map[string][]int64{}
	for _, n := range []int{10, 100_000} {
		log := &logtest.Counter{Log: &memlog.Log{}}
		in := newSession(t, log)
		b := New(log, nil, tenants{"t": true}, time.Now, nil)
		other := in.start("c-other")
		in.fill("before", n)
		allowed := in.start("c-1")
		request := func(what string, at int64, decided, running bool) {
			t.Helper()
			e := in.judge.New(contract.EventSecretRequested, "s-1", []byte(`{}`), nil)
			e.Session, e.CallID = "s-1", "c-1"
			log.Reset()
			a, err := b.Allowed(t.Context(), e, "judge", uint64(at), 1<<40)
			if err != nil || (a != nil) != decided {
				t.Fatalf("%s, after %d calls: %v %v", what, n, a, err)
			}
			if a != nil {
				h, err := b.History(t.Context(), outcome.CallOf(e, "judge"), uint64(at))
				if err != nil || h.ClaimedBy() != e.Source || h.Recorded == running {
					t.Fatalf("%s, after %d calls: claimed by %q, recorded %v, %v", what, n, h.ClaimedBy(), h.Recorded, err)
				}
			}
			if got := log.Entries.Load(); got > 4 {
				t.Errorf("%s, after %d calls: %d entries read", what, n, got)
			}
			read[what] = append(read[what], log.Reads.Load())
		}
		request("first request", int64(allowed), true, true)
		request("second request", int64(allowed), true, true)
		request("no permission", 0, false, false)
		request("a permission of another call", int64(other), false, false)
		request("an entry that is no permission", int64(allowed)+1, false, false)
		request("no entry", 1<<30, false, false)
		c := outcome.Call{Tenant: "t", Session: "s-1", ID: "c-1", Executor: "judge"}
		in.fill("while", n)
		if _, err := b.History(t.Context(), c, allowed); err != nil { // reads the outcomes that were recorded since the last request
			t.Fatal(err)
		}
		in.fill("more", 1)
		request("request of a call during which others ended", int64(allowed), true, true)
		in.end("c-1")
		request("request after the end", int64(allowed), true, false)
	}
	for what, got := range read {
		if got[0] != got[1] || got[1] > 3 {
			t.Errorf("%s: %v reads after 10 and 100,000 calls", what, got)
		}
	}
}

// tenants holds the tenants that exist; the value is false for a suspended one.
type tenants map[string]bool

func (m tenants) Await(_ context.Context, tenant string) bool {
	_, exists := m[tenant]
	return exists
}

func (m tenants) Check(tenant string) (exists, suspended bool) {
	works, exists := m[tenant]
	return exists, exists && !works
}

// TestAbsent shows the reason for which requests for a tenant that does not exist, or is
// suspended, are refused. For another tenant it is empty.
func TestAbsent(t *testing.T) {
	c := New(nil, nil, tenants{"works": true, "stopped": false}, time.Now, nil)
	for tenant, want := range map[string]string{"works": "", "stopped": "tenant stopped is suspended", "none": "tenant none does not exist"} {
		if got := c.absent(t.Context(), tenant); got != want {
			t.Errorf("%s: %q, want %q", tenant, got, want)
		}
	}
}
