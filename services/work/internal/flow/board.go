package flow

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// maxBoard is the maximum number of runs of a tenant that a Board holds.
const maxBoard = 1000

// Run describes a run of a pipeline.
type Run struct {
	Actor     string `json:"actor"`
	Digest    string `json:"digest"`     // of the document
	Ended     string `json:"ended"`      // time (RFC 3339); empty while it goes on
	ErrorCode string `json:"error_code"` // empty unless it failed
	Failed    string `json:"failed"`     // step that failed; empty if none did
	Pipeline  string `json:"pipeline"`
	Run       string `json:"run"` // id, that of its call
	Session   string `json:"session"`
	Started   string `json:"started"`
	Status    string `json:"status"` // running, or how it ended
	Steps     []Step `json:"steps"`
}

// Step describes a step of a run.
type Step struct {
	Attempts  int      `json:"attempts"` // number of calls of all items
	CallID    string   `json:"call_id"`  // the newest call; empty without one
	Ended     string   `json:"ended"`
	ErrorCode string   `json:"error_code"`
	ID        string   `json:"id"`
	Items     int      `json:"items"` // number of items that have started
	Needs     []string `json:"needs"`
	Pack      string   `json:"pack"`
	Started   string   `json:"started"`
	Status    string   `json:"status"` // pending, running, skipped, succeeded, or how its call ended

	open int // calls without an outcome
}

// pending is the status of a step that waits for its first call or a retry. Only
// descriptions have it.
const pending = "pending"

// Board is the view of the newest runs of all tenants, for descriptions. It is not safe for
// concurrent use.
type Board struct {
	runs  map[boardKey]*Run
	order map[string][]string // run ids by tenant, oldest first
}

type boardKey struct{ tenant, run string }

// Apply applies an event of a run, or the outcome of a call that may be a run. An event
// with invalid data has no effect.
func (b *Board) Apply(e *contract.Event) {
	if b.runs == nil {
		b.runs, b.order = map[boardKey]*Run{}, map[string][]string{}
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
		if s := b.runs[boardKey{e.Tenant, d.Run}].step(d.Step); s != nil {
			s.Attempts, s.CallID, s.Status, s.Items, s.ErrorCode = s.Attempts+1, d.CallID, running, max(s.Items, int(d.Item)+1), ""
			s.open++
			if s.Started == "" {
				s.Started = e.Time
			}
		}
	case contract.EventPipelineStepEnded:
		var d events.PipelineStepEnded
		if contract.Decode(e.Data, &d) == nil {
			b.runs[boardKey{e.Tenant, d.Run}].step(d.Step).end(e.Time, &d)
		}
	case contract.EventPipelineEnded:
		var d events.PipelineEnded
		if contract.Decode(e.Data, &d) == nil {
			b.runs[boardKey{e.Tenant, d.Run}].end(e.Time, d.Status, d.ErrorCode, d.Step)
		}
	case contract.EventEffectRecorded: // of a run that was cancelled while no instance executed it
		if r := b.runs[boardKey{e.Tenant, e.CallID}]; r != nil {
			var d contract.Recorded
			if contract.Decode(e.Data, &d) == nil {
				r.end(e.Time, d.Effect.Status, d.Effect.ErrorCode, "")
			}
		}
	}
}

// started adds a run, and removes the oldest one of the tenant if there are too many.
// It ignores a run that the board has, and an event that is not of the run's call.
func (b *Board) started(e *contract.Event, d *events.PipelineStarted) {
	k := boardKey{e.Tenant, d.CallID}
	if b.runs[k] != nil || d.CallID != e.CallID {
		return
	}
	r := &Run{Actor: e.Actor, Digest: d.Digest, Pipeline: d.Name, Run: d.CallID, Session: e.Session, Started: e.Time, Status: running}
	for _, s := range d.Steps {
		r.Steps = append(r.Steps, Step{ID: s.ID, Needs: s.Needs, Pack: s.Pack, Status: pending})
	}
	b.runs[k] = r
	b.order[e.Tenant] = append(b.order[e.Tenant], d.CallID)
	if all := b.order[e.Tenant]; len(all) > maxBoard {
		delete(b.runs, boardKey{e.Tenant, all[0]})
		b.order[e.Tenant] = all[1:]
	}
}

// step returns a step, or nil.
func (r *Run) step(id string) *Step {
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

// end applies pipeline_step_ended. It does nothing if s is nil.
func (s *Step) end(at string, d *events.PipelineStepEnded) {
	if s == nil {
		return
	}
	if d.Item >= 0 {
		s.open = max(s.open-1, 0)
	}
	s.Ended = at
	if d.ErrorCode != "" {
		s.ErrorCode = d.ErrorCode
	}
	switch {
	case d.RetryMS > 0:
		s.Status = pending
	case s.open > 0:
		s.Status = running
	default:
		s.Status = d.Status
	}
}

// end applies the end of a run. It does nothing if r is nil or has ended.
func (r *Run) end(at, status, code, step string) {
	if r == nil || r.Ended != "" {
		return
	}
	r.Ended, r.Status, r.ErrorCode, r.Failed = at, status, code, step
}

// clone returns a copy that later events do not change.
func (r *Run) clone() *Run {
	c := *r
	c.Steps = slices.Clone(r.Steps)
	return &c
}

// Get returns the description of a run of an actor, or of any actor if actor is empty. It
// returns nil if the board has no such run.
func (b *Board) Get(tenant, actor, run string) *Run {
	r := b.runs[boardKey{tenant, run}]
	if r == nil || actor != "" && r.Actor != actor {
		return nil
	}
	return r.clone()
}

// List returns the descriptions of the newest runs of an actor, or of all actors if actor
// is empty, newest first and at most limit.
func (b *Board) List(tenant, actor string, limit int) []*Run {
	out := []*Run{}
	for _, id := range slices.Backward(b.order[tenant]) {
		if r := b.Get(tenant, actor, id); r != nil && len(out) < limit {
			out = append(out, r)
		}
	}
	return out
}
