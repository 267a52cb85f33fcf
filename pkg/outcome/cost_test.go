package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// session is a session on a ledger, to which fill appends ended calls. n is the number
// of events appended.
type session struct {
	log   eventlog.Log
	n     int
	waits []func(context.Context) (uint64, error)
}

// fill appends n ended calls, each with three events, and waits until they are stored.
func (s *session) fill(t *testing.T, n int) {
	t.Helper()
	small := []byte(`{}`)
	for i := range n {
		id := fmt.Sprint("c-old-", i)
		s.start(t, event("policy", contract.EventAllowed, executor, id, small))
		s.start(t, event(executor, contract.EventEffectStarted, "", id, small))
		s.start(t, event(executor, contract.EventEffectRecorded, "", id, small))
	}
	s.wait(t)
}

// wait waits until the started appends have ended.
func (s *session) wait(t *testing.T) {
	t.Helper()
	for _, wait := range s.waits {
		if _, err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.waits = nil
}

// start starts to append an event without waiting until it is stored. At most 2,000
// appends are outstanding.
func (s *session) start(t *testing.T, e *contract.Event) {
	t.Helper()
	s.n++
	e.ID = fmt.Sprint("e-", s.n)
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if s.waits = append(s.waits, s.log.Start(e.Subject(), e.ID, b)); len(s.waits) > 2000 {
		if _, err := s.waits[0](t.Context()); err != nil {
			t.Fatal(err)
		}
		s.waits = s.waits[1:]
	}
}

// lookups passes to measure each operation that reads the history of a call or the end
// of a receipt chain, in order and on one ledger. The operations check their results.
func lookups(t *testing.T, log eventlog.Log, measure func(name string, f func())) {
	t.Helper()
	ctx := t.Context()
	call := outcome.Call{Tenant: "t", Session: "s-1", ID: "c-new", Executor: executor}
	m := emitter(log)
	// The chain ends with a receipt, followed by an entry that is not a valid outcome.
	record(t, recorder(m), event(executor, contract.EventEffectStarted, "", "c-last", []byte(`{}`)), "c-last")
	put(t, log, event("judge", contract.EventEffectRecorded, "", "c-last", []byte(`{}`)))
	allowed := put(t, log, event("policy", contract.EventAllowed, executor, "c-new", []byte(`{}`)))
	look := func(from uint64, by string, recorded bool) {
		t.Helper()
		h, err := call.Look(ctx, log, from)
		if err != nil || h.ClaimedBy() != by || h.Recorded != recorded {
			t.Errorf("claimed by %q, recorded %v, %v; want %q, %v", h.ClaimedBy(), h.Recorded, err, by, recorded)
		}
	}
	measure("unclaimed work that is delivered again", func() { look(allowed, "", false) })
	claim := event(executor, contract.EventEffectStarted, "", "c-new", []byte(`{}`))
	if err := outcome.Claim(ctx, log, claim, executor); err != nil {
		t.Fatal(err)
	}
	measure("a claim that was lost", func() {
		second := event(executor, contract.EventEffectStarted, "", "c-new", []byte(`{"n":2}`))
		var taken *eventlog.TakenError
		if err := outcome.Claim(ctx, log, second, executor); !errors.As(err, &taken) {
			t.Errorf("%v, want the sequence of the first claim", err)
			return
		}
		look(taken.Seq, claim.Source, false)
	})
	measure("claimed work that is delivered again", func() { look(allowed, claim.Source, false) })
	measure("what allows the call, from an event it caused", func() {
		if e, seq, err := call.Allowed(ctx, log, allowed+1); err != nil || seq != allowed || e.CallID != "c-new" {
			t.Errorf("found %d, want %d: %v", seq, allowed, err)
		}
	})
	measure("what allows the call, from the ledger's end", func() {
		if _, seq, err := call.Allowed(ctx, log, 0); err != nil || seq != allowed {
			t.Errorf("found %d, want %d: %v", seq, allowed, err)
		}
	})
	measure("an outcome on a chain whose end is no receipt", func() { record(t, recorder(m), claim, "c-new") })
	measure("a recorded call", func() { look(allowed, claim.Source, true) })
	measure("another outcome of a call", func() {
		if err := end(t, recorder(m), claim, "c-new", contract.Failed); !errors.Is(err, outcome.ErrSuperseded) {
			t.Error(err)
		}
	})
}

// later passes to measure the look-ups of a call that ended and of one that expired, after n
// more calls of the session have ended and n have expired.
func later(t *testing.T, s *session, n int, measure func(name string, f func())) {
	t.Helper()
	ended, ending := event(executor, contract.EventEffectStarted, "", "c-ended", []byte(`{}`)), event(executor, contract.EventEffectRecorded, "", "c-ended", []byte(`{}`))
	expired, expiring := event("policy", contract.EventStartExpired, "", "c-expired", []byte(`{}`)), event("policy", contract.EventEffectRecorded, "", "c-expired", []byte(`{}`))
	from := put(t, s.log, event("policy", contract.EventAllowed, executor, "c-ended", []byte(`{}`)))
	put(t, s.log, event("policy", contract.EventAllowed, executor, "c-expired", []byte(`{}`)))
	for _, e := range []*contract.Event{ended, expired, ending, expiring} {
		put(t, s.log, e)
	}
	s.fill(t, n)
	for i := range n {
		s.start(t, event("policy", contract.EventStartExpired, "", fmt.Sprint("c-late-", i), []byte(`{}`)))
	}
	s.wait(t)
	for name, claim := range map[string]*contract.Event{"a call that ended long ago": ended, "a call that expired long ago": expired} {
		measure(name, func() {
			h, err := outcome.CallOf(claim, executor).Look(t.Context(), s.log, from)
			if err != nil || h.ClaimedBy() != claim.Source || !h.Recorded {
				t.Errorf("%s: claimed by %q, recorded %v, %v", name, h.ClaimedBy(), h.Recorded, err)
			}
		})
	}
}

// TestCostOfReads shows that each operation of lookups and later makes the same number of reads
// in a session of 10 calls as in one of 100,000. An operation of lookups reads at most
// 32 entries, and one of later at most 160.
func TestCostOfReads(t *testing.T) {
	read := map[string][]int64{}
	for _, n := range []int{10, 100_000} {
		log := &logtest.Counter{Log: &memlog.Log{}}
		s := &session{log: log}
		s.fill(t, n)
		most := int64(32) // maximum number of entries read; less than the first window of eventlog.Before
		measure := func(name string, f func()) {
			log.Reset()
			f()
			if got := log.Entries.Load(); got > most {
				t.Errorf("%s in a session of %d calls: %d entries read", name, n, got)
			}
			read[name] = append(read[name], log.Reads.Load())
		}
		lookups(t, log, measure)
		most = 160
		later(t, s, n, measure)
	}
	for name, got := range read {
		if len(got) != 2 || got[0] != got[1] {
			t.Errorf("%s: %v reads", name, got)
		}
	}
}

// TestCostOnServer is like TestCostOfReads, with sessions of 10 and 4,000 calls on the stream
// EVENTS of a NATS server. It checks that the server sends at most 210 messages more for
// an operation in the longer session: 70 for each of at most three scans.
func TestCostOnServer(t *testing.T) {
	sizes := []int{10, 4000}
	sent := map[string][]uint64{}
	for _, n := range sizes {
		b := meshtest.Start(t, []bus.Declaration{{Service: executor, Slots: 1}})
		conn := b.Connect(t, "provision") // the provisioning identity may publish as any service
		log := eventlog.JetStream{Conn: conn}
		s := &session{log: log}
		s.fill(t, n)
		measure := func(name string, f func()) {
			before := conn.NC.Stats().InMsgs
			f()
			sent[name] = append(sent[name], conn.NC.Stats().InMsgs-before)
		}
		lookups(t, log, measure)
		later(t, s, n, measure)
	}
	for name, got := range sent {
		if len(got) != 2 || got[1] > got[0]+3*70 { // each of at most three scans may read the rest of a batch
			t.Errorf("%s: %v messages in sessions of %v calls", name, got, sizes)
		}
	}
}

// TestEndedOnce shows that repeated calls of Ended read each outcome of the session
// once, while other calls of the session end.
func TestEndedOnce(t *testing.T) {
	log := &logtest.Counter{Log: &memlog.Log{}}
	call := outcome.Call{Tenant: "t", Session: "s-1", ID: "c-parent", Executor: executor}
	put(t, log.Log, event("policy", contract.EventAllowed, executor, "c-parent", []byte(`{}`)))
	if err := outcome.Claim(t.Context(), log.Log, event(executor, contract.EventEffectStarted, "", "c-parent", []byte(`{}`)), executor); err != nil {
		t.Fatal(err)
	}
	h, err := call.Look(t.Context(), log, 1)
	if err != nil || h.Recorded {
		t.Fatal(h, err)
	}
	log.Reset()
	const n = 500
	for i := range n {
		put(t, log.Log, event("judge", contract.EventEffectRecorded, "", fmt.Sprint("c-", i), []byte(`{}`)))
		if h.Recorded, h.Next, err = call.Ended(t.Context(), log, h.Next); err != nil || h.Recorded {
			t.Fatal(h, err)
		}
	}
	if got := log.Entries.Load(); got != n {
		t.Errorf("%d entries read for %d outcomes", got, n)
	}
	put(t, log.Log, event(executor, contract.EventEffectRecorded, "", "c-parent", []byte(`{}`)))
	if h.Recorded, _, err = call.Ended(t.Context(), log, h.Next); err != nil || !h.Recorded {
		t.Error("its own outcome is not seen", err)
	}
}
