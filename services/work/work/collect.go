package work

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
)

// Times of the collector.
const (
	collectEvery = 2 * time.Second // between two searches of the view for uploads that are due
	sweepEvery   = time.Hour       // between searches for uploads without an artifact
	abandoned    = 24 * time.Hour  // age of an upload without an artifact at which it is removed
	claimable    = 23 * time.Hour  // age of an upload up to which a call may make it an artifact
)

// collect removes the content of uploads that are due, and more rarely abandoned uploads,
// until ctx ends. Each instance does it; the steps may be repeated.
func (s *Service) collect(ctx context.Context) {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	var swept time.Time
	for {
		now := s.env.Emit.Now()
		if err := collectDue(ctx, s, now); err != nil && ctx.Err() == nil {
			s.env.Log.Warn("content of artifacts is not removed yet", "err", err)
		}
		if now.Sub(swept) >= sweepEvery {
			swept = now
			if err := sweep(ctx, s, now); err != nil && ctx.Err() == nil {
				s.env.Log.Warn("abandoned uploads are not removed yet", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// collectDue removes the content of the uploads that are due at the time now. A failed removal
// does not delay the removal of further uploads; the error joins the errors of all of them. If
// ctx ends, the remaining uploads are not removed.
func collectDue(ctx context.Context, s *Service, now time.Time) error {
	s.mu.Lock()
	due := s.view.Due(now)
	s.mu.Unlock()
	var failed []error
	for _, e := range due {
		if err := ctx.Err(); err != nil {
			failed = append(failed, err)
			break
		}
		s.mu.Lock()
		a, u := e.Clone(), *e.Upload
		s.mu.Unlock()
		if err := s.removeContent(ctx, a, &u); err != nil {
			failed = append(failed, fmt.Errorf("upload %s of tenant %s: %w", u.Data.Upload, a.Tenant, err))
		}
	}
	return errors.Join(failed...)
}

// removeContent records that an upload is deleted, unless that was recorded before,
// removes its content, and records the removal.
func (s *Service) removeContent(ctx context.Context, a *shelf.Artifact, u *shelf.Upload) error {
	if u.Deleted == "" {
		if err := s.delete(ctx, a.Tenant, a.ID, u.Data.Upload, "", shelf.Expired, nil); err != nil {
			return err
		}
	}
	if err := s.env.Conn.Durable(ctx); err != nil { // the record of the deletion must survive a loss of power
		return err
	}
	if err := s.store.Remove(ctx, a.Tenant, u.Data.Service, u.Data.Upload); err != nil {
		return err
	}
	return s.change(ctx, a.Tenant, a.ID, contract.EventArtifactRemoved, nil, func(now *shelf.Artifact) (canon.Document, error) {
		if !now.Has(u.Data.Upload) { // another instance recorded it
			return nil, nil
		}
		return &events.ArtifactRemoved{Service: u.Data.Service, Upload: u.Data.Upload}, nil
	})
}

// sweep removes the uploads that are no artifact and were begun at least a day ago, such
// as those whose call was denied. An upload begins when its first part is stored. An upload that
// fails does not delay the others; the error joins those of all uploads that failed.
func sweep(ctx context.Context, s *Service, now time.Time) error {
	var begun []artifact.Parts // removed after the listing, which could skip some if they were removed meanwhile
	if err := s.store.Uploads(ctx, func(p artifact.Parts) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.view.Known(p.Tenant, p.Upload) {
			begun = append(begun, p)
		}
		return nil
	}); err != nil {
		return err
	}
	var failed []error
	for _, p := range begun {
		if err := sweepUpload(ctx, s, now, p); err != nil {
			failed = append(failed, fmt.Errorf("upload %s of tenant %s: %w", p.Upload, p.Tenant, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// sweepUpload removes an upload that is no artifact if it was abandoned.
func sweepUpload(ctx context.Context, s *Service, now time.Time, p artifact.Parts) error {
	at, err := s.store.Begun(ctx, p)
	if errors.Is(err, artifact.ErrNotFound) {
		return nil // removed by another instance, or never complete
	}
	if err != nil || now.Sub(at) < abandoned {
		return err
	}
	known := false
	if err := s.read(ctx, func(v *shelf.View) { known = v.Known(p.Tenant, p.Upload) }); err != nil || known {
		return err
	}
	if err := s.store.Remove(ctx, p.Tenant, p.Service, p.Upload); err != nil {
		return err
	}
	s.env.Log.Info("abandoned upload removed", "tenant", p.Tenant, "upload", p.Upload, "age", strconv.Itoa(int(now.Sub(at).Hours()))+"h")
	return nil
}

// serve registers the handlers of the queries, which the gateway and the session-runner send.
func (s *Service) serve() {
	srv := &rpc.Server{Transport: s.env.Transport}
	rpc.Serve(srv, events.ArtifactListQuery, s.queryList)
	rpc.Serve(srv, events.ArtifactInfoQuery, s.queryInfo)
	rpc.Serve(srv, events.ArtifactPartQuery, func(ctx context.Context, q *events.ArtifactPartRequest) ([]byte, error) { return queryPart(ctx, s, q) })
	rpc.Serve(srv, events.ArtifactUsageQuery, s.queryUsage)
	rpc.Serve(srv, events.PipelineRunQuery, s.pipelines.queryRun)
	rpc.Serve(srv, events.PipelineRunsQuery, s.pipelines.queryRuns)
	rpc.Serve(srv, events.PipelineScheduleQuery, s.pipelines.querySchedule)
	rpc.Serve(srv, events.PipelineSchedulesQuery, s.pipelines.querySchedules)
	serveViews(s, s.env.Transport)
}
