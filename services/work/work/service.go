// Package work manages artifacts and runs pipelines. It decides who may read and remove
// artifacts, records their uploads, holds and deletions, and is the only service that removes
// their content; and it proposes the calls of a pipeline's steps.
package work

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/work/internal/memory"
	"github.com/binnacle-mesh/binnacle/services/work/internal/runs"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
)

// Config is the configuration of the service.
type Config struct {
	Store artifact.Collected // store of the parts of artifacts; nil means the stream ARTIFACTS
	Quota int64              // maximum number of bytes of a tenant's artifacts; 0 means 100 GB
}

// Service implements run.Service. Several instances may run at a time.
type Service struct {
	Config

	env      *run.Env
	store    artifact.Sealed
	follower *follow.Follower

	mu   sync.Mutex
	view shelf.View
	at   uint64 // sequence of the last entry applied to view, or 0

	memory memory.Index

	pipelines *pipelines
	places    *fair.Gate // limits the concurrent calls for artifacts and memory
}

// artifactsReader reads the events of artifacts.
var artifactsReader = bus.Reader{Name: "artifacts", Stream: bus.Events, Filters: append(bus.Filters(services.Work, shelf.Names...),
	bus.Filters(services.SessionRunner, contract.EventArtifactStored, contract.EventArtifactUsed)...)}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: services.Work, Slots: slots, Work: []bus.Work{bus.ExecutorWork(services.Work)},
		Readers: []bus.Reader{bus.ExecutorControl(services.Work), artifactsReader, stepsReader, toolsReader, runsReader}, Artifacts: true, Collects: true}
}

// limit is the maximum number of concurrent calls for artifacts and memory of an instance.
// Calls that run pipelines have places of their own, since they wait for other calls.
const limit = 16

// patience is the time for which a call for artifacts waits for a ledger that does not respond. It
// is below the ledger's duplicate window, so that an append may be repeated. Calls may have
// verified gigabytes before, and the client would have to send them again.
const patience = 4 * time.Minute

// documents returns the documents of all tools of the service.
func documents() []contract.Tool { return append(tools(), runs.Tools...) }

// executeCall executes a call.
func executeCall(ctx context.Context, s *Service, w *execute.Work) execute.Result {
	if slices.ContainsFunc(runs.Tools, func(t contract.Tool) bool { return t.Kind == w.Call.Kind }) {
		return s.pipelines.Handle(ctx, w)
	}
	if err := s.places.Enter(ctx, w.Event.Tenant, w.Event.Actor); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the call was not started: %v", err)
	}
	defer s.places.Leave()
	return s.handle(ctx, w)
}

// Run implements run.Service. It calls ready when the views have read the ledger to its
// end and the outcomes of pipelines' calls can be received.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	if s.Quota == 0 {
		s.Quota = 100e9
	}
	s.env, s.pipelines, s.places = env, newPipelines(env), fair.New(limit)
	s.store = artifact.Sealed{Collected: artifact.Stream{Conn: env.Conn}, Keys: env.Blobs.Keys}
	if s.Store != nil {
		artifact.Connect(s.Store, env.Endpoint(egress.EndpointArtifacts))
		s.store.Collected = artifact.Split{Collected: s.Store, Service: services.SessionRunner, Own: artifact.Stream{Conn: env.Conn}}
	}
	env.OnErasure(func(string) { go s.memory.Close() }) // searches build the indexes again; Close waits for those that run
	s.follower = follow.New(env.Conn, env.Instance, artifactsReader, s.apply)
	s.follower.Every = 500 * time.Millisecond
	env.ReportFollower("work.artifacts", s.follower, nil)
	if err := catalog.Register(ctx, env.Emit, env.Cell.Now, services.Work, documents()); err != nil {
		return err
	}
	s.serve()
	following, stop := context.WithCancel(context.WithoutCancel(ctx)) // until the last call has ended
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	listening := make(chan struct{})
	g.Go(func() error { return s.follower.Run(following, 1) })
	g.Go(func() error { return s.pipelines.run(following, func() { close(listening) }) })
	g.Go(func() error {
		defer stop()
		defer s.memory.Close() // after the last call
		for _, c := range []<-chan struct{}{s.follower.Ready(), listening} {
			select {
			case <-c:
			case <-ctx.Done():
				return nil
			}
		}
		ready()
		x := execute.New(env, limit+runs.MaxRuns+runs.MaxSchedules, documents(), func(ctx context.Context, w *execute.Work) execute.Result { return executeCall(ctx, s, w) })
		x.ReRunable = func(kind string) bool {
			return slices.ContainsFunc(x.Tools, func(t contract.Tool) bool { return t.Kind == kind && t.Rerunnable })
		}
		return x.Run(ctx)
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

// apply applies a ledger entry to the view. It logs and ignores an invalid
// entry.
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
	s.at = en.Seq
	return nil
}

// read calls f with the view, which has then applied every event that was stored before
// the call of read. f must not retain what it reads, because later events change it. While the
// ledger does not respond, read waits, for at most patience.
func (s *Service) read(ctx context.Context, f func(v *shelf.View)) error {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := s.follower.Poll(patient)
		if err == nil {
			break
		}
		select {
		case <-patient.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.view)
	return nil
}
