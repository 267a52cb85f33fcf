// Package work keeps artifacts: it decides who may read and remove them, records what
// happens to them, and is the only service that removes their content.
package work

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
)

// Config is the configuration of the service.
type Config struct {
	Quota int64 // maximum number of bytes of a tenant's artifacts; 0 means 100 GB
}

// Service implements run.Service. Several instances may run at a time.
type Service struct {
	Config

	env      *run.Env
	store    artifact.Stream
	follower *follow.Follower

	mu   sync.Mutex
	view shelf.View
}

// artifactsReader reads the events of artifacts.
var artifactsReader = bus.Reader{Name: "artifacts", Stream: bus.Events, Filters: append(bus.Filters(services.Work, shelf.Names...),
	bus.Filters(services.SessionRunner, contract.EventArtifactStored, contract.EventArtifactUsed)...)}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: services.Work, Slots: 4, Work: []bus.Work{bus.ExecutorWork(services.Work)},
		Readers: []bus.Reader{bus.ExecutorControl(services.Work), artifactsReader}, Artifacts: true, Collects: true}
}

// limit is the maximum number of concurrent calls of an instance.
const limit = 16

// Run implements run.Service. It calls ready when the view has read the ledger to its
// end.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	if s.Quota == 0 {
		s.Quota = 100e9
	}
	s.env, s.store = env, artifact.Stream{Conn: env.Conn}
	s.follower = follow.New(env.Conn, env.Instance, artifactsReader, s.apply)
	s.follower.Every = 500 * time.Millisecond
	env.ReportFollower("work.artifacts", s.follower, nil)
	if err := catalog.Register(ctx, env.Emit, env.Cell.Now, services.Work, tools()); err != nil {
		return err
	}
	s.serve()
	following, stop := context.WithCancel(context.WithoutCancel(ctx)) // until the last call has ended
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.follower.Run(following, 1) })
	g.Go(func() error {
		defer stop()
		select {
		case <-s.follower.Ready():
		case <-ctx.Done():
			return nil
		}
		ready()
		return execute.New(env, limit, tools(), s.handle).Run(ctx)
	})
	g.Go(func() error {
		select {
		case <-s.follower.Ready():
			s.collect(ctx)
		case <-ctx.Done():
		}
		return nil
	})
	return g.Wait()
}

// apply applies a ledger entry to the view.
func (s *Service) apply(en eventlog.Entry) error {
	e, err := eventlog.Open(en, artifactsReader.Filters...)
	if err != nil {
		s.env.Log.Error("ledger entry refused", "seq", en.Seq, "err", err)
		return nil
	}
	s.env.Emit.See(e.Lamport)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view.Apply(en.Seq, e)
	return nil
}

// read calls f with the view, which has then applied every event that was stored before
// the call of read. f must not retain what it reads, because later events change it.
func (s *Service) read(ctx context.Context, f func(v *shelf.View)) error {
	if err := s.follower.Poll(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.view)
	return nil
}
