package held

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// history returns events of many sandboxes over some days. The end of some sandboxes is never
// recorded, and there are hours without events.
func history(r *rand.Rand) (all []*contract.Event) {
	at, open := 0, []string{}
	add := func(e *contract.Event) { all = append(all, e) }
	for n := range 200 {
		at += r.IntN(1200)
		if r.IntN(40) == 0 {
			at += 3600 * r.IntN(30)
		}
		id := fmt.Sprint("sb-", n)
		if r.IntN(3) == 0 || len(open) == 0 {
			e := created("t", id, "r-1", at)
			e.Data = contract.Bytes(&events.SandboxCreated{Actor: "alice", Session: "s-1", Instance: "r-1", IdleMS: 10_000, LifeMS: MaxLife.Milliseconds()})
			add(e)
			open = append(open, id)
			continue
		}
		i := r.IntN(len(open))
		switch id = open[i]; r.IntN(4) {
		case 0:
			add(fact("t", id, contract.EventSandboxExecStarted, at, &events.SandboxExecStarted{CallID: "c-1", Exec: fmt.Sprint("e-", n)}))
		case 1:
			add(fact("t", id, contract.EventSandboxAdopted, at, &events.SandboxAdopted{Instance: "r-2"}))
		case 2:
			add(ended(id, Terminated, at))
			open = slices.Delete(open, i, i+1)
		case 3: // its end is never recorded
			open = slices.Delete(open, i, i+1)
		}
	}
	return all
}

// timeOf returns the time of an event.
func timeOf(t *testing.T, e *contract.Event) time.Time {
	t.Helper()
	at, err := contract.ParseTime(e.Time)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestDumpBegin shows that an instance that starts after any event, and reads from the time that
// Begin returns, has after later events the dump of a view that has applied all events, whenever
// it calls Trim; and that the dumps contain sandboxes that are open and ones that have ended.
func TestDumpBegin(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	all := history(r)
	var whole View
	dumps, some := make([]string, len(all)), map[string]bool{}
	for i, e := range all {
		whole.Apply(uint64(i+1), e)
		dumps[i] = string(whole.Dump())
		for _, want := range []string{`"ended":""`, `"ended":"terminated"`, `"holder":"r-2"`, `"running":{"e-`} {
			some[want] = some[want] || strings.Contains(dumps[i], want)
		}
	}
	if len(some) != 4 || slices.Contains([]bool{some[`"ended":""`], some[`"ended":"terminated"`], some[`"holder":"r-2"`], some[`"running":{"e-`]}, false) {
		t.Fatalf("the history is too simple: %v", some)
	}
	skipped := 0
	for start := range all {
		now := timeOf(t, all[start]).Add(time.Duration(r.IntN(100)) * time.Hour) // it may start long after the event
		oldest := Begin(timeOf(t, all[start]), now)
		from := slices.IndexFunc(all, func(e *contract.Event) bool { return !timeOf(t, e).Before(oldest) })
		skipped = max(skipped, from)
		var v View
		for i := from; i < len(all); i++ {
			if v.Apply(uint64(i+1), all[i]); r.IntN(5) == 0 {
				v.Trim()
			}
			if i < start || i > start+20 && r.IntN(8) > 0 { // dumps take long
				continue
			}
			if got := string(v.Dump()); got != dumps[i] {
				t.Fatalf("an instance that started at event %d and read from event %d, after event %d:\n%s\nwant\n%s", start+1, from+1, i+1, got, dumps[i])
			}
		}
	}
	if skipped == 0 {
		t.Error("every instance read the whole history")
	}
}

// TestDump shows that each event of a sandbox changes the dump; that a view that misses one of
// them has another dump, unless a later event undoes it; and that a sandbox is left out if, at
// the time of the newest event, it had ended for longer than Remember or was created
// MaxLife + LostAfter ago.
func TestDump(t *testing.T) {
	all := []*contract.Event{created("t", "sb-1", "r-1", 0), started("e-1", 1), started("e-2", 2), stopped("e-1", 3),
		fact("t", "sb-1", contract.EventSandboxAdopted, 4, &events.SandboxAdopted{Instance: "r-2"}),
		fact("t", "sb-1", contract.EventSandboxRenewed, 5, &events.SandboxRenewed{CallID: "c-2"}), ended("sb-1", Idle, 6)}
	var v View
	before := ""
	for i, e := range all {
		v.Apply(uint64(i+1), e)
		if got := string(v.Dump()); got == before {
			t.Errorf("event %d does not change the dump", i+1)
		}
		before = string(v.Dump())
	}
	undone := map[int]bool{1: true, 5: true} // a command that stops, and a renewal, which the end follows
	for n := range all {
		var w View
		for i, e := range all {
			if i != n {
				w.Apply(uint64(i+1), e)
			}
		}
		if got := string(w.Dump()); (got == before) != undone[n] {
			t.Errorf("without event %d: %s", n+1, got)
		}
	}
	hour := int(Remember / time.Second)
	v.Apply(8, created("u", "sb-2", "r-1", 6+hour))
	if got := string(v.Dump()); !strings.Contains(got, `"sb-1"`) {
		t.Errorf("left out too early: %s", got)
	}
	v.Apply(9, fact("u", "sb-2", contract.EventSandboxRenewed, 7+hour, &events.SandboxRenewed{CallID: "c-3"}))
	if got := string(v.Dump()); strings.Contains(got, `"sb-1"`) || !strings.Contains(got, `"sb-2"`) {
		t.Errorf("after an hour: %s", got)
	}
	v.Apply(10, created("u", "sb-3", "r-1", 6+hour+int((MaxLife+LostAfter)/time.Second)))
	if got := string(v.Dump()); strings.Contains(got, `"sb-2"`) || !strings.Contains(got, `"sb-3"`) {
		t.Errorf("after its life: %s", got)
	}
}

// TestBegin checks from which time an instance reads: History before the newest event or, without
// one or if it is in the future, before now.
func TestBegin(t *testing.T) {
	for newest, want := range map[time.Time]time.Time{{}: noon, noon.Add(time.Hour): noon, noon.Add(-time.Hour): noon.Add(-time.Hour)} {
		if got := Begin(newest, noon); !got.Equal(want.Add(-History)) {
			t.Errorf("the newest event at %s: from %s", newest, got)
		}
	}
}
