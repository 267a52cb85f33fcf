package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// Lease is the lease of an instance's slot as it was last read. Another process that
// leases the slot has another lease, although the instance has the same name. It is safe
// for concurrent use.
type Lease struct {
	conn    *Conn
	subject string
	body    string // message of the lease, which contains the nonce of the process

	mu     sync.Mutex
	seq    uint64
	stored time.Time // time at which the server stored the message
}

// minLeft is the minimum result of Lease.Left. A server may delete an expired message
// late, and its clock may differ from the one of this host.
const minLeft = 250 * time.Millisecond

// Instance returns the name of the instance.
func (l *Lease) Instance() string {
	name, _, _ := strings.Cut(l.body, " ")
	return name
}

// Left returns the time after which the lease, as it was last read, has expired if it was
// not renewed meanwhile: at least minLeft, and at most SlotTTL.
func (l *Lease) Left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(SlotTTL, max(minLeft, SlotTTL-time.Since(l.stored)))
}

// Read reads the lease again. ended reports whether it has ended: it has expired, was
// freed, or another process has the slot. renewed reports whether its process has renewed
// it since it was last read.
func (l *Lease) Read(ctx context.Context) (renewed, ended bool, err error) {
	now, err := readLease(ctx, l.conn, l.subject)
	if err != nil {
		return false, false, err
	}
	if now == nil || now.body != l.body {
		return false, true, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	renewed = now.seq > l.seq
	l.seq, l.stored = max(l.seq, now.seq), later(l.stored, now.stored)
	return renewed, false, nil
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// readLease returns the lease of a slot, or nil if the slot is free.
func readLease(ctx context.Context, c *Conn, subject string) (*Lease, error) {
	m, err := c.Get(ctx, Slots, map[string]any{"last_by_subj": subject})
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	l := &Lease{conn: c, subject: subject, body: string(m.Data)}
	if !strings.Contains(l.body, " ") { // slotFree
		return nil, nil
	}
	if _, err := fmt.Sscan(m.Header.Get(jetstream.SequenceHeader), &l.seq); err != nil {
		return nil, err
	}
	if l.stored, err = time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer)); err != nil {
		return nil, err
	}
	return l, nil
}

// liveLeases returns the leases of a service's instances, in the order of their slots.
func liveLeases(ctx context.Context, c *Conn, service string) ([]*Lease, error) {
	var leases [maxSlots]*Lease
	slots, each := errgroup.WithContext(ctx) // concurrently, because queries wait for the result
	for n := range leases {
		slots.Go(func() (err error) {
			leases[n], err = readLease(each, c, slotSubject(service, strconv.Itoa(n+1)))
			return err
		})
	}
	if err := slots.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(leases[:], func(l *Lease) bool { return l == nil }), nil
}

// overdue is the difference between the times of two leases of a service above which the
// process of the older one has missed a renewal, and has probably died.
const overdue = SlotTTL / 2

// Running returns the leases of the running instances of a service whose renewal is not overdue,
// in the order of their slots. The process of an instance may have died up to SlotTTL ago.
func Running(ctx context.Context, c *Conn, service string) ([]*Lease, error) {
	leases, err := liveLeases(ctx, c, service)
	return timely(leases), err
}

// timely removes the leases that are more than overdue older than the newest one.
func timely(leases []*Lease) []*Lease {
	var newest time.Time
	for _, l := range leases {
		newest = later(newest, l.stored)
	}
	return slices.DeleteFunc(leases, func(l *Lease) bool { return newest.Sub(l.stored) > overdue })
}
