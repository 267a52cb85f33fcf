package limit

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// TestSave shows that a saved state loads as an equal state, from which later decisions
// and the pruning of old windows are the same. A malformed state changes nothing.
func TestSave(t *testing.T) {
	limits := []guard.Limit{{ID: "l", Level: "agent", Measure: "cents", Max: 1000, Window: "minute"}, {ID: "c", Level: "agent", Measure: "calls", Max: 5, Window: "concurrent"}}
	a := &book{t: t, limits: limits}
	at := noon
	step := func(from, to int, books ...*book) {
		for i := from; i < to; i++ {
			at = at.Add(time.Second)
			for _, b := range books {
				b.want(b.one(at, ask(fmt.Sprint("c", i), "a", 3)), "")
				if i%10 != 9 || i < 1900 {
					b.settle(at, fmt.Sprint("c", i), contract.Succeeded, contract.Usage{})
				}
			}
		}
	}
	step(0, 1000, a)
	a.want(a.one(at, ask("open", "b", 3)), "")
	raw, err := a.s.Save()
	if err != nil {
		t.Fatal(err)
	}
	b := &book{t: t, limits: limits}
	if err := b.s.Load(raw); err != nil {
		t.Fatal(err)
	}
	if !b.s.IsOpen(Call{ID: "open"}) || b.s.Session(Call{ID: "open"}) != "s-b" {
		t.Error("the open reservation is lost")
	}
	step(1000, 1500, a, b)
	if !bytes.Equal(a.s.Dump(), b.s.Dump()) || len(a.s.Dump()) == 0 {
		t.Errorf("the loaded state differs after later events:\n%s\n%s", b.s.Dump(), a.s.Dump())
	}
	for _, r := range []Request{ask("x", "a", 5000), ask("open", "b", 3)} {
		if x, y := a.one(at, r), b.one(at, r); x != y {
			t.Errorf("%s: %q and %q", r.ID, x, y)
		}
	}
	before := b.s.Dump()
	for _, bad := range []string{`{`, `{"open":[{"call_id":1}]}`} {
		if err := b.s.Load([]byte(bad)); err == nil || !bytes.Equal(b.s.Dump(), before) {
			t.Errorf("%s: %v, or the state has changed", bad, err)
		}
	}
}
