package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Slot is an instance's lease of its name.
type Slot struct {
	Instance string
	conn     *Conn
	subject  string
	nonce    string
	seq      uint64
}

const slotFree = "free"

// AcquireSlot takes the lowest free slot of the service, waiting until the
// bus is provisioned and one is free.
func AcquireSlot(ctx context.Context, c *Conn, d *Declaration) (*Slot, error) {
	nonce := rand.Text()
	for {
		for n := 1; n <= d.Slots; n++ {
			s := &Slot{Instance: d.Instance(n), conn: c, subject: fmt.Sprintf("slot.%s.%d", d.Service, n), nonce: nonce}
			err := s.take(ctx)
			if err == nil {
				return s, nil
			}
			// The next one only where this is another's: no answer can mean that
			// the bus is not provisioned yet, or that this one was taken.
			if !errors.Is(err, errOccupied) && !conflict(err) {
				break
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no slot free for %s: %w", d.Service, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

var errOccupied = errors.New("occupied")

func (s *Slot) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	m, err := s.conn.Get(ctx, Slots, map[string]any{"last_by_subj": s.subject})
	switch {
	case errors.Is(err, ErrNotFound):
		s.seq = 0
	case err != nil:
		return err
	case string(m.Data) == slotFree, string(m.Data) == s.Instance+" "+s.nonce: // ours, if the answer came late
		if _, err := fmt.Sscan(m.Header.Get(jetstream.SequenceHeader), &s.seq); err != nil {
			return err
		}
	default:
		return errOccupied
	}
	return s.put(ctx, s.nonce)
}

func (s *Slot) put(ctx context.Context, body string) error {
	if body != slotFree {
		body = s.Instance + " " + body
	}
	a, err := s.conn.JS.Publish(ctx, s.subject, []byte(body), jetstream.WithExpectLastSequencePerSubject(s.seq))
	if err == nil {
		s.seq = a.Sequence
	}
	return err
}

// Keep renews the lease until ctx ends, then frees the slot. It returns an
// error when the slot was lost: the instance must stop, since another may
// already answer under its name.
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
			err := s.put(try, s.nonce)
			if conflict(err) { // expired, or NATS lost its memory: take it again if nobody has
				err = s.take(try)
				if errors.Is(err, errOccupied) {
					cancel()
					return fmt.Errorf("slot %s was taken by another instance", s.Instance)
				}
			}
			cancel()
		}
	}
}

// Live lists the instances of a service that hold a slot now.
func Live(ctx context.Context, c *Conn, service string) ([]string, error) {
	var out []string
	for n := 1; n <= maxSlots; n++ {
		m, err := c.Get(ctx, Slots, map[string]any{"last_by_subj": fmt.Sprintf("slot.%s.%d", service, n)})
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if name, _, ok := strings.Cut(string(m.Data), " "); ok {
			out = append(out, name)
		}
	}
	return out, nil
}

const maxSlots = 8

func conflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == 10071 || api.ErrorCode == 10164)
}
