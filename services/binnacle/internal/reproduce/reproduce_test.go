package reproduce

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// world is a ledger of numbered events, a view that lists the keys of the events that it
// has applied, and a checker with its results.
type world struct {
	t       *testing.T
	c       *Checker
	stored  []snapshot.Stored
	states  map[string][]byte // by id of the snapshot
	results []string
	broken  error // error that the views return for every event; nil: none
}

func newWorld(t *testing.T, events int) *world {
	w := &world{t: t, states: map[string][]byte{}}
	log := &memlog.Log{}
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "gateway/gw1", Now: time.Now}
	for i := range events {
		if _, err := m.Append(t.Context(), m.New(contract.EventCancelRequested, fmt.Sprint("k", i+1), []byte(`{}`), nil)); err != nil {
			t.Fatal(err)
		}
	}
	declared := func(name, snapshots string, empty func(*view.Origin) (view.State, error)) view.Declaration {
		return view.Declaration{View: services.View{Name: name, Snapshot: snapshots}, Reader: bus.Reader{Filters: []string{bus.EveryEvent}}, Empty: empty}
	}
	w.c = &Checker{Log: log, Rate: 100_000, Pause: time.Minute,
		List:    func(context.Context) ([]snapshot.Stored, error) { return w.stored, nil },
		State:   func(_ context.Context, s *snapshot.Stored) ([]byte, error) { return w.states[s.ID], nil },
		Reject:  func(_ context.Context, s *snapshot.Stored, why error) error { return nil },
		Checked: func(s *snapshot.Stored, why error) { w.results = append(w.results, fmt.Sprintf("%s %v", s.ID, why)) },
		Views: []view.Declaration{
			declared("listed", "listed", func(*view.Origin) (view.State, error) { return w.keys(false), nil }),
			declared("loaded", "loaded", func(*view.Origin) (view.State, error) { return w.keys(true), nil }),
		}}
	return w
}

// keys returns a view that lists the keys of the events that it has applied. If loads is
// set, a snapshot of it contains that list, and otherwise the entries.
func (w *world) keys(loads bool) view.State {
	text := ""
	apply := func(e *contract.Event) error {
		text += e.Key + " "
		return w.broken
	}
	dump := func() []byte { return []byte(text) }
	if loads {
		return view.FoldLoad(apply, dump, func(b []byte) error { text = string(b); return nil })
	}
	return view.Fold(apply, dump)
}

func (w *world) store(id, name string, position int64, state string) {
	w.stored = append(w.stored, snapshot.Stored{ID: id, Snapshot: contract.Snapshot{View: name, Position: position}})
	w.states[id] = []byte(state)
}

// lines returns the state of a snapshot that consists of the entries with these
// sequences.
func (w *world) lines(seqs ...uint64) string {
	var b strings.Builder
	for _, seq := range seqs {
		en, err := w.c.Log.Get(w.t.Context(), seq)
		if err != nil {
			w.t.Fatal(err)
		}
		fmt.Fprintf(&b, "%d %s\n", seq, en.Data)
	}
	return b.String()
}

// run runs the checker for the duration d.
func (w *world) run(d time.Duration) {
	ctx, cancel := context.WithTimeout(w.t.Context(), d)
	defer cancel()
	w.c.Run(ctx)
}

// TestCompare shows that a snapshot is false if it lacks an entry, has one that is not
// on the ledger or is after its position, has another state, is of an unknown view, or
// is beyond the end of the ledger, and that each snapshot has one result. A snapshot
// of other code is not compared.
func TestCompare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		other := newWorld(t, 4)
		w.store("whole", "listed", 2, w.lines(1, 2))
		w.store("lacks", "listed", 3, w.lines(1, 3))
		w.store("later", "listed", 3, w.lines(1, 2, 4))
		w.store("forged", "listed", 3, w.lines(1, 2)+strings.Replace(other.lines(3), `"k3"`, `"k4"`, 1))
		w.store("garbage", "listed", 3, "x")
		w.store("same", "loaded", 3, "k1 k2 k3 ")
		w.store("other", "loaded", 4, "k1 k2 k3 ")
		w.store("unknown", "none", 4, "")
		w.store("older code", "loaded", 4, "x")
		w.stored[len(w.stored)-1].Code = 7
		w.store("beyond", "loaded", 5, "k1 k2 k3 k4 ")
		w.run(10 * time.Minute)
		got := strings.Join(w.results, "\n")
		for i, want := range []string{"whole <nil>", "lacks view listed, rebuilt from the ledger, differs", "later entry 4 is after its position", "forged entry 3", "garbage a line is not",
			"same <nil>", "other view loaded, rebuilt from the ledger, differs", `unknown no view "none" is known`, "older code <nil>", "beyond the ledger ends at 4"} {
			if i >= len(w.results) || !strings.HasPrefix(w.results[i], want) {
				t.Fatalf("result %d is not %q:\n%s", i, want, got)
			}
		}
		if len(w.results) != 10 {
			t.Errorf("%d results:\n%s", len(w.results), got)
		}
	})
}

// TestAgain shows that a failed check is repeated from the first entry, after pauses that
// double, and that a snapshot whose position the rebuilt views have passed is not
// compared.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		w.broken = errors.New("unreadable")
		w.store("a", "loaded", 3, "k1 k2 k3 ")
		w.run(6 * time.Minute) // checks are due after 1, 3 and 7 minutes; the third is not made
		if w.c.failed != 2 || len(w.results) != 0 {
			t.Fatalf("%d failed: %q", w.c.failed, w.results)
		}
		w.broken = nil
		w.run(90 * time.Second)
		w.store("old", "loaded", 2, "x")
		w.run(90 * time.Second)
		if len(w.results) != 1 || w.results[0] != "a <nil>" {
			t.Errorf("%q", w.results)
		}
	})
}

// TestPause shows that the checker reads at most Rate entries per second, and that the
// reading takes at most a tenth of the time.
func TestPause(t *testing.T) {
	const ms = time.Millisecond
	for _, k := range []struct {
		rate, n          int
		took, work, want time.Duration
	}{
		{0, 100, 10 * ms, 2 * ms, 40 * ms},
		{0, 200, 60 * ms, 2 * ms, 40 * ms},
		{0, 200, 100 * ms, 2 * ms, 0},
		{100, 100, 0, 0, time.Second},
		{0, 100, 300 * ms, 300 * ms, 2700 * ms},
		{0, 100, 3000 * ms, 300 * ms, 0},
		{1_000_000, 100, 2 * ms, ms, 8 * ms},
	} {
		c := &Checker{Rate: k.rate}
		if got := c.pause(k.n, k.took, k.work); got != k.want {
			t.Errorf("%d entries, rate %d, took %v, work %v: pause %v, want %v", k.n, k.rate, k.took, k.work, got, k.want)
		}
	}
}
