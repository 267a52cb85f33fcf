package await

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
)

// counted is an in-memory ledger that counts the calls of Get.
type counted struct {
	memlog.Log
	gets int
}

func (l *counted) Get(ctx context.Context, seq uint64) (eventlog.Entry, error) {
	l.gets++
	return l.Log.Get(ctx, seq)
}

// mesh is a ledger with one call, and the means to record events of the services that
// handle the call.
type mesh struct {
	t     *testing.T
	log   *counted
	first *contract.Event // event that proposed the call
	by    string          // the executor of the call according to the catalog, or "" if the tool was retired
	call  contract.Call
	past  *Past
}

const anExecutor = "session-runner"

// newMesh returns a mesh with a call that gateway gw1 proposed. within is the time to
// report the outcome if the caller executes the call, or else 0.
func newMesh(t *testing.T, within time.Duration) *mesh {
	m := &mesh{t: t, log: &counted{}, by: anExecutor, call: contract.Call{ID: "c-AAAAAAAAAAAAAAAAAAAAAAAAAA", Kind: "tool.x", ReportWithin: within.Milliseconds()}}
	gw := &emit.Emitter{Log: m.log, Tenant: "t", Source: "gateway/gw1", Now: time.Now}
	m.first = gw.New(contract.EventCallProposed, "s-1", []byte("{}"), nil)
	m.first.ID, m.first.Actor, m.first.Session, m.first.CallID, m.first.Origin = contract.IDProposal+m.call.ID, "alice", "s-1", m.call.ID, "gw1"
	m.append(m.first)
	m.past = &Past{Ledger: m.log, Instance: "gw1", Proposer: &propose.Proposer{Emit: gw, Instance: "gw1", ExecutorOf: func(string) string { return m.by }}}
	return m
}

func (m *mesh) append(e *contract.Event) eventlog.Entry {
	m.t.Helper()
	seq, _, err := eventlog.AppendEvent(m.t.Context(), m.log, e)
	if err != nil {
		m.t.Fatal(err)
	}
	en, err := m.log.Log.Get(m.t.Context(), seq)
	if err != nil {
		m.t.Fatal(err)
	}
	return en
}

// record appends an event of the call, with the given service as its source.
func (m *mesh) record(service, name string, doc []byte) eventlog.Entry {
	by := &emit.Emitter{Log: m.log, Tenant: "t", Source: service + "/x1", Now: time.Now}
	e := by.New(name, "s-1", doc, m.first)
	return m.append(e)
}

func (m *mesh) ends(service string) eventlog.Entry {
	return m.record(service, contract.EventEffectRecorded, contract.Bytes(&contract.Recorded{Effect: contract.Effect{CallID: m.call.ID, Status: contract.Succeeded},
		Receipt: contract.Receipt{ID: contract.IDReceipt + m.call.ID}}))
}

func (m *mesh) escalates() eventlog.Entry {
	x := contract.Escalated{Call: m.call, Expires: "2026-01-01T00:00:00.000Z"}
	x.Decision.Facts = []byte("{}")
	return m.record("policy", contract.EventEscalated, contract.Bytes(&x))
}

