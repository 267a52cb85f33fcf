package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// Provisioner keeps the bus as declared: streams, consumers, published keys.
// It is the only identity with rights over streams.
type Provisioner struct {
	Dialer   bus.Dialer
	Ring     *keyring.Ring
	Tenant   string
	Replicas int
}

// Run provisions, calls ready, and provisions again whenever the server came
// back: what it kept in memory is gone then.
func (p *Provisioner) Run(ctx context.Context, ready func()) error {
	seed, err := p.Ring.NKey("provision")
	if err != nil {
		return err
	}
	c, err := bus.Connect(p.Dialer, seed, "provision", true)
	if err != nil {
		return err
	}
	defer c.Close()
	for first := true; ; {
		_, reconnected := c.Epoch()
		again := time.After(100 * time.Millisecond)
		if err := p.once(ctx, c); err == nil {
			again = nil
			if first {
				first = false
				ready()
			}
		} else if ctx.Err() == nil {
			slog.Warn("provisioning will be tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-c.Fatal:
			return err
		case <-reconnected:
		case <-again:
		}
	}
}

func (p *Provisioner) once(ctx context.Context, c *bus.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := bus.Provision(ctx, c.JS, Declarations(), max(p.Replicas, 1)); err != nil {
		return err
	}
	docs, err := p.Ring.Trust()
	if err != nil {
		return err
	}
	m := &emit.Emitter{Log: eventlog.JetStream{Conn: c}, Tenant: p.Tenant, Source: "provision/provision-1", Now: time.Now}
	for i := range docs {
		if err := publish(ctx, m, &docs[i]); err != nil {
			return fmt.Errorf("publish key %s: %w", docs[i].KID, err)
		}
	}
	return nil
}

// publish records a key unless it is recorded.
func publish(ctx context.Context, m *emit.Emitter, k *contract.TrustKey) error {
	_, err := handle.Do(ctx, m.Log, bus.AggregateFilter(m.Tenant, "provision", "trust"), func(h []*contract.Event) (*contract.Event, error) {
		for _, e := range h {
			m.See(e.Lamport)
			var have contract.TrustKey
			if contract.Decode(e.Data, &have) == nil && have.KID == k.KID {
				return nil, nil
			}
		}
		return m.New("key_published", "trust", contract.Bytes(k), nil), nil
	})
	return err
}
