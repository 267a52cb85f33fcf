package work

import (
	"context"
	"math"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
)

// maxList is the maximum number of artifacts or runs in the response of a query.
const maxList = 1000

// queryList handles the query artifact_list.
func (s *Service) queryList(ctx context.Context, q *events.ArtifactListRequest) ([]events.Artifact, error) {
	return s.listed(ctx, transient.Tenant(ctx), q.Owner, q.Before, int(min(max(q.Limit, 1), maxList)))
}

// queryInfo handles the query artifact_info.
func (s *Service) queryInfo(ctx context.Context, q *events.ArtifactInfoRequest) (out events.Artifact, err error) {
	found, now := false, s.env.Emit.Now()
	if err := s.read(ctx, func(v *shelf.View) {
		a := v.Get(transient.Tenant(ctx), q.Artifact)
		if u := a.Readable(q.Owner, q.Upload, now); u != nil {
			out, found = describe(a, u), true
		}
	}); err != nil {
		return out, err
	}
	if !found {
		return out, rpc.Errorf(contract.CodeNotFound, "no artifact of the caller has this id")
	}
	return out, nil
}

// queryUsage handles the query artifact_usage.
func (s *Service) queryUsage(ctx context.Context, _ *events.ArtifactUsageRequest) (out events.ArtifactUsage, err error) {
	out.Quota = s.Quota
	err = s.read(ctx, func(v *shelf.View) { out.Used = v.Used(transient.Tenant(ctx), math.MaxUint64) })
	return out, err
}

// queryRun handles the query pipeline_run.
func (p *pipelines) queryRun(ctx context.Context, q *events.PipelineRunRequest) (out events.PipelineRun, err error) {
	found := false
	if err := p.read(ctx, func(b *flow.Board) {
		if r := b.Get(transient.Tenant(ctx), q.Actor, q.Run); r != nil {
			out, found = *r, true
		}
	}); err != nil {
		return out, err
	}
	if !found {
		return out, rpc.Errorf(contract.CodeNotFound, "none of the newest runs of pipelines has this id")
	}
	return out, nil
}

// queryRuns handles the query pipeline_runs.
func (p *pipelines) queryRuns(ctx context.Context, q *events.PipelineRunsRequest) (out []events.PipelineRun, err error) {
	out = []events.PipelineRun{}
	err = p.read(ctx, func(b *flow.Board) {
		for _, r := range b.List(transient.Tenant(ctx), q.Actor, int(min(max(q.Limit, 1), maxList))) {
			out = append(out, *r)
		}
	})
	return out, err
}