// TestFollow checks that Follow finds an earlier call in several states, and that the wait for a
// call without an outcome ends when the outcome is recorded, at the gateway that proposed the call
// and at another one. Outcomes that neither the executor nor policy recorded are ignored.
func TestFollow(t *testing.T) {
	for name, c := range map[string]struct {
		instance string        // the gateway that follows the call
		within   time.Duration // time to report the outcome if the caller executes the call; 0 if an executor does
		before   func(m *mesh)
		later    func(m *mesh) // runs one second after Follow; nil: nothing is recorded then
		state    State
		took     time.Duration // maximum time until the wait ends
	}{
		"ended":                       {"gw1", 0, func(m *mesh) { m.ends(anExecutor) }, nil, Ended, 0},
		"ended, elsewhere":            {"gw2", 0, func(m *mesh) { m.ends(anExecutor) }, nil, Ended, 0},
		"ended after an escalation":   {"gw1", 0, func(m *mesh) { m.escalates(); m.ends("policy") }, nil, Ended, 0},
		"escalated":                   {"gw1", 0, func(m *mesh) { m.escalates() }, nil, Escalated, time.Minute},
		"ends later, by notice":       {"gw1", 0, nil, func(m *mesh) { _ = m.past.Proposer.Deliver(m.ends(anExecutor)) }, Ended, time.Second},
		"ends later, elsewhere":       {"gw2", 0, nil, func(m *mesh) { m.ends(anExecutor) }, Ended, time.Second + readMost},
		"goes on":                     {"gw2", 0, func(m *mesh) { m.record(anExecutor, contract.EventEffectStarted, []byte("{}")) }, nil, Overdue, time.Minute},
		"ended by a stranger":         {"gw2", 0, func(m *mesh) { m.ends("llm-router") }, nil, Overdue, time.Minute},
		"ended by a stranger as well": {"gw2", 0, func(m *mesh) { m.ends(anExecutor); m.ends("llm-router") }, nil, Ended, 0},
		"allowed for its caller": {"gw1", time.Minute, func(m *mesh) {
			m.record("policy", contract.EventAllowed, []byte(`{"decision":{"intent":{"executor":"gateway"}}}`))
		}, nil, Allowed, 0},
		"handed out before": {"gw1", time.Minute, func(m *mesh) {
			m.record("policy", contract.EventAllowed, []byte(`{"decision":{"intent":{"executor":"gateway"}}}`))
			m.record("gateway", contract.EventEffectStarted, []byte("{}"))
		}, nil, Started, 0},
		"expired before it was handed out": {"gw2", time.Minute, func(m *mesh) {
			m.record("policy", contract.EventAllowed, []byte(`{"decision":{"intent":{"executor":"gateway"}}}`))
			m.record("policy", contract.EventStartExpired, []byte("{}"))
		}, func(m *mesh) { m.ends("policy") }, Ended, time.Second + readMost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMesh(t, c.within)
				m.past.Instance = c.instance
				if c.before != nil {
					c.before(m)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p := m.past.Follow(ctx, m.first, &m.call, Known{})
				defer p.Close()
				if c.later != nil {
					go func() { time.Sleep(time.Second); c.later(m) }()
				}
				began := time.Now()
				r := Waiter{Probe: &ledger{lost: make(chan struct{})}}.Wait(ctx, p, Terms{Within: time.Minute}, Whole{})
				if took := time.Since(began); r.State != c.state || took > c.took {
					t.Errorf("state %d after %s, want %d within %s", r.State, took, c.state, c.took)
				}
				if r.State == Ended && r.Outcome.Recorded.Effect.CallID != m.call.ID {
					t.Errorf("the outcome is of call %q", r.Outcome.Recorded.Effect.CallID)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

// TestFollowReadsLittle checks that Follow reads at most 20 single entries more with
// 100,000 events before the call than with 10.
func TestFollowReadsLittle(t *testing.T) {
	reads := func(history int) int {
		n := 0
		synctest.Test(t, func(t *testing.T) {
			m := newMesh(t, 0)
			m.log = &counted{}
			m.past.Ledger = m.log
			by := &emit.Emitter{Log: m.log, Tenant: "t", Source: "policy/p1", Now: time.Now}
			for i := range history {
				e := by.New(contract.EventEffectRecorded, "s-1", []byte("{}"), nil)
				e.Session, e.CallID = "s-1", fmt.Sprint("c-", i)
				m.append(e)
			}
			time.Sleep(time.Hour)
			m.first.Time = contract.Time(time.Now())
			m.append(m.first)
			m.ends(anExecutor)
			p := m.past.Follow(t.Context(), m.first, &m.call, Known{})
			defer p.Close()
			synctest.Wait()
			select {
			case <-p.Outcome():
			default:
				t.Error("the outcome was not found")
			}
			n = m.log.gets
		})
		return n
	}
	if few, many := reads(10), reads(100_000); many > few+20 {
		t.Errorf("%d reads behind 10 events, %d behind 100,000", few, many)
	}
}

// TestFollowKnown checks the state that Follow delivers if Known holds an event of the call, and if
// a newer event was recorded since. Follow must read only the session's events after Known.At: at
// most one entry, whether 10 or 100,000 events of other calls precede Known.At. If the known event
// is of a service that may not record it, Follow must not deliver it, and may read more entries.
func TestFollowKnown(t *testing.T) {
	for name, c := range map[string]struct {
		known func(m *mesh) eventlog.Entry // records the event for Known.Last
		later func(m *mesh)                // records events after Known.At and before Follow; nil: none
		state State
		reads bool // whether the whole session is read
	}{
		"proposed":               {known: func(m *mesh) eventlog.Entry { return m.append(m.again()) }, state: Overdue},
		"proposed, ended since":  {known: func(m *mesh) eventlog.Entry { return m.append(m.again()) }, later: func(m *mesh) { m.ends(anExecutor) }, state: Ended},
		"escalated":              {known: (*mesh).escalates, state: Escalated},
		"escalated, ended since": {known: (*mesh).escalates, later: func(m *mesh) { m.ends("policy") }, state: Ended},
		"ended":                  {known: func(m *mesh) eventlog.Entry { return m.ends(anExecutor) }, state: Ended},
		"expired":                {known: func(m *mesh) eventlog.Entry { return m.record("policy", contract.EventStartExpired, []byte("{}")) }, state: Overdue},
		"ended by a stranger":    {known: func(m *mesh) eventlog.Entry { return m.ends("llm-router") }, state: Overdue, reads: true},
	} {
		var entries []int64
		for _, n := range []int{10, 100_000} {
			synctest.Test(t, func(t *testing.T) {
				m := newMesh(t, 0)
				log := &logtest.Counter{Log: m.log}
				m.past.Ledger = log
				en := c.known(m)
				last, err := eventlog.Open(en, eventlog.Every)
				if err != nil {
					t.Fatal(err)
				}
				by := &emit.Emitter{Log: m.log, Tenant: "t", Source: "policy/p1", Now: time.Now}
				other := by.New(contract.EventEffectRecorded, "s-1", []byte("{}"), nil)
				other.Session, other.CallID = "s-1", "c-other"
				b, err := other.Encode()
				if err != nil {
					t.Fatal(err)
				}
				for i := range n {
					if _, _, err := m.log.Publish(other.Subject(), fmt.Sprint("e-", i), b, nil); err != nil {
						t.Fatal(err)
					}
				}
				at := m.log.Size()
				if c.later != nil {
					c.later(m)
				}
				p := m.past.Follow(t.Context(), m.first, &m.call, Known{Last: last, At: at})
				defer p.Close()
				r := Waiter{Probe: &ledger{lost: make(chan struct{})}}.Wait(t.Context(), p, Terms{Within: time.Minute}, Whole{})
				if r.State != c.state {
					t.Errorf("%s: state %d, want %d", name, r.State, c.state)
				}
				entries = append(entries, log.Entries.Load())
			})
		}
		if !c.reads && (entries[0] != entries[1] || entries[0] > 1) {
			t.Errorf("%s: %v entries read after 10 and 100,000 events", name, entries)
		}
	}
}

// again returns another event of the call that does not change its state.
func (m *mesh) again() *contract.Event {
	e := *m.first
	e.ID = "e-again"
	return &e
}

// TestWatch shows which changes of a call Next returns, at the gateway that proposed the call and
// at another one, with the state known from audit's index or not, and that each is returned once.
// After the tool was retired, the outcome is accepted from the executor that policy has named only.
func TestWatch(t *testing.T) {
	for name, c := range map[string]struct {
		instance string
		by       string // the executor according to the catalog
		before   string // the newest event that audit's index has: "proposal", "allowed", "claim" or "" for none
	}{
		"by the gateway that proposed it":    {"gw1", anExecutor, "proposal"},
		"elsewhere":                          {"gw2", anExecutor, "proposal"},
		"elsewhere, its state is not known":  {"gw2", anExecutor, ""},
		"retired tool":                       {"gw2", "", "proposal"},
		"retired tool, the call is allowed":  {"gw2", "", "allowed"},
		"retired tool, the call has started": {"gw2", "", "claim"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMesh(t, 0)
				m.past.Instance, m.by = c.instance, c.by
				allows := func() *contract.Event {
					e := (&emit.Emitter{Log: m.log, Tenant: "t", Source: "policy/p1", Now: time.Now}).New(contract.EventAllowed, "s-1", []byte("{}"), m.first)
					e.Target = anExecutor
					m.append(e)
					return e
				}
				claims := func() eventlog.Entry { return m.record(anExecutor, contract.EventEffectStarted, []byte("{}")) }
				known := Known{Last: m.first, At: m.log.Size()}
				switch c.before {
				case "":
					known = Known{}
				case "allowed":
					known.Last = allows()
				case "claim":
					allows()
					known.Last, _ = eventlog.Open(claims(), eventlog.Every)
				}
				if c.before != "" {
					known.At = m.log.Size()
				}
				w := m.past.Watch(m.first, &m.call, known)
				defer w.Close()
				next := func(want string) {
					t.Helper()
					e, err := w.Next(t.Context())
					if err != nil || (e == nil) != (want == "") || e != nil && (e.Name != want || e.CallID != m.call.ID) {
						t.Errorf("%v %v, want %q", e, err, want)
					}
				}
				if c.before == "allowed" || c.before == "claim" {
					next(known.Last.Name)
				} else {
					next("")
					allows()
					next(contract.EventAllowed)
				}
				next("")
				if c.before != "claim" {
					claims()
					next(contract.EventEffectStarted)
				}
				m.ends("llm-router")
				next("")
				_ = m.past.Proposer.Deliver(m.ends(anExecutor))
				select {
				case out := <-w.Outcome():
					if out.Event.Name != contract.EventEffectRecorded {
						t.Error(out.Event)
					}
				default:
					t.Error("the reader's outcome was not received")
				}
				next(contract.EventEffectRecorded)
				next("")
			})
		})
	}
}
