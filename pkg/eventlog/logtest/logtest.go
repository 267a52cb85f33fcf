// Package logtest provides the test suite for implementations of eventlog.Log, a ledger
// that counts reads, and a consumer's message that records its acknowledgement.
package logtest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Run tests appends, conflicts and reads of an implementation of eventlog.Log. open
// returns an empty log for each test.
func Run(t *testing.T, open func(t *testing.T) eventlog.Log) {
	for _, c := range []struct {
		name string
		test func(*testing.T, eventlog.Log)
	}{
		{"append and read back", readBack},
		{"resend is the same event, a foreign one is a conflict", resend},
		{"expectation", expectation},
		{"one winner of many", oneWinner},
		{"claim against expiry", claimOrExpiry},
		{"scan", scan},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// chain is the filter of the receipt chain of session s-1. It matches every subject that
// the function subject returns.
const chain = "evt.t.*.*.effect_recorded.s-1"

func subject(svc string) string { return "evt.t." + svc + ".gw1.effect_recorded.s-1" }

func readBack(t *testing.T, l eventlog.Log) {
	ctx := t.Context()
	seq, err := l.Append(ctx, subject("a"), "1", []byte(`{"n":1}`))
	if err != nil || seq == 0 {
		t.Fatal(seq, err)
	}
	en, err := l.Get(ctx, seq)
	if err != nil || string(en.Data) != `{"n":1}` || en.Subject != subject("a") || en.Seq != seq {
		t.Fatalf("%+v %v", en, err)
	}
	if _, err := l.Get(ctx, seq+1); !errors.Is(err, eventlog.ErrNotFound) {
		t.Fatal(err)
	}
	if _, err := l.Last(ctx, "evt.other.>"); !errors.Is(err, eventlog.ErrNotFound) {
		t.Fatal(err)
	}
}

func resend(t *testing.T, l eventlog.Log) {
	ctx := t.Context()
	first, _ := l.Append(ctx, subject("a"), "claim:c1", []byte(`{"by":"a"}`))
	again, err := l.Append(ctx, subject("a"), "claim:c1", []byte(`{"by":"a"}`))
	if err != nil || again != first {
		t.Fatal(again, first, err)
	}
	if _, err := l.Append(ctx, subject("b"), "claim:c1", []byte(`{"by":"b"}`)); !errors.Is(err, eventlog.ErrIDConflict) {
		t.Fatal(err)
	}
}

func expectation(t *testing.T, l eventlog.Log) {
	ctx := t.Context()
	a, err := l.AppendExpect(ctx, subject("a"), "1", []byte(`{"n":1}`), chain, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.AppendExpect(ctx, subject("b"), "2", []byte(`{"n":2}`), chain, 0); !errors.Is(err, eventlog.ErrConflict) {
		t.Fatal(err)
	}
	b, err := l.AppendExpect(ctx, subject("b"), "2", []byte(`{"n":2}`), chain, a)
	if err != nil {
		t.Fatal(err)
	}
	// Service b repeats its append, as after a lost response.
	again, err := l.AppendExpect(ctx, subject("b"), "2", []byte(`{"n":2}`), chain, a)
	if err != nil || again != b {
		t.Fatalf("lost answer: %d %v, want %d", again, err, b)
	}
	// An event of an unrelated subject does not conflict.
	if _, err := l.Append(ctx, "evt.t.a.gw1.effect_recorded.s-2", "3", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AppendExpect(ctx, subject("c"), "4", []byte(`{"n":4}`), chain, b); err != nil {
		t.Fatal(err)
	}
	// An append with the same id but other data is another writer's event, even with the
	// current expected sequence.
	last, _ := l.Last(ctx, chain)
	if _, err := l.AppendExpect(ctx, subject("x"), "4", []byte(`{"n":5}`), chain, last.Seq); !errors.Is(err, eventlog.ErrIDConflict) {
		t.Fatal(err)
	}
}

func oneWinner(t *testing.T, l eventlog.Log) {
	ctx := t.Context()
	var won, lost atomic.Int32
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			_, err := l.AppendExpect(ctx, subject(fmt.Sprint("w", i)), fmt.Sprint(i), []byte(fmt.Sprintf(`{"n":%d}`, i)), chain, 0)
			switch {
			case err == nil:
				won.Add(1)
			case errors.Is(err, eventlog.ErrConflict):
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 31 {
		t.Fatal(won.Load(), lost.Load())
	}
}

func claimOrExpiry(t *testing.T, l eventlog.Log) {
	ctx := t.Context()
	var won atomic.Int32
	for i := range 50 {
		won.Store(0)
		var wg sync.WaitGroup
		for _, by := range []string{services.SessionRunner, "policy"} {
			wg.Go(func() {
				_, err := l.Append(ctx, "evt.t."+by+".gw1.effect_started.s-1", fmt.Sprint("claim:", i), []byte(`{"by":"`+by+`"}`))
				if err == nil {
					won.Add(1)
				} else if !errors.Is(err, eventlog.ErrIDConflict) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d winners", i, won.Load())
		}
	}
}

func scan(t *testing.T, l eventlog.Log) {
	ctx := t.Context()
	for i := range 10 {
		if _, err := l.Append(ctx, fmt.Sprintf("evt.t.a.-.x.k%d", i%2), fmt.Sprint(i), []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	var got string
	for en, err := range l.Scan(ctx, "evt.*.a.*.*.k1", 4) {
		if err != nil {
			t.Fatal(err)
		}
		got += string(en.Data)
	}
	if got != "3579" {
		t.Fatal(got)
	}
}
