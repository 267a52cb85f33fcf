package policy

import (
	"context"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
)

// known is what a document that is to be put in force can name.
func (s *Service) known(layer, name string) *cpi.Known {
	s.current()
	k := s.state.known()
	k.Layer, k.Name, k.Now, k.Tenant = layer, name, s.env.Emit.Time(), s.env.Tenant
	k.Actor, k.Session = s.acted, s.opened
	return k
}

// known lists what the catalog and people's decrees have.
func (st *State) known() *cpi.Known {
	k := &cpi.Known{Executors: slices.Clone(bus.Executors)}
	add := func(list *[]string, v string) {
		if v != "" && !slices.Contains(*list, v) {
			*list = append(*list, v)
		}
	}
	for _, t := range st.Catalog.Tools() {
		add(&k.Kinds, t.Kind)
		add(&k.Executors, t.Executor)
		for _, h := range t.Egress {
			add(&k.Hosts, h)
		}
		for i := range t.Secrets {
			add(&k.Secrets, t.Secrets[i].Name)
		}
	}
	st.mu.RLock()
	defer st.mu.RUnlock()
	for _, x := range st.gov.Identities() {
		add(&k.Principals, x.Principal)
		add(&k.Principals, x.Delegate)
		if x.To == 0 {
			add(&k.Roles, x.Role)
		}
	}
	for _, x := range st.gov.Keys.List() {
		add(&k.Keys, x.ID)
		add(&k.Principals, x.Actor)
	}
	return k
}

// lookFor bounds the look for one name.
const lookFor = 2 * time.Second

// opened reports whether a session has a call. A ledger that does not answer
// refuses nothing: it takes no activation either.
func (s *Service) opened(session string) bool {
	if !contract.Token(session) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	for _, err := range s.env.Emit.Log.Scan(ctx, "evt."+s.env.Tenant+".*.*.call_proposed."+session, 1) {
		return err == nil
	}
	return false
}

// acted reports whether anything on the ledger is an actor's; where audit does
// not answer, nobody knows better than the document.
func (s *Service) acted(actor string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	var found bool
	err := s.env.Ask(ctx, "audit", "acted", map[string]string{"actor": actor}, &found)
	return err != nil || found
}

// current waits until this instance's view holds what was on the ledger: what
// another instance recorded a moment ago exists.
func (s *Service) current() {
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	last := uint64(0)
	for _, filter := range stateReader.FiltersOf(s.env.Instance) {
		n, err := s.env.Conn.Last(ctx, bus.Events, filter)
		if err != nil {
			return
		}
		last = max(last, n)
	}
	for view := s.view.Load(); view != nil && ctx.Err() == nil && view.Position() < last; {
		sleep(ctx, 2*time.Millisecond)
	}
}
