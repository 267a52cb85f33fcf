package policy

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
)

// names looks up what documents name.
type names struct {
	*instance
	sessions *sessions
	ask      func(ctx context.Context, service, verb string, args, out any) error
	latest   func(context.Context) (uint64, error) // sequence of the newest event that state folds
	position func() (seq uint64, ok bool)          // of state; ok is false while the configuration is put in force
}

// known returns what a document can name that is to be put in force.
func (s *names) known(layer, name string) *cpi.Known {
	s.current()
	k := s.state.Names(bus.Executors)
	k.Layer, k.Name, k.Now, k.Tenant = layer, name, s.emit.Time(), s.tenant
	k.Actor, k.Session = s.acted, s.sessions.opened
	return k
}

// acted reports whether anything on the ledger is an actor's. Where audit does not
// answer, every actor is taken to exist.
func (s *names) acted(actor string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	var found bool
	err := s.ask(ctx, "audit", "acted", map[string]string{"actor": actor}, &found)
	return err != nil || found
}

// current waits until this instance's view holds what was on the ledger: what
// another instance recorded a moment ago exists.
func (s *names) current() {
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	last, err := s.latest(ctx)
	for at, ok := s.position(); err == nil && ok && at < last && ctx.Err() == nil; at, ok = s.position() {
		sleep(ctx, 2*time.Millisecond)
	}
}
