package work

import (
	"context"
	"errors"
	"io"
	"math"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
)

// maxList is the maximum number of artifacts, runs or schedules in the response of a query.
const maxList = 1000

// queryList handles the query artifact_list.
func (s *Service) queryList(ctx context.Context, q *events.ArtifactListRequest) ([]events.Artifact, error) {
	all, err := s.listed(ctx, transient.Tenant(ctx), q.Owner, q.Before, q.Label, int(min(max(q.Limit, 1), maxList)))
	if errors.Is(err, shelf.ErrNotFound) {
		return nil, &rpc.Error{Code: contract.CodeInvalidInput, Param: "before", Message: "before: is not the id of an upload in the list"}
	}
	return all, err
}

// queryInfo handles the query artifact_info.
func (s *Service) queryInfo(ctx context.Context, q *events.ArtifactInfoRequest) (out events.Artifact, err error) {
	err = readable(ctx, s, q.Artifact, q.Owner, q.Upload, func(a *shelf.Artifact, u *shelf.Upload) { out = describe(a, u) })
	return out, err
}

// readable calls f with an artifact and the upload of it that an owner may read. If there is none,
// it returns an error with the code not_found.
func readable(ctx context.Context, s *Service, id, owner, upload string, f func(*shelf.Artifact, *shelf.Upload)) error {
	found, now := false, s.env.Emit.Now()
	if err := s.read(ctx, func(v *shelf.View) {
		a := v.Get(transient.Tenant(ctx), id)
		if u := a.Readable(owner, upload, now); u != nil {
			f(a, u)
			found = true
		}
	}); err != nil {
		return err
	}
	if !found {
		return rpc.Errorf(contract.CodeNotFound, "no artifact of the caller has this id")
	}
	return nil
}

// queryPart handles the query artifact_part.
func queryPart(ctx context.Context, s *Service, q *events.ArtifactPartRequest) ([]byte, error) {
	if q.Owner == "" {
		return nil, &rpc.Error{Code: contract.CodeInvalidInput, Param: "owner", Message: "owner: name the principal that owns the artifact"}
	}
	var o artifact.Object
	if err := readable(ctx, s, q.Artifact, q.Owner, q.Upload, func(_ *shelf.Artifact, u *shelf.Upload) { o = u.Object(transient.Tenant(ctx)) }); err != nil {
		return nil, err
	}
	ctx = contentkeys.ForCall(ctx, uint64(max(q.Allowed, 0)))
	r, err := artifact.Open(ctx, s.store, o)
	if err == nil {
		defer r.Close()
		_, err = r.Seek(q.Offset, io.SeekStart)
	}
	var part []byte
	if err == nil {
		part, err = io.ReadAll(io.LimitReader(r, artifact.PartSize))
	}
	if err != nil {
		return nil, rpc.Errorf(failed(err).ErrorCode, "%v", err)
	}
	return part, nil
}

// queryUsage handles the query artifact_usage.
func (s *Service) queryUsage(ctx context.Context, _ *events.ArtifactUsageRequest) (out events.ArtifactUsage, err error) {
	out.Quota = quotaOf(s, transient.Tenant(ctx))
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

// querySchedule handles the query pipeline_schedule.
func (p *pipelines) querySchedule(ctx context.Context, q *events.PipelineScheduleRequest) (out events.PipelineSchedule, err error) {
	found := false
	if err := p.poll(ctx, func() {
		if s := p.boards.schedules.Get(transient.Tenant(ctx), q.Actor, q.Schedule); s != nil {
			out, found = *s, true
		}
	}); err != nil {
		return out, err
	}
	if !found {
		return out, rpc.Errorf(contract.CodeNotFound, "none of the newest schedules of pipelines has this id")
	}
	return out, nil
}

// querySchedules handles the query pipeline_schedules.
func (p *pipelines) querySchedules(ctx context.Context, q *events.PipelineSchedulesRequest) (out []events.PipelineSchedule, err error) {
	out = []events.PipelineSchedule{}
	err = p.poll(ctx, func() {
		for _, s := range p.boards.schedules.List(transient.Tenant(ctx), q.Actor, int(min(max(q.Limit, 1), maxList))) {
			out = append(out, *s)
		}
	})
	return out, err
}
