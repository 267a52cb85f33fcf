package flow

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// maxBoard is the maximum number of runs of a tenant that a Board holds.
const maxBoard = 1000

// entry is a run on a Board.
type entry struct {
	events.PipelineRun
	open map[string]int // by step, its calls without an outcome
}

// pending is the status of a step that waits for its first call or a retry. Only
// descriptions have it.
const pending = "pending"

// Board is the view of the newest runs of all tenants, for descriptions. It is not safe for
// concurrent use.
type Board struct {
	runs  map[boardKey]*entry
	order map[string][]string // run ids by tenant, oldest first
}

type boardKey struct{ tenant, run string }

// Apply applies an event of a run, or the outcome of a call that may be a run. An event
// with invalid data has no effect.
func (b *Board) Apply(e *contract.Event) {
	if b.runs == nil {
		b.runs, b.order = map[boardKey]*entry{}, map[string][]string{}
	}
	switch e.Name {
	case contract.EventPipelineStarted:
		var d events.PipelineStarted
		if contract.Decode(e.Data, &d) == nil {
			b.started(e, &d)
		}
	case contract.EventPipelineStepStarted:
		var d events.PipelineStepStarted
		if contract.Decode(e.Data, &d) != nil {
			return
		}
		r := b.runs[boardKey{e.Tenant, d.Run}]
		if s := r.step(d.Step); s != nil {
			s.Attempts, s.CallID, s.Status, s.Items, s.ErrorCode = s.Attempts+1, d.CallID, running, max(s.Items, d.Item+1), ""
			r.open[s.ID]++
			if s.Started == "" {
				s.Started = e.Time
			}
		}
	case contract.EventPipelineStepEnded:
		var d events.PipelineStepEnded
		if contract.Decode(e.Data, &d) == nil {
			b.runs[boardKey{e.Tenant, d.Run}].stepEnded(e.Time, &d)
		}
	case contract.EventPipelineEnded:
		var d events.PipelineEnded
		if contract.Decode(e.Data, &d) == nil {
			b.runs[boardKey{e.Tenant, d.Run}].end(e.Time, d.Status, d.ErrorCode, d.Step)
		}
	case contract.EventEffectRecorded:
		var d contract.Recorded
		if contract.Decode(e.Data, &d) == nil {
			b.recorded(e, &d.Effect)
		}
	}
}

// recorded applies the outcome of a call. It ends a run whose end is not recorded, for example
// because the call was cancelled while no instance executed it. It adds a run that ended before
// it began, for example because it was cancelled or its document is wrong. A call that
// succeeded without a run of its own returned the id of another run.
func (b *Board) recorded(e *contract.Event, d *contract.Effect) {
	k := boardKey{e.Tenant, e.CallID}
	if b.runs[k] == nil && d.Tool == pipeline.RunPack && d.Status != contract.Succeeded {
		b.add(k, events.PipelineRun{Actor: e.Actor, Run: e.CallID, Session: e.Session, Steps: []events.RunStep{}})
	}
	b.runs[k].end(e.Time, d.Status, d.ErrorCode, "")
}

// started adds a run. It ignores a run that the board has, and an event that is not of the run's call.
func (b *Board) started(e *contract.Event, d *events.PipelineStarted) {
	k := boardKey{e.Tenant, d.CallID}
	if b.runs[k] != nil || d.CallID != e.CallID {
		return
	}
	r := events.PipelineRun{Actor: e.Actor, Digest: d.Digest, Pipeline: d.Name, Run: d.CallID, Session: e.Session, Started: e.Time, Status: running, Steps: []events.RunStep{}}
	for _, s := range d.Steps {
		r.Steps = append(r.Steps, events.RunStep{ID: s.ID, Needs: s.Needs, Pack: s.Pack, Status: pending})
	}
	b.add(k, r)
}

// add adds a run, and removes the oldest one of the tenant if there are too many.
func (b *Board) add(k boardKey, r events.PipelineRun) {
	b.runs[k] = &entry{r, map[string]int{}}
	b.order[k.tenant] = append(b.order[k.tenant], k.run)
	if all := b.order[k.tenant]; len(all) > maxBoard {
		delete(b.runs, boardKey{k.tenant, all[0]})
		b.order[k.tenant] = all[1:]
	}
}

// step returns a step, or nil.
func (r *entry) step(id string) *events.RunStep {
	if r == nil {
		return nil
	}
	for i := range r.Steps {
		if r.Steps[i].ID == id {
			return &r.Steps[i]
		}
	}
	return nil
}

// stepEnded applies pipeline_step_ended. It does nothing if r is nil or has no such step.
func (r *entry) stepEnded(at string, d *events.PipelineStepEnded) {
	s := r.step(d.Step)
	if s == nil {
		return
	}
	if d.Item >= 0 {
		r.open[s.ID] = max(r.open[s.ID]-1, 0)
	}
	s.Ended = at
	if d.ErrorCode != "" {
		s.ErrorCode = d.ErrorCode
	}
	switch {
	case d.RetryMS > 0:
		s.Status = pending
	case r.open[s.ID] > 0:
		s.Status = running
	default:
		s.Status = d.Status
	}
}

// end applies the end of a run. It does nothing if r is nil or has ended.
func (r *entry) end(at, status, code, step string) {
	if r == nil || r.Ended != "" {
		return
	}
	r.Ended, r.Status, r.ErrorCode, r.Failed = at, status, code, step
}

// clone returns a copy that later events do not change.
func (r *entry) clone() *events.PipelineRun {
	c := r.PipelineRun
	c.Steps = slices.Clone(r.Steps)
	return &c
}

// Get returns the description of a run of an actor, or of any actor if actor is empty. It
// returns nil if the board has no such run.
func (b *Board) Get(tenant, actor, run string) *events.PipelineRun {
	r := b.runs[boardKey{tenant, run}]
	if r == nil || actor != "" && r.Actor != actor {
		return nil
	}
	return r.clone()
}

// List returns the descriptions of the newest runs of an actor, or of all actors if actor
// is empty, newest first and at most limit.
func (b *Board) List(tenant, actor string, limit int) []*events.PipelineRun {
	out := []*events.PipelineRun{}
	for _, id := range slices.Backward(b.order[tenant]) {
		if r := b.Get(tenant, actor, id); r != nil && len(out) < limit {
			out = append(out, r)
		}
	}
	return out
}
