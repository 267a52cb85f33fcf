package work

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
	"github.com/binnacle-mesh/binnacle/services/work/internal/runs"
	"github.com/binnacle-mesh/binnacle/services/work/internal/timetable"
)

// slots is the maximum number of instances.
const slots = 4

// stepsReader reads the escalations and outcomes of the calls that any instance proposed:
// an instance that continues a run awaits calls that another one proposed.
var stepsReader = bus.Reader{Name: "outcomes", Stream: bus.Events, Filters: stepFilters()}

func stepFilters() (out []string) {
	for n := range slots {
		origin := fmt.Sprintf("%s-%d", services.Work, n+1)
		out = append(out, bus.Filter{Origin: origin, Event: contract.EventEffectRecorded}.String(), bus.Filter{Origin: origin, Event: contract.EventEscalated}.String())
	}
	return out
}

// toolsReader reads the tools of the mesh.
var toolsReader = bus.Reader{Name: "catalog", Stream: bus.Events, Filters: slices.Clone(catalog.ViewFilters)}

// runsReader reads the events of runs and schedules, and the outcomes of the service's
// calls, some of which are runs or schedules.
var runsReader = bus.Reader{Name: "runs", Stream: bus.Events, Filters: bus.Filters(services.Work, append(slices.Concat(flow.Names, timetable.Names), contract.EventEffectRecorded)...)}

// pipelines is the part of the service that runs pipelines.
type pipelines struct {
	*runs.Runner
	prop  *propose.Proposer
	tools *catalog.View
	view  *follow.Follower // of tools
	runs  *follow.Follower // of boards

	offered sync.Mutex // held while an event is applied to tools
	toolsAt uint64     // sequence of the last entry applied to tools, or 0; guarded by offered

	mu     sync.Mutex
	boards boards
	at     uint64 // sequence of the last entry applied to boards, or 0
}

// read calls f with the board, which contains every event that was stored before.
func (p *pipelines) read(ctx context.Context, f func(*flow.Board)) error {
	return p.poll(ctx, func() { f(&p.boards.runs) })
}

// poll calls f while p.mu is held and the boards contain every event that was stored before.
func (p *pipelines) poll(ctx context.Context, f func()) error {
	if err := p.runs.Poll(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	return nil
}

// apply applies a ledger entry to the boards. It logs and ignores an invalid
// entry.
func (p *pipelines) apply(en eventlog.Entry) error {
	e, err := eventlog.Open(en, runsReader.Filters...)
	if err != nil {
		slog.Error("ledger entry refused", "seq", en.Seq, "err", err)
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.boards.apply(e)
	p.at = en.Seq
	return nil
}

// applyTool applies a ledger entry to the tools. It logs and ignores an invalid entry, and
// returns the error of catalog.View.Apply.
func (p *pipelines) applyTool(en eventlog.Entry) error {
	e, err := eventlog.Open(en, toolsReader.Filters...)
	if err != nil {
		slog.Error("ledger entry refused", "seq", en.Seq, "err", err)
		return nil
	}
	p.offered.Lock()
	defer p.offered.Unlock()
	p.toolsAt = en.Seq
	return p.tools.Apply(e)
}

// newPipelines returns the part of an instance that runs pipelines.
func newPipelines(env *run.Env) *pipelines {
	p := &pipelines{tools: &catalog.View{Keys: trust.KeyAt(env.Trust.At)}}
	p.prop = &propose.Proposer{Reader: stepsReader, ExecutorOf: func(kind string) string {
		if t, _ := p.tools.Lookup(kind); t != nil {
			return t.Executor
		}
		return ""
	}, Emit: env.Emit, Blobs: env.Blobs, Conn: env.Conn, Instance: env.Instance}
	p.Runner = runs.New(runs.Runner{Emit: env.Emit, Blobs: env.Blobs, Log: env.Log, Proposer: p.prop, Tools: &p.tools.Catalog, Board: p.read})
	p.runs = follow.New(env.Conn, env.Instance, runsReader, p.apply)
	p.runs.Every = 500 * time.Millisecond
	p.view = follow.New(env.Conn, env.Instance, toolsReader, p.applyTool)
	return p
}

// run reads the tools and the outcomes until ctx ends. It calls ready when it has read
// the tools and the events of runs, and can receive outcomes.
func (p *pipelines) run(ctx context.Context, ready func()) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.view.Run(ctx, 1) })
	g.Go(func() error { return p.runs.Run(ctx, 1) })
	g.Go(func() error {
		listening := make(chan struct{})
		go func() {
			for _, c := range []<-chan struct{}{listening, p.view.Ready(), p.runs.Ready()} {
				select {
				case <-c:
				case <-ctx.Done():
					return
				}
			}
			ready()
		}()
		return p.prop.Run(ctx, func() { close(listening) })
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
