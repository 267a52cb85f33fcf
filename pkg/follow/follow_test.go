package follow_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

var reader = bus.Reader{Name: "all", Stream: bus.Events, Filters: []string{"evt.*.a.>"}}

// TestRestart shows that two followers, one before and one after a restart of the
// server, together apply every event once and in order. The consumers are in the memory
// of the server, which loses them when it stops.
func TestRestart(t *testing.T) { bothWays(t, testRestart) }

// bothWays runs a test with a follower that receives each event as it is stored, and
// with one that polls.
func bothWays(t *testing.T, f func(*testing.T, time.Duration)) {
	t.Run("at once", func(t *testing.T) { f(t, 0) })
	t.Run("every so often", func(t *testing.T) { f(t, 20*time.Millisecond) })
}

func testRestart(t *testing.T, every time.Duration) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{reader}}
	b := meshtest.Start(t, []bus.Declaration{d})
	// The in-process dialer is bound to one server, so a follower cannot reconnect to
	// the restarted one: a second follower continues on a new connection, from the
	// position of the first.
	var next atomic.Uint64
	apply := func(en eventlog.Entry) error {
		if want := next.Add(1); string(en.Data) != fmt.Sprint(want) || en.Seq != want {
			return fmt.Errorf("got %s at %d, want %d", en.Data, en.Seq, want)
		}
		return nil
	}
	publish := func(from, to int) {
		t.Helper()
		log := eventlog.JetStream{Conn: b.Connect(t, "a")}
		for i := from; i <= to; i++ {
			if _, err := log.Append(t.Context(), "evt.t.a.-.x.k", fmt.Sprint(i), []byte(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	run := func(until uint64) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		f := follow.New(b.Connect(t, "a"), d.Instance(1), reader, apply)
		f.Every = every
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx, next.Load()+1) }()
		for next.Load() < until {
			select {
			case err := <-done:
				t.Fatalf("stopped at %d: %v", next.Load(), err)
			case <-time.After(5 * time.Millisecond):
			}
		}
		<-f.Ready()
		if f.Position() != until {
			t.Fatalf("position %d, want %d", f.Position(), until)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	publish(1, 2000)
	run(2000)
	b.Down()
	b.Up(t)
	publish(2001, 2500)
	run(2500)
}

// TestRenumbered checks that a follower whose position is after the end of its stream, as if the
// stream had been emptied before Run began, continues from the sequence that Restart returns.
func TestRenumbered(t *testing.T) { bothWays(t, testRenumbered) }

func testRenumbered(t *testing.T, every time.Duration) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{reader}}
	c := meshtest.Start(t, []bus.Declaration{d}).Connect(t, "a")
	applied := make(chan uint64, 1000)
	f := follow.New(c, d.Instance(1), reader, func(en eventlog.Entry) error { applied <- en.Seq; return nil })
	f.Every = every
	f.Restart = func(ctx context.Context) (uint64, error) {
		n, err := c.LastSeq(ctx, bus.Events)
		return n + 1, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, 1000) }()
	<-f.Ready()
	for n := uint64(1); ; n++ {
		if _, err := (eventlog.JetStream{Conn: c}).Append(ctx, "evt.t.a.-.x.k", fmt.Sprint(n), []byte("x")); err != nil {
			t.Fatal(err)
		}
		select {
		case seq := <-applied:
			if seq > n || f.Position() > n {
				t.Errorf("entry %d of %d, position %d", seq, n, f.Position())
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestApplyError shows that Run stops with the error that Apply returned.
func TestApplyError(t *testing.T) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{reader}}
	b := meshtest.Start(t, []bus.Declaration{d})
	c := b.Connect(t, "a")
	if _, err := (eventlog.JetStream{Conn: c}).Append(t.Context(), "evt.t.a.-.x.k", "1", []byte("1")); err != nil {
		t.Fatal(err)
	}
	f := follow.New(c, d.Instance(1), reader, func(eventlog.Entry) error { return fmt.Errorf("no") })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := f.Run(ctx, 1); err == nil || err.Error() != "no" {
		t.Fatal(err)
	}
}

// TestMoved checks that a follower applies every entry once and in order although
// another connection, such as that of an instance that lost its slot to this one, resets
// the consumer to later and to earlier entries. It also checks that the follower is not
// ready before it has applied them.
func TestMoved(t *testing.T) { bothWays(t, testMoved) }

func testMoved(t *testing.T, every time.Duration) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{reader}}
	b := meshtest.Start(t, []bus.Declaration{d})
	c, other := b.Connect(t, "a"), b.Connect(t, "a")
	log := eventlog.JetStream{Conn: c}
	const n = 40
	for i := range n {
		if _, err := log.Append(t.Context(), "evt.t.a.-.x.k", fmt.Sprint(i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	var next atomic.Uint64
	f := follow.New(c, d.Instance(1), reader, func(en eventlog.Entry) error {
		if want := next.Add(1); en.Seq != want {
			return fmt.Errorf("got %d, want %d", en.Seq, want)
		}
		return nil
	})
	f.Every, f.Batch = every, 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for i := uint64(0); i < 300; i++ {
			_ = other.Reset(ctx, bus.Events, reader.Consumer(d.Instance(1)), 1+i*7%(n+1))
		}
		_ = other.Reset(ctx, bus.Events, reader.Consumer(d.Instance(1)), n+1)
	}()
	go func() { done <- f.Run(ctx, 1) }()
	select {
	case <-f.Ready():
		if got := next.Load(); got != n {
			t.Errorf("ready after %d of %d entries", got, n)
		}
	case err := <-done:
		t.Fatalf("ended after %d of %d entries: %v", next.Load(), n, err)
	}
	<-moved
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestStolen shows that messages delivered to pull requests of another connection are
// detected as missing and delivered again.
func TestStolen(t *testing.T) { bothWays(t, testStolen) }

func testStolen(t *testing.T, every time.Duration) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{reader}}
	b := meshtest.Start(t, []bus.Declaration{d})
	c := b.Connect(t, "a")
	var next atomic.Uint64
	f := follow.New(c, d.Instance(1), reader, func(en eventlog.Entry) error {
		if want := next.Add(1); en.Seq != want {
			return fmt.Errorf("got %d, want %d", en.Seq, want)
		}
		return nil
	})
	f.Every = every
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, 1) }()
	<-f.Ready()
	thief := b.Connect(t, "a")
	var stolen atomic.Int64
	inbox := thief.NC.NewInbox()
	if _, err := thief.NC.Subscribe(inbox, func(m *nats.Msg) {
		if len(m.Data) > 0 {
			stolen.Add(1)
		}
	}); err != nil {
		t.Fatal(err)
	}
	const n = 3000
	log := eventlog.JetStream{Conn: c}
	for i := range n {
		if i%300 == 0 { // ten pull requests of thirty messages each, which stay open
			req := bus.APIPrefix + ".CONSUMER.MSG.NEXT." + bus.Events + "." + reader.Consumer(d.Instance(1))
			if err := thief.NC.PublishRequest(req, inbox, []byte(`{"batch":30,"expires":20000000000}`)); err != nil {
				t.Fatal(err)
			}
			if err := thief.NC.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := log.Append(ctx, "evt.t.a.-.x.k", fmt.Sprint(i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for next.Load() < n {
		select {
		case err := <-done:
			t.Fatalf("stopped at %d: %v", next.Load(), err)
		case <-ctx.Done():
			t.Fatalf("at %d of %d", next.Load(), n)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := thief.NC.Flush(); err != nil || stolen.Load() == 0 {
		t.Fatal("nothing was stolen", err)
	}
	t.Logf("%d deliveries were stolen", stolen.Load())
}

// TestPoll shows that Poll returns only after the event that its caller appended before
// has been applied, with many events and concurrent callers. Without a server it returns
// an error.
func TestPoll(t *testing.T) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{reader}}
	b := meshtest.Start(t, []bus.Declaration{d})
	c := b.Connect(t, "a")
	f := follow.New(c, d.Instance(1), reader, func(eventlog.Entry) error { return nil })
	f.Every, f.Batch = time.Hour, 7
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, 1) }()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			log := eventlog.JetStream{Conn: c}
			for i := range 50 {
				seq, err := log.Append(ctx, "evt.t.a.-.x.k", fmt.Sprint(w, "-", i), []byte("x"))
				if err == nil {
					err = f.Poll(ctx)
				}
				if at := f.Position(); err != nil || at < seq {
					t.Errorf("at %d after %d was appended: %v", at, seq, err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.Down()
	try, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	if err := f.Poll(try); err == nil {
		t.Error("Poll is content without a server")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestCover checks that a follower whose reader has a Cover applies exactly the entries
// that the reader's filters select, and that its position advances past all other
// entries. It also checks that provisioning with a changed declaration of the reader
// changes the filters of its consumer, so that no entry is missing.
func TestCover(t *testing.T) { bothWays(t, testCover) }

func testCover(t *testing.T, every time.Duration) {
	few := bus.Reader{Name: "all", Stream: bus.Events, Filters: []string{"evt.*.a.*.x.>"}}
	covered := bus.Reader{Name: "all", Stream: bus.Events, Filters: []string{"evt.*.a.*.x.>", "evt.*.a.*.y.>"}, Cover: bus.EveryEvent}
	b := meshtest.Start(t, []bus.Declaration{{Service: "a", Slots: 1, Readers: []bus.Reader{few}}})
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{covered}}
	if err := bus.Provision(t.Context(), b.Connect(t, "provision").JS, []bus.Declaration{d}, 1); err != nil {
		t.Fatal(err)
	}
	c := b.Connect(t, "a")
	log := eventlog.JetStream{Conn: c}
	var want []uint64
	for i := range uint64(200) {
		seq, err := log.Append(t.Context(), "evt.t.a.-."+string("xyz"[i%3])+".k", fmt.Sprint(i), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if i%3 < 2 {
			want = append(want, seq)
		}
	}
	var mu sync.Mutex
	var got []uint64
	f := follow.New(c, d.Instance(1), covered, func(en eventlog.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, en.Seq)
		return nil
	})
	f.Every, f.Batch = every, 7
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, 1) }()
	select {
	case <-f.Ready():
	case <-ctx.Done():
		t.Fatal("the follower does not catch up")
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) || f.Position() != 200 {
		t.Errorf("applied %v at position %d, want %v at 200", got, f.Position(), want)
	}
}
