package policy

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
)

// names determines which names exist in the mesh, for the consistency check.
type names struct {
	*instance
	sessions *sessions
	attested func(ctx context.Context, tenant, actor string) (bool, error) // reports whether the ledger has an event of the actor in the tenant, according to audit's index
	latest   func(context.Context) (uint64, error)                         // returns the sequence of the newest event that the state processes
	position func() (seq uint64, ok bool)                                  // returns the sequence up to which the state has applied events; ok is false until Run has activated the configuration
}

// known returns the names that exist for a tenant, for checking the document with this
// layer and name. It first waits as current does. If the state has no such tenant yet, as
// when the service starts, the names are those of the cell's own tenant.
func (s *names) known(tenant, layer, name string) *cpi.Known {
	s.current()
	k := s.states.Nearest(tenant).Names(services.Executors())
	k.Layer, k.Name, k.Now, k.Tenant = layer, name, s.emit.Time(), tenant
	k.Actor, k.Session = func(actor string) bool { return s.acted(tenant, actor) }, func(session string) bool { return s.sessions.opened(tenant, session) }
	return k
}

// acted reports whether the ledger has an event of this actor in a tenant. If audit cannot
// be queried it returns true, so that activations do not depend on audit.
func (s *names) acted(tenant, actor string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	found, err := s.attested(ctx, tenant, actor)
	return err != nil || found
}

// current waits until this instance's state has applied every event on the ledger that
// it processes, so that it includes names that another instance has just recorded. It
// gives up after lookFor, or at once if the position of the state or of the ledger is
// unknown.
func (s *names) current() {
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	last, err := s.latest(ctx)
	for at, ok := s.position(); err == nil && ok && at < last && ctx.Err() == nil; at, ok = s.position() {
		sleep(ctx, 2*time.Millisecond)
	}
}
