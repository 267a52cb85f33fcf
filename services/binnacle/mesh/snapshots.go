package mesh

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/reproduce"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
)

// checker returns the background check of the stored snapshots. c is a connection of the
// provisioning identity.
func (p *Provisioner) checker(c *bus.Conn, m *emit.Emitter) *reproduce.Checker {
	contents := &blob.Store{Conn: c}
	return &reproduce.Checker{
		Log: m.Log, RootKID: p.Ring.RootKID,
		List:  func(ctx context.Context) ([]snapshot.Stored, error) { return p.snapshots(ctx, c) },
		State: func(ctx context.Context, s *snapshot.Stored) ([]byte, error) { return s.State(ctx, c) },
		Open: func(tenant string, x *contract.Content) ([]byte, error) {
			return contents.In(tenant).Open(context.Background(), x)
		},
		Views: slices.DeleteFunc(slices.Concat(policy.Views(), gateway.Views(), llmrouter.Views()), func(d view.Declaration) bool { return d.Snapshot == "" }),
		Reject: func(ctx context.Context, s *snapshot.Stored, why error) error {
			d := s.Rejected(why)
			slog.Error("false snapshot: it is deleted; restart the service, whose view may have begun with it", "service", d.Service, "view", d.View, "position", d.Position, "err", why)
			if _, err := m.Append(ctx, m.In(p.names.Load().cell).New(contract.EventSnapshotRejected, "snapshots", contract.Bytes(&d), nil)); err != nil {
				return err
			}
			stream, err := c.JS.Stream(ctx, bus.Snapshots)
			if err != nil {
				return err
			}
			return stream.Purge(ctx, jetstream.WithPurgeSubject(s.Subject(bus.SnapshotHead)))
		},
	}
}

// snapshots returns the stored snapshots, or none before the first publish.
func (p *Provisioner) snapshots(ctx context.Context, c *bus.Conn) ([]snapshot.Stored, error) {
	n := p.names.Load()
	if n == nil {
		return nil, nil
	}
	return snapshot.List(ctx, c, n.log)
}

// names holds the names of the ledger that concurrent goroutines of the Provisioner read.
type names struct {
	log  string // name of the log
	cell string // tenant of the mesh's own events
}

// emitter returns an emitter of the provisioner's events, which has no tenant.
func (p *Provisioner) emitter(c *bus.Conn) *emit.Emitter {
	return &emit.Emitter{Log: eventlog.JetStream{Conn: c}, Source: "provision/provision-1", Now: time.Now}
}
