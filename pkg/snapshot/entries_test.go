package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
)

// rawEvent returns the bytes of an event and its subject.
func rawEvent(t *testing.T) ([]byte, string) {
	t.Helper()
	m := emit.Emitter{Tenant: "t", Source: "gateway/gw1", Now: time.Now}
	e := m.New(contract.EventCancelRequested, "k", []byte(`{}`), nil)
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b, e.Subject()
}

// TestReduce checks when Add calls Reduce: when the list has more than 1,000 events, and
// later when it has more than the sum of 1,000 and twice the number that Reduce left.
// With Off, it never does. Reduce may be nil.
func TestReduce(t *testing.T) {
	raw, subject := rawEvent(t)
	for _, off := range []bool{false, true} {
		var calls []int
		added := 0
		l := snapshot.Entries{Off: off, Apply: func(eventlog.Entry) error { return nil }, Reduce: func(all []eventlog.Entry) []eventlog.Entry {
			calls = append(calls, added)
			return all[:10]
		}}
		for added < 2100 {
			added++
			if err := l.Add(eventlog.Entry{Seq: uint64(added), Subject: subject, Data: raw}); err != nil {
				t.Fatal(err)
			}
			if added%2 == 0 {
				continue
			}
			if err := l.Add(eventlog.Entry{Seq: uint64(added), Subject: subject, Data: []byte("not an event")}); err != nil {
				t.Fatal(err)
			}
		}
		if want := "[1001 2012]"; !off && fmt.Sprint(calls) != want || off && len(calls) > 0 {
			t.Errorf("off %v: Reduce called after %v events", off, calls)
		}
	}
	keep := snapshot.Entries{Apply: func(eventlog.Entry) error { return nil }} // without Reduce
	for seq := range uint64(1100) {
		if err := keep.Add(eventlog.Entry{Seq: seq + 1, Subject: subject, Data: raw}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLoadEntries checks that a state is loaded only if it is a list of events, Check
// accepts them, and Apply accepts each.
func TestLoadEntries(t *testing.T) {
	raw, _ := rawEvent(t)
	valid := "3 " + string(raw) + "\n7 " + string(raw) + "\n"
	errCheck, errApply := errors.New("check"), errors.New("apply")
	for name, c := range map[string]struct {
		state        string
		check, apply error
		want         string
		applied      int
	}{
		"valid":             {valid, nil, nil, "", 2},
		"empty":             {"", nil, nil, "", 0},
		"rejected by Check": {valid, errCheck, nil, "check", 0},
		"rejected by Apply": {valid, nil, errApply, "apply", 1},
		"not an event":      {"3 {}\n", nil, nil, "entry 3", 0},
		"sequence too long": {fmt.Sprintf("%d0 %s\n", uint64(math.MaxUint64), raw), nil, nil, "a line is not", 0},
	} {
		applied := 0
		l := snapshot.Entries{Check: func([]eventlog.Entry) error { return c.check }, Apply: func(eventlog.Entry) error { applied++; return c.apply }}
		err := l.Source("v", 1, nil).Load([]byte(c.state))
		if applied != c.applied || c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %d applied, %v, want %d, %q", name, applied, err, c.applied, c.want)
		}
	}
}

// TestRejected checks that the reason in the event that rejects a snapshot has at most
// 300 bytes and is valid UTF-8.
func TestRejected(t *testing.T) {
	for in, want := range map[string]string{
		"short":                                 "short",
		strings.Repeat("x", 300):                strings.Repeat("x", 300),
		strings.Repeat("x", 301):                strings.Repeat("x", 300),
		strings.Repeat("x", 299) + "\u00e4tail": strings.Repeat("x", 299),
	} {
		if got := new(snapshot.Stored).Rejected(errors.New(in)).Reason; got != want {
			t.Errorf("%d bytes: %q", len(in), got)
		}
	}
}

// TestParts checks the limits of the number of parts, also of a state without
// any, that List reports an error for a description under the subject of
// another snapshot, and that Save returns an error if the end of the ledger is
// not known.
func TestParts(t *testing.T) {
	f := newFixture(t)
	for n, incomplete := range map[int64]bool{-1: true, 0: false, 512: false, 513: true} {
		var s snapshot.Stored
		s.Chunks, s.Digest = n, sign.Digest(nil)
		_, err := s.State(t.Context(), f.conn)
		if errors.Is(err, snapshot.ErrIncomplete) != incomplete || n == 0 && err != nil {
			t.Errorf("%d parts: %v", n, err)
		}
	}
	f.checkpoint("log", 1) // the smallest log
	f.take("gw1", "", 1100)
	if text, from := f.start("gw2", 1, ""); text != "" || from != 1101 {
		t.Errorf("an empty state: %q from %d: %s", text, from, f.log)
	}
	all, err := snapshot.List(t.Context(), f.auditor, "t")
	if err != nil || len(all) != 1 || all[0].Err != nil {
		t.Fatal(all, err)
	}
	h := all[0].Snapshot
	h.Chunks = 512
	h = snapshot.Sign(f.keys["gateway"], h)
	for _, subject := range []string{all[0].Subject(bus.SnapshotHead), bus.SnapshotSubject("t", "gateway", "gw1", "gateway.other", "a", bus.SnapshotHead)} {
		if _, err := f.conn.JS.Publish(t.Context(), subject, contract.Bytes(&h)); err != nil {
			t.Fatal(err)
		}
	}
	if _, from := f.start("gw2", 1, ""); from != 1 || !strings.Contains(f.log.String(), "part 1 of 512") {
		t.Errorf("512 parts: from %d: %s", from, f.log)
	}
	if all, err = snapshot.List(t.Context(), f.auditor, "t"); err != nil || len(all) != 2 || (all[0].Err == nil) == (all[1].Err == nil) {
		t.Errorf("one of two is under the subject of another snapshot: %v %v", all, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := snapshot.Entries{Apply: func(eventlog.Entry) error { return nil }}
	r := bus.Reader{Name: "catalog", Stream: bus.Events, Filters: []string{eventlog.Every}}
	if _, _, err := l.Source("v", 1, follow.New(f.conn, "gw1", r, l.Apply)).Save(ctx); err == nil {
		t.Error("Save returned a state although the ledger's end is not known")
	}
}

// TestWhen checks after which growth of the ledger Close and renew take a snapshot. It
// also checks that renew takes one if the stored snapshot is of other code, and that a
// nil Store does nothing.
func TestWhen(t *testing.T) {
	f := newFixture(t)
	var none *snapshot.Store
	none.Close(t.Context())
	none.Keep(t.Context())

	for _, c := range []struct {
		name     string
		code     int64
		position uint64 // of the stored snapshot, whose code is 1
		tail     uint64 // passed to Renew; 0: Close is called
		want     int    // calls of Save
	}{
		{"Close", 1, events - 1001, 0, 1},
		{"Close", 1, events - 1000, 0, 1},
		{"Close", 1, events - 999, 0, 0},
		{"Renew", 1, 900, 899, 1}, // entries were lost
		{"Renew", 1, 900, 900, 0},
		{"Renew", 1, 900, 949, 0},
		{"Renew", 1, 900, 950, 1},
		{"Renew", 1, 900, 951, 1},
		{"Renew", 2, 900, 910, 1}, // the snapshot is of other code
	} {
		f.take("gw1", "x", c.position)
		saves := 0
		s := f.store("gw2")
		s.Every = 50
		s.SignKey = func() *sign.Key { return nil } // so the second instance stores none
		s.Start(t.Context(), snapshot.Source{View: "gateway.catalog", Code: c.code, Load: func([]byte) error { return nil },
			Save: func(context.Context) ([]byte, uint64, error) { saves++; return []byte("y"), events, nil }})
		if c.tail == 0 {
			s.Close(t.Context())
		} else {
			s.Renew(t.Context(), c.tail)
		}
		if saves != c.want {
			t.Errorf("%s at %d after a snapshot at %d: Save called %d times, want %d", c.name, c.tail, c.position, saves, c.want)
		}
	}
}

// positions returns the positions of the stored snapshots of an instance.
func (f *fixture) positions(instance string) string {
	f.t.Helper()
	all, err := snapshot.List(f.t.Context(), f.auditor, "t")
	if err != nil {
		f.t.Fatal(err)
	}
	var out []int64
	for _, h := range all {
		if h.Instance == instance {
			out = append(out, h.Position)
		}
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// TestNewestTwo checks that an instance keeps its two newest snapshots, also after a
// restart and beside another instance, and that Take stores nothing if Save fails or the
// view has not advanced.
func TestNewestTwo(t *testing.T) {
	f := newFixture(t)
	var failed error
	m := memory{position: 1000}
	src := m.source(1)
	src.Save = func(context.Context) ([]byte, uint64, error) { return []byte("x"), m.position, failed }
	s := f.store("gw1")
	s.Start(t.Context(), src)
	for _, c := range []struct {
		position uint64
		err      error
		want     string
		log      string // in the log of this call; "": nothing is logged
	}{
		{1000, nil, "[1000]", "snapshot stored"},
		{1000, nil, "[1000]", ""},
		{1001, errors.New("behind"), "[1000]", "snapshot not stored"},
		{1001, nil, "[1000 1001]", "snapshot stored"},
		{1002, nil, "[1001 1002]", "snapshot stored"},
	} {
		m.position, failed = c.position, c.err
		f.log.Reset()
		s.Take(t.Context())
		if got := f.positions("gw1"); got != c.want || (c.log == "") != (f.log.Len() == 0) || !strings.Contains(f.log.String(), c.log) {
			t.Errorf("at %d, %v: %s, want %s; log %s", c.position, c.err, got, c.want, f.log)
		}
	}
	f.take("gw2", "x", 1003)
	f.take("gw2", "x", 1004) // its newest has another name than that of gw1
	for i, want := range []string{"[1002 1005]", "[1005 1006]", "[1006 1007]"} {
		f.take("gw1", "x", uint64(1005+i)) // with a new Store
		if got := f.positions("gw1"); got != want {
			t.Errorf("after restart %d: %s, want %s", i, got, want)
		}
	}
}
