package egressbroker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

// others appends n events of each name, recorded at a time, about another call of the session. They
// stand for those of n calls.
func (b *broker) others(n int, at time.Time, names ...string) {
	b.t.Helper()
	for _, name := range names {
		source := "egress-broker/egress-broker-2"
		if name == contract.EventEgressRequested {
			source = b.runner.Source
		}
		by := &emit.Emitter{Log: b.log, Tenant: "t", Source: source, Now: func() time.Time { return at }}
		e := by.New(name, "s-1", []byte("{}"), nil)
		e.Session, e.CallID = "s-1", "c-other"
		doc, err := e.Encode()
		if err != nil {
			b.t.Fatal(err)
		}
		for i := range n {
			if _, _, err := b.log.Publish(e.Subject(), fmt.Sprint(name, n, i, at.UnixNano()), doc, nil); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// TestCostOfReads shows that the opening of a call's proxy, the end of it, and a sweep of the
// journal that a process left, of which the end is on the ledger or not, recently or long ago, make
// as many reads of at most 70 entries after 100,000 later calls of the session as after 10.
func TestCostOfReads(t *testing.T) {
	read := map[string][]int64{}
	for _, n := range []int{10, 100_000} {
		b := newBroker(t, filepath.Join(t.TempDir(), "i"), "a.example")
		if err := os.Mkdir(b.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		log, now := &logtest.Counter{Log: b.log}, time.Now()
		b.log.Window, b.log.Now = 5*time.Minute, func() time.Time { return now }
		b.env.Emit.Log, b.env.Emit.Now = log, b.log.Now
		measure := func(name string, f func()) {
			t.Helper()
			log.Reset()
			f()
			if got := log.Entries.Load(); got > 70 {
				t.Errorf("%s after %d calls: %d entries read", name, n, got)
			}
			read[name] = append(read[name], log.Reads.Load())
		}
		b.others(n, now, contract.EventEgressRequested, events.EgressOpenedName, events.FlowEndedName, events.EgressClosedName)
		var socket string
		measure("an opening", func() {
			out, refusal, err := b.opened(t.Context(), b.request, b.seq, &egress.Request{CallID: "c-1", Inbox: "egress-1", To: "session-runner-1"}, b.allowed, 1)
			if socket = out.Socket; refusal != "" || err != nil {
				t.Fatal(refusal, err)
			}
		})
		opened := b.open["c-1"].note.opened
		measure("an end", b.closeAll)
		closed := func(after uint64) (count int) {
			for en, err := range b.log.Scan(t.Context(), bus.Filter{Event: events.EgressClosedName}.String(), after+1) {
				if err != nil {
					t.Fatal(err)
				}
				if contract.PeekCallID(en.Data) == "c-1" {
					count++
				}
			}
			return count
		}

		// leave leaves a journal as a killed process does, and sweep checks that the end of the
		// proxy is recorded once. The events of later calls are an hour younger.
		leave := func(opened string, mark bool) {
			t.Helper()
			j, err := newJournal(socket+note, b.seq, opened)
			if err != nil {
				t.Fatal(err)
			}
			if mark {
				b.ledger().marked(j)
			}
			if err := j.file.Close(); err != nil {
				t.Fatal(err)
			}
		}
		sweep := func(name string, more int) {
			t.Helper()
			before := b.log.Size()
			measure(name, func() {
				if err := b.sweep(t.Context()); err != nil {
					t.Error(name, err)
				}
			})
			if got := closed(before); got != more {
				t.Errorf("%s: %d ends recorded, want %d", name, got, more)
			}
			if _, err := os.Stat(socket + note); !errors.Is(err, os.ErrNotExist) {
				t.Error(name, err)
			}
		}
		fact := func(id string) {
			t.Helper()
			if _, err := b.env.Emit.Append(t.Context(), closing(b.Service, b.request, id, &events.EgressClosed{CallID: "c-1", Reason: "x"})); err != nil {
				t.Fatal(err)
			}
		}
		leave(opened, true)
		sweep("a recent end that is recorded", 0)
		leave("e-1", false)
		sweep("no attempt to record an end", 1)
		leave("e-2", true)
		sweep("a recent end that is not recorded", 1)
		for i, known := range []bool{true, false} {
			id := fmt.Sprint("e-later-", i)
			leave(id, true)
			if known {
				fact(id)
			}
			b.others(n, now.Add(time.Hour), events.EgressClosedName)
			now = now.Add(2 * time.Hour)
			sweep(fmt.Sprint("an end of long ago, recorded: ", known), map[bool]int{false: 1}[known])
		}
	}
	for name, got := range read {
		if len(got) != 2 || got[0] != got[1] {
			t.Errorf("%s: %v reads", name, got)
		}
	}
}

// TestLaterRequest shows that of two requests of a call the earlier one is refused if the later
// one was handled first, by another instance, and that it gets a proxy with the rest of the
// allowance once that of the other one is closed.
func TestLaterRequest(t *testing.T) {
	a, b := newBroker(t, t.TempDir(), "a.example"), newBroker(t, t.TempDir(), "a.example")
	b.log, b.env.Emit.Log, b.runner.Log = a.log, a.log, a.log
	b.env.Emit.Source = "egress-broker/egress-broker-2"
	for _, x := range []*broker{a, b} {
		x.allowed.Decision.Intent.Budget = &contract.Reservation{Amounts: contract.Amounts{EgressBytes: 1000}}
	}
	first, later := &egress.Request{CallID: "c-1", Inbox: "egress-1"}, &egress.Request{CallID: "c-1", Inbox: "egress-2"}
	e, seq := b.put(contract.EventEgressRequested, contract.Bytes(later))
	if _, refusal, err := b.opened(t.Context(), e, seq, later, b.allowed, 1); refusal != "" || err != nil {
		t.Fatal(refusal, err)
	}
	for range 2 {
		if _, refusal, err := a.opened(t.Context(), a.request, a.seq, first, a.allowed, 1); !strings.Contains(refusal, "already") || err != nil {
			t.Errorf("%q, %v", refusal, err)
		}
	}
	b.append(b.fact(e, events.FlowEndedName, contract.Bytes(&events.FlowEnded{CallID: "c-1", BytesIn: 400})))
	b.closeAll()
	if _, refusal, err := a.opened(t.Context(), a.request, a.seq, first, a.allowed, 1); refusal != "" || err != nil {
		t.Errorf("%q, %v", refusal, err)
	}
	if got := a.data(events.EgressOpenedName); !strings.Contains(got, `"limit_bytes":600,`) {
		t.Error(got)
	}
	if left, err := filepath.Glob(filepath.Join(a.Dir, "*"+note)); err != nil || len(left) != 1 {
		t.Error("journals of attempts that were refused remain:", left, err)
	}
}

// TestOldRequest shows that a request is refused if its requester no longer waits for a response.
func TestOldRequest(t *testing.T) {
	b := newBroker(t, t.TempDir(), "a.example")
	b.env.Emit.Now = func() time.Time { return time.Now().Add(maxAge + time.Second) }
	_, refusal, err := b.decide(t.Context(), b.request, b.seq, &egress.Request{CallID: "c-1", Inbox: "egress-1"})
	if !strings.Contains(refusal, "too old") || err != nil {
		t.Errorf("%q, %v", refusal, err)
	}
}
