package work

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
	"github.com/binnacle-mesh/binnacle/services/work/internal/timetable"
)

// Views returns the declarations of the service's views, of which each instance has its own:
// the artifacts, the runs and schedules of pipelines, and the catalog of tools. The dumps of
// the first two are digests, since their content may be large.
func Views() []view.Declaration {
	return []view.Declaration{
		view.Of(services.Work, services.ViewArtifacts, artifactsReader, func(*view.Origin) (view.State, error) { return &artifacts{}, nil }),
		view.Of(services.Work, services.ViewPipelines, runsReader, func(*view.Origin) (view.State, error) {
			var b boards
			return view.Fold(func(e *contract.Event) error { b.apply(e); return nil }, func() []byte { return digest(b.dump) }), nil
		}),
		view.Of(services.Work, services.ViewTools, toolsReader, func(o *view.Origin) (view.State, error) {
			c := catalog.View{Keys: trust.KeyAt(o.Keys)}
			return view.Fold(c.Apply, c.Dump), nil
		}),
	}
}

// artifacts adapts the view of artifacts to view.State, for replay.
type artifacts struct{ shelf.View }

// Apply implements view.State.
func (a *artifacts) Apply(en eventlog.Entry, e *contract.Event) error {
	if e != nil {
		a.View.Apply(en.Seq, e)
	}
	return nil
}

// Dump implements view.State.
func (a *artifacts) Dump() ([]byte, error) { return digest(a.View.Dump), nil }

// boards holds the runs and schedules of pipelines. It is not safe for concurrent use.
type boards struct {
	runs      flow.Board
	schedules timetable.Board
}

// apply applies an event to both boards.
func (b *boards) apply(e *contract.Event) {
	b.runs.Apply(e)
	b.schedules.Apply(e)
}

// dump writes the canonical forms of both boards to w. It returns the error of w.
func (b *boards) dump(w io.Writer) error {
	if err := b.runs.Dump(w); err != nil {
		return err
	}
	return b.schedules.Dump(w)
}

// digest returns the SHA-256 of the bytes that dump writes, as "sha256:" and hexadecimal digits.
func digest(dump func(io.Writer) error) []byte {
	sum := sha256.New()
	_ = dump(sum) // a hash returns no errors
	return []byte("sha256:" + hex.EncodeToString(sum.Sum(nil)))
}

// serveViews registers the queries for the views of s. A response has the content of the view,
// with every event that was stored when the query was received, and the sequence of the last
// entry that was applied to it.
func serveViews(s *Service, transport rpc.Registrar) {
	fresh := func(f *follow.Follower) *rpc.Server {
		return &rpc.Server{Transport: transport, View: f, Fresh: func(ctx context.Context) error {
			_, err := f.Reach(ctx)
			return err
		}}
	}
	rpc.Serve(fresh(s.follower), query.ViewQuery, func(context.Context, *query.ViewRequest) (query.ViewDump, error) { return dumpArtifacts(s), nil })
	rpc.Serve(fresh(s.pipelines.runs), events.PipelinesViewQuery, func(context.Context, *events.PipelinesViewRequest) (query.ViewDump, error) {
		return s.pipelines.dump(), nil
	})
	rpc.Serve(fresh(s.pipelines.view), events.CatalogViewQuery, func(context.Context, *events.CatalogViewRequest) (query.ViewDump, error) {
		return s.pipelines.dumpTools(), nil
	})
}

// dumpArtifacts returns the dump of the view of artifacts.
func dumpArtifacts(s *Service) query.ViewDump {
	s.mu.Lock()
	defer s.mu.Unlock()
	return query.ViewDump{Name: services.ViewArtifacts, Position: s.at, Dump: string(digest(s.view.Dump))}
}

// dump returns the dump of the boards.
func (p *pipelines) dump() query.ViewDump {
	p.mu.Lock()
	defer p.mu.Unlock()
	return query.ViewDump{Name: services.ViewPipelines, Position: p.at, Dump: string(digest(p.boards.dump))}
}

// dumpTools returns the dump of the tools.
func (p *pipelines) dumpTools() query.ViewDump {
	p.offered.Lock()
	defer p.offered.Unlock()
	return query.ViewDump{Name: services.ViewTools, Position: p.toolsAt, Dump: string(p.tools.Dump())}
}
