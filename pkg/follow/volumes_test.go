package follow_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestVolumes shows that reads by position, of the last match and in order, appends with an
// expected sequence, and a follower have the same results on a ledger with an earlier
// volume as on one with a single volume.
func TestVolumes(t *testing.T) { bothWays(t, testVolumes) }

func testVolumes(t *testing.T, every time.Duration) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{reader}}
	b := meshtest.Start(t, []bus.Declaration{d})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := b.Connect(t, "provision")
	log := eventlog.JetStream{Conn: c}
	add := func(n int, key string) {
		t.Helper()
		seq, err := log.Append(ctx, "evt.t.a.-.x."+key, fmt.Sprint(n), fmt.Append(nil, n))
		if err != nil || seq != uint64(n) {
			t.Fatal(seq, err)
		}
	}
	for n := 1; n <= 100; n++ {
		add(n, "old")
	}
	second := seal(t, c, 101)
	for n := 101; n <= 150; n++ {
		add(n, "new")
	}

	for _, seq := range []uint64{1, 100, 101, 150} {
		if en, err := log.Get(ctx, seq); err != nil || en.Seq != seq || string(en.Data) != fmt.Sprint(seq) {
			t.Errorf("entry %d: %+v %v", seq, en, err)
		}
	}
	if _, err := log.Get(ctx, 151); !errors.Is(err, eventlog.ErrNotFound) {
		t.Error(err)
	}
	for filter, want := range map[string]uint64{"evt.*.*.*.x.old": 100, "evt.*.*.*.x.new": 150, bus.EveryEvent: 150} {
		if en, err := log.Last(ctx, filter); err != nil || en.Seq != want {
			t.Errorf("last of %s: %d %v, want %d", filter, en.Seq, err, want)
		}
	}
	for from, want := range map[uint64]int{1: 150, 90: 61, 101: 50, 150: 1, 151: 0} {
		n := 0
		for en, err := range log.Scan(ctx, bus.EveryEvent, from) {
			if err != nil || en.Seq != from+uint64(n) {
				t.Fatalf("scan from %d: %d %v", from, en.Seq, err)
			}
			n++
		}
		if n != want {
			t.Errorf("scan from %d: %d entries, want %d", from, n, want)
		}
	}
	const key = "evt.t.a.-.x.old"
	if _, err := log.AppendExpect(ctx, key, "e-1", []byte("x"), key, 100); err != nil {
		t.Error("append that expects the last entry of the earlier volume:", err)
	}
	if _, err := log.AppendExpect(ctx, key, "e-2", []byte("y"), key, 100); !errors.Is(err, eventlog.ErrConflict) {
		t.Error("append that expects an entry that is no longer the last match:", err)
	}

	var got []uint64
	f := follow.New(c, d.Instance(1), second, func(en eventlog.Entry) error { got = append(got, en.Seq); return nil })
	f.Every = every
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, 95) }()
	<-f.Ready()
	cancel()
	if err := <-done; err != nil || len(got) != 57 || got[0] != 95 || !slices.IsSorted(got) {
		t.Errorf("followed %v %v", got, err)
	}
}

// TestVolumeLeaves shows that a ledger whose earlier volume has left the server still
// returns, scans and follows the entries of the later one, and continues an aggregate
// whose last entry was in the earlier one. Entries of the earlier one are not found.
func TestVolumeLeaves(t *testing.T) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{reader}}
	b := meshtest.Start(t, []bus.Declaration{d})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := b.Connect(t, "provision")
	log := eventlog.JetStream{Conn: c}
	const key = "evt.t.a.-.x.old"
	for n := 1; n <= 100; n++ {
		if _, err := log.Append(ctx, key, fmt.Sprint(n), fmt.Append(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	second := seal(t, c, 101)
	if err := c.JS.DeleteStream(ctx, bus.Events); err != nil {
		t.Fatal(err)
	}
	c.Ledger = c.Ledger[1:]

	if _, err := log.Last(ctx, key); !errors.Is(err, eventlog.ErrNotFound) {
		t.Error("last of a filter whose matches have left:", err)
	}
	for n := 101; n <= 150; n++ {
		if seq, err := log.AppendExpect(ctx, key, fmt.Sprint(n), fmt.Append(nil, n), key, uint64(n-1)); err != nil || seq != uint64(n) {
			t.Fatal("append that expects the entry before:", seq, err)
		}
	}
	if _, err := log.AppendExpect(ctx, key, "e-1", []byte("x"), key, 100); !errors.Is(err, eventlog.ErrConflict) {
		t.Error("append that expects an entry that is no longer the last match:", err)
	}
	for seq, want := range map[uint64]error{1: eventlog.ErrNotFound, 100: eventlog.ErrNotFound, 101: nil, 150: nil} {
		if en, err := log.Get(ctx, seq); !errors.Is(err, want) || err == nil && string(en.Data) != fmt.Sprint(seq) {
			t.Errorf("entry %d: %+v %v", seq, en, err)
		}
	}
	var scanned, got []uint64
	for en, err := range log.Scan(ctx, bus.EveryEvent, 1) {
		if err != nil {
			t.Fatal(err)
		}
		scanned = append(scanned, en.Seq)
	}
	f := follow.New(c, d.Instance(1), second, func(en eventlog.Entry) error { got = append(got, en.Seq); return nil })
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, 1) }()
	<-f.Ready()
	cancel()
	err := <-done
	for what, seqs := range map[string][]uint64{"scanned": scanned, "followed": got} {
		if err != nil || len(seqs) != 50 || seqs[0] != 101 || !slices.IsSorted(seqs) {
			t.Errorf("%s: %v %v", what, seqs, err)
		}
	}
}

// seal adds a second volume to the ledger, whose first position is first: the stream EVENTS
// accepts no more entries, and the stream VOLUME_2 accepts them. It returns the reader of
// the second volume.
func seal(t *testing.T, c *bus.Conn, first uint64) bus.Reader {
	t.Helper()
	s, err := c.JS.Stream(t.Context(), bus.Events)
	if err != nil {
		t.Fatal(err)
	}
	old := s.CachedInfo().Config
	open := old
	old.Subjects = []string{"volume.1"}
	if _, err := c.JS.UpdateStream(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	open.Name, open.FirstSeq = "VOLUME_2", first
	if s, err = c.JS.CreateStream(t.Context(), open); err != nil {
		t.Fatal(err)
	}
	r := bus.Reader{Name: reader.Name, Stream: open.Name, Filters: reader.Filters}
	if _, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: r.Consumer("a-1"), AckPolicy: jetstream.AckNonePolicy, FilterSubjects: r.Filters, MemoryStorage: true}); err != nil {
		t.Fatal(err)
	}
	c.Ledger = bus.Ledger{{Stream: bus.Events, First: 1}, {Stream: open.Name, First: first}}
	return r
}
