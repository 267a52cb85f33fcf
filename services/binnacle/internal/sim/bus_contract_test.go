package sim

import (
	"context"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/logtest"
)

// TestContract runs the contract suite of the ledger, which real NATS servers pass,
// against the simulated server with the real client.
func TestContract(t *testing.T) {
	logtest.Run(t, func(t *testing.T) eventlog.Log {
		kp, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		seed, err := kp.Seed()
		if err != nil {
			t.Fatal(err)
		}
		w := &world{bus: newBus()}
		in := &instance{w: w, name: "client"}
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan struct{})
		go func() {
			defer close(served)
			for ctx.Err() == nil {
				select {
				case <-w.bus.kick:
				case <-ctx.Done():
				}
				w.bus.mu.Lock()
				w.bus.collect()
				w.burst()
				w.bus.mu.Unlock()
			}
		}()
		c, err := bus.Connect(bus.Dialer{Server: in}, seed, "client", true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); cancel(); <-served })
		if err := bus.Provision(ctx, c.JS, []bus.Declaration{{Service: "a", Slots: 1}}, 1); err != nil {
			t.Fatal(err)
		}
		return eventlog.JetStream{Conn: c}
	})
}
