package handle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

var filter = bus.AggregateFilter("t", "policy", "counter")

func emitter(l eventlog.Log) *emit.Emitter {
	return &emit.Emitter{Log: l, Tenant: "t", Source: "policy/policy-1", Now: time.Now}
}

// TestDo shows that decide receives the aggregate's events in order, and that nothing is
// appended if it returns nil or an error.
func TestDo(t *testing.T) {
	l := &memlog.Log{}
	m := emitter(l)
	for n := range 3 {
		got, err := Do(t.Context(), l, filter, func(h []*contract.Event) (*contract.Event, error) {
			if len(h) != n {
				t.Errorf("%d events before append %d", len(h), n)
			}
			return m.New("counted", "counter", fmt.Appendf(nil, `{"n":%d}`, n), nil), nil
		})
		if err != nil || got == nil {
			t.Fatal(got, err)
		}
	}
	if got, err := Do(t.Context(), l, filter, func(h []*contract.Event) (*contract.Event, error) {
		for i, e := range h {
			if string(e.Data) != fmt.Sprintf(`{"n":%d}`, i) {
				t.Errorf("event %d is %s", i, e.Data)
			}
		}
		return nil, nil
	}); got != nil || err != nil {
		t.Error(got, err)
	}
	failed := errors.New("refused")
	if _, err := Do(t.Context(), l, filter, func([]*contract.Event) (*contract.Event, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	if l.Size() != 3 {
		t.Errorf("%d events", l.Size())
	}
}

// TestWriters shows that the function of each of several concurrent writers receives all
// events that are stored before the writer's own.
func TestWriters(t *testing.T) {
	l := &memlog.Log{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			m := emitter(l)
			for range 5 {
				if _, err := Do(t.Context(), l, filter, func(h []*contract.Event) (*contract.Event, error) {
					return m.New("counted", "counter", fmt.Appendf(nil, `{"n":%d}`, len(h)), nil), nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n := 0
	for en, err := range l.Scan(t.Context(), filter, 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil || string(e.Data) != fmt.Sprintf(`{"n":%d}`, n) {
			t.Fatalf("event %d is %v %v", n, e, err)
		}
		n++
	}
	if n != 20 {
		t.Errorf("%d events", n)
	}
}

// busy is a ledger on which every conditional append conflicts with another writer.
type busy struct{ memlog.Log }

func (b *busy) AppendExpect(context.Context, string, string, []byte, string, uint64) (uint64, error) {
	return 0, eventlog.ErrConflict
}

// TestGivesUp shows that Do returns eventlog.ErrConflict after a bounded number of
// attempts.
func TestGivesUp(t *testing.T) {
	l := &busy{}
	n := 0
	_, err := Do(t.Context(), l, filter, func([]*contract.Event) (*contract.Event, error) {
		n++
		return emitter(l).New("counted", "counter", []byte(`{}`), nil), nil
	})
	if !errors.Is(err, eventlog.ErrConflict) || n != tries {
		t.Errorf("%d attempts, %v", n, err)
	}
}

// TestDoFrom shows that decide receives only the events from the given sequence on, and
// is called again if any matching entry is stored in the meantime.
func TestDoFrom(t *testing.T) {
	log := &memlog.Log{}
	m := emitter(log)
	add := func() uint64 {
		seq, err := m.Append(t.Context(), m.New("counted", "counter", []byte(`{}`), nil))
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	add()
	second := add()
	for from, want := range map[uint64]int{1: 2, second: 1, second + 1: 0, second + 9: 0} {
		_, err := DoFrom(t.Context(), log, filter, from, func(h []*contract.Event) (*contract.Event, error) {
			if len(h) != want {
				t.Errorf("from %d: %d events, want %d", from, len(h), want)
			}
			return nil, nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if e, err := DoFrom(t.Context(), log, filter, second+1, func([]*contract.Event) (*contract.Event, error) {
		return m.New("decided", "counter", []byte(`{}`), nil), nil
	}); err != nil || e == nil || log.Size() != 3 {
		t.Errorf("decided on no events: %v", err)
	}
	second++
	tries := 0
	e, err := DoFrom(t.Context(), log, filter, second+1, func([]*contract.Event) (*contract.Event, error) {
		if tries++; tries == 1 {
			add()
		}
		return m.New("decided", "counter", []byte(`{}`), nil), nil
	})
	if err != nil || e == nil || tries != 2 {
		t.Errorf("decided %d times: %v", tries, err)
	}
}
