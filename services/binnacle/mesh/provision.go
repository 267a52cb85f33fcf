package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/erase"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/positions"
)

// Provisioner creates the declared streams and consumers on a NATS server, publishes the
// ring's keys, and maintains both while it runs. No other identity may change or delete
// the declared streams. Only one Provisioner of a mesh may run at a time.
type Provisioner struct {
	Dialer   bus.Dialer
	Ring     *keyring.Ring
	Replicas int  // copies of each stream; 0 means 1
	Mirror   bool // also maintain the mirrors

	// MaxArtifacts is the maximum size in bytes of the stream ARTIFACTS; 0 means no limit.
	MaxArtifacts int64

	Starting *run.Starting // receives the progress of Run until the ledger has been read; nil if no caller needs the progress

	ok        atomic.Bool
	read      reading
	slot      *bus.Slot
	published int                   // number of the ring's documents at the last publish since the last provisioning
	log       string                // tenant of the mesh's first root key and of its log, from the last publish
	names     atomic.Pointer[names] // nil before the first publish
	tenants   map[string]bool       // tenants that documents of the ring are for, and whether each existed at the last publish
	open      bool                  // whether the cell was open at the last publish
	seedless  bool                  // openCell has logged that the root seed is missing
}

// trustPoll is the interval at which the ring is read for new trust documents and log
// epochs.
const trustPoll = time.Second

// Provisioned reports whether the server is provisioned: the last attempt to provision
// it and then to publish the ring's keys succeeded, and the provisioner has not
// reconnected since. A failure to publish a key that was added to the ring later does
// not change the result.
func (p *Provisioner) Provisioned() bool { return p.ok.Load() }

// Run provisions the server, publishes the trust documents, log epochs and operators of the
// ring, opens the cell if the ring allows it, and then calls ready, once. It retries after a
// failure. It provisions again after each reconnection, because a restarted server has lost the
// streams and consumers that it stored only in memory. It also publishes documents that are
// added to the ring while it runs. It returns nil when ctx is done, a *bus.RunningError if
// another provisioner runs, and another error if it cannot connect, loses its slot or the
// connection for good, or finds that the ledger cannot have several tenants.
func (p *Provisioner) Run(ctx context.Context, ready func()) error {
	c, err := Provisioning(p.Dialer, p.Ring)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	var lease sync.WaitGroup
	defer lease.Wait()
	defer cancel()
	p.progress(ctx)
	var lost chan error
	m := p.emitter(c)
	lease.Go(func() { p.checker(c, m).Run(ctx) })
	lease.Go(func() { (&erase.Eraser{Log: m.Log, Conn: c}).Run(ctx) })
	for first := true; ; {
		_, reconnected := c.Epoch()
		var again <-chan time.Time
		err := p.restore(ctx, c)
		if err == nil {
			err = p.once(ctx, c)
		}
		var running *bus.RunningError
		if errors.As(err, &running) {
			return err
		}
		if p.slot != nil && lost == nil {
			lost = make(chan error, 1)
			lease.Go(func() { lost <- p.slot.Keep(ctx) })
		}
		if err == nil {
			err = p.record(ctx, c, m)
		}
		var refused *refusedError
		if errors.As(err, &refused) {
			return err
		}
		p.ok.Store(err == nil)
		if err == nil {
			if first {
				first = false
				ready()
			}
		} else if ctx.Err() == nil {
			slog.Warn("provisioning will be tried again", "err", err)
			again = time.After(100 * time.Millisecond)
		}
		for wait := true; wait; {
			select {
			case <-ctx.Done():
				return nil
			case err := <-c.Fatal:
				return err
			case err := <-lost:
				return err
			case <-reconnected:
				p.ok.Store(false)
				wait = false
			case <-again:
				wait = false
			case <-time.After(trustPoll):
				p.identify(c)
				if again == nil {
					if err := p.record(ctx, c, m); err != nil && ctx.Err() == nil {
						slog.Warn("trust documents not published, will be tried again", "err", err)
					}
				}
			}
		}
	}
}

// identify makes the connection use the NATS identity in the ring, if it was replaced there.
func (p *Provisioner) identify(c *bus.Conn) {
	seed, err := p.Ring.NKey(services.Provision)
	if err == nil {
		err = bus.Identify(c, seed)
	}
	if err != nil {
		slog.Warn("NATS identity not replaced, will be tried again", "err", err)
	}
}

// progress adds the reading of the ledger to the tasks of the start, and starts a
// goroutine that logs the tasks that the start waits for.
func (p *Provisioner) progress(ctx context.Context) {
	if p.Starting == nil {
		p.Starting = run.NewStarting()
	}
	p.read.ready = make(chan struct{})
	p.Starting.Follow(services.Provision, "the Lamport clock", &p.read)
	go p.Starting.Report(ctx, slog.With("service", services.Provision), services.Provision)
}

