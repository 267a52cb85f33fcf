package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Slot is an instance's lease of its name. The message of the lease contains the
// instance, a nonce of this lease, and the host and id of the process.
type Slot struct {
	Instance string
	conn     *Conn
	subject  string
	lease    string // message of the lease while this process holds the slot
	seq      uint64
}

const slotFree = "free"

// RunningError is returned by AcquireSlot if running processes hold every slot of a
// service.
type RunningError struct {
	Service string
	Holders []string // one per slot: "INSTANCE on HOST, process PID", or only INSTANCE for a lease of an earlier release
	Alone   string   // Declaration.Alone
}

// Error returns a message that names the running instances and their processes, and
// instructs the user to stop one.
func (e *RunningError) Error() string {
	if len(e.Holders) == 1 {
		text := fmt.Sprintf("%s may run once, and runs already: %s; stop that one first", e.Service, e.Holders[0])
		if e.Alone != "" {
			text += ", or " + e.Alone
		}
		return text
	}
	return fmt.Sprintf("%s may run %d times, and does: %s; stop one first", e.Service, len(e.Holders), strings.Join(e.Holders, "; "))
}

// AcquireSlot leases the lowest free slot of the service. It waits until the streams are
// provisioned and a slot is free. A lease expires after SlotTTL unless it is renewed, so
// the caller must run Keep. A lease that is renewed while AcquireSlot waits belongs to a
// running process. If running processes hold all slots, AcquireSlot returns a
// *RunningError. If ctx ends first, it returns an error that wraps the one of ctx.
func AcquireSlot(ctx context.Context, c *Conn, d *Declaration) (*Slot, error) {
	nonce, seen, running := rand.Text(), make([]uint64, d.Slots), make([]string, d.Slots)
	for {
		for n := 1; n <= d.Slots; n++ {
			s := &Slot{Instance: d.Instance(n), conn: c, subject: slotSubject(d.Service, strconv.Itoa(n))}
			s.lease = fmt.Sprintf("%s %s %s", s.Instance, nonce, place())
			err := s.take(ctx)
			if err == nil {
				return s, nil
			}
			var held *heldError
			if errors.As(err, &held) {
				if seen[n-1] != 0 && seen[n-1] != held.seq {
					running[n-1] = held.holder
				}
				seen[n-1] = held.seq
				continue
			}
			// Try the next slot only if another process holds this one. Without a
			// response, the streams may be missing or this lease may have succeeded.
			if !conflict(err) {
				break
			}
		}
		if !slices.Contains(running, "") {
			return nil, &RunningError{d.Service, running, d.Alone}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no slot free for %s: %w", d.Service, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// place returns the name of the host, or "-" if it cannot be determined, and the id of
// this process.
func place() string {
	host, err := os.Hostname()
	if err != nil {
		host = "-"
	}
	return fmt.Sprintf("%s %d", host, os.Getpid())
}

// heldError is returned if another process holds the lease of a slot.
type heldError struct {
	seq    uint64 // sequence of the lease's message; increases with every renewal
	holder string
}

func (e *heldError) Error() string { return "held by " + e.holder }

// held returns the error for a slot that is leased with the given message.
func held(seq uint64, lease string) *heldError {
	f := strings.Fields(lease)
	if len(f) < 4 { // lease of an earlier release, without host and process
		return &heldError{seq, strings.Join(f[:min(len(f), 1)], "")}
	}
	return &heldError{seq, fmt.Sprintf("%s on %s, process %s", f[0], f[2], f[3])}
}

// take leases the slot if it is free or its lease is this process's own. It returns a
// *heldError if another process holds the lease, and an error for which conflict returns
// true if another process stored its lease at the same time.
func (s *Slot) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	m, err := s.conn.Get(ctx, Slots, map[string]any{"last_by_subj": s.subject})
	if errors.Is(err, ErrNotFound) {
		s.seq = 0
		return s.put(ctx, s.lease)
	}
	if err != nil {
		return err
	}
	var seq uint64
	if _, err := fmt.Sscan(m.Header.Get(jetstream.SequenceHeader), &seq); err != nil {
		return err
	}
	if have := string(m.Data); have != slotFree && have != s.lease { // it is s.lease if the response to an earlier request was lost
		return held(seq, have)
	}
	s.seq = seq
	return s.put(ctx, s.lease)
}

// put stores body as the message of the lease, on condition that the last message of the
// slot has the sequence s.seq. If it succeeds, it updates s.seq.
func (s *Slot) put(ctx context.Context, body string) error {
	a, err := s.conn.JS.Publish(ctx, s.subject, []byte(body), jetstream.WithExpectLastSequencePerSubject(s.seq))
	if err == nil {
		s.seq = a.Sequence
	}
	return err
}

// Keep renews the lease until ctx is done, then tries to free the slot and returns nil.
// It returns an error if another process has taken the slot: the instance must stop,
// since its name may be in use already.
func (s *Slot) Keep(ctx context.Context) error {
	t := time.NewTicker(SlotTTL / 4)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 500*time.Millisecond)
			defer cancel()
			_ = s.put(bye, slotFree)
			return nil
		case <-t.C:
			try, cancel := context.WithTimeout(ctx, time.Second)
			err := s.put(try, s.lease)
			if conflict(err) { // perhaps the lease expired or a response was lost: lease the slot again unless another process holds it
				var other *heldError
				if errors.As(s.take(try), &other) {
					cancel()
					return fmt.Errorf("slot %s was taken by another process: %s", s.Instance, other.holder)
				}
			}
			cancel()
		}
	}
}

// Live returns the instances of a service whose lease of a slot is stored: it has
// neither expired nor been freed. They are in the order of their slots. The process of an
// instance may have died up to SlotTTL ago.
func Live(ctx context.Context, c *Conn, service string) ([]string, error) {
	leases, err := liveLeases(ctx, c, service)
	names := make([]string, len(leases))
	for i, l := range leases {
		names[i] = l.Instance()
	}
	return names, err
}

// maxSlots is the number of slots that liveLeases reads. No service may declare more.
const maxSlots = 8

// conflict reports whether an append failed because its expected sequence is not the
// last one (JetStream errors 10071 and 10164).
func conflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == 10071 || api.ErrorCode == 10164)
}