// once provisions the server as bus.Provision does, sets the limit of the stream ARTIFACTS,
// creates the missing mirrors if Mirror is set, and acquires the provisioner's slot if it has
// none. It may be repeated. It returns a *bus.RunningError if another provisioner holds the
// slot.
func (p *Provisioner) once(ctx context.Context, c *bus.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := bus.Provision(ctx, c.JS, Declarations(), max(p.Replicas, 1)); err != nil {
		return err
	}
	if err := bus.LimitArtifacts(ctx, c.JS, p.MaxArtifacts); err != nil {
		return err
	}
	if p.Mirror {
		k, err := Keeper(p.Dialer, p.Ring)
		if err != nil {
			return err
		}
		defer k.Close()
		if err := bus.Mirror(ctx, k, max(p.Replicas, 1)); err != nil {
			return err
		}
	}
	if p.slot == nil {
		var err error
		if p.slot, err = bus.AcquireSlot(ctx, c, &bus.Declaration{Service: services.Provision, Slots: 1}); err != nil {
			return err
		}
	}
	p.published = 0
	return nil
}

// restore creates the work consumers that the server has lost, each at the oldest item
// that is not completed. To find these items, it reads the ledger once, without a time
// limit.
func (p *Provisioner) restore(ctx context.Context, c *bus.Conn) error {
	lost, err := bus.LostWork(ctx, c.JS, Declarations())
	if err != nil || len(lost) == 0 {
		return err
	}
	last, err := c.LastSeq(ctx, bus.Events)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(lost))
	var works []bus.Work
	for _, service := range names {
		works = append(works, lost[service]...)
	}
	slog.Warn("positions of work consumers are lost; restoring them from the ledger", "consumers", len(works), "events", last)
	read := &reading{ready: make(chan struct{})}
	p.Starting.Follow(services.Provision, "the positions of work consumers", read)
	fold := positions.New(works)
	if err := read.scan(ctx, c, 1, last, fold.Apply); err != nil {
		return err
	}
	i := 0
	for _, service := range names {
		for _, w := range lost[service] {
			if err := bus.BeginWork(ctx, c.JS, &w, service, fold.From(i)); err != nil {
				return fmt.Errorf("consumer %s: %w", w.Consumer(service), err)
			}
			i++
		}
	}
	return nil
}

// reading is the progress of reading the ledger, for its Lamport times or for the
// positions of work consumers. It implements run.View.
type reading struct {
	position, last atomic.Uint64
	once           sync.Once
	ready          chan struct{}
}

func (r *reading) Position() uint64       { return r.position.Load() }
func (r *reading) Ready() <-chan struct{} { return r.ready }
func (r *reading) Pending() uint64        { return r.last.Load() - min(r.position.Load(), r.last.Load()) }

// all advances the Lamport clock past every valid event on the ledger, so that a
// revocation does not invalidate signatures made before it. The newest checkpoint contains
// the highest Lamport time up to its size; only later events are read, without a time
// limit: if audit did not run for a while, there may be many. log is the name of the log
// whose checkpoints are read.
func (r *reading) all(ctx context.Context, c *bus.Conn, m *emit.Emitter, log string) error {
	from, err := seeCheckpoint(ctx, c, m, log)
	if err != nil {
		return err
	}
	last, err := c.LastSeq(ctx, bus.Events)
	if err != nil {
		return err
	}
	return r.scan(ctx, c, from, last, func(en eventlog.Entry) {
		if e, err := eventlog.Open(en, eventlog.Every); err == nil {
			m.See(e.Lamport)
		}
	})
}

// scan calls f for each entry of the ledger from sequence from on. last is the sequence
// of the newest entry, for the progress.
func (r *reading) scan(ctx context.Context, c *bus.Conn, from, last uint64, f func(eventlog.Entry)) error {
	r.last.Store(last)
	for en, err := range (eventlog.JetStream{Conn: c}).Scan(ctx, eventlog.Every, from) {
		if err != nil {
			return err
		}
		f(en)
		r.position.Store(en.Seq)
	}
	r.once.Do(func() { close(r.ready) })
	return nil
}

// seeCheckpoint advances the Lamport clock to that of the newest checkpoint of a log and
// returns the sequence of the first event after the checkpoint. It returns 1 if there is
// no checkpoint or the newest one is malformed.
func seeCheckpoint(ctx context.Context, c *bus.Conn, m *emit.Emitter, log string) (from uint64, err error) {
	note, err := newestCheckpoint(ctx, c, log)
	if err != nil || note == nil {
		return 1, err
	}
	var lamport uint64
	for line := range strings.Lines(string(note)) {
		_, _ = fmt.Sscanf(line, "lamport %d", &lamport)
	}
	head, err := ledger.ReadHead(note)
	if err != nil {
		return 1, nil
	}
	m.See(lamport)
	return head.Size + 1, nil
}

// newestCheckpoint returns the newest checkpoint of a log, or nil if there is none.
func newestCheckpoint(ctx context.Context, c *bus.Conn, log string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	s, err := c.JS.Stream(ctx, bus.Checkpoints)
	if err != nil {
		return nil, err
	}
	msg, err := s.GetLastMsgForSubject(ctx, bus.LogSubject(log, bus.CheckpointSubject))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return msg.Data, nil
}
