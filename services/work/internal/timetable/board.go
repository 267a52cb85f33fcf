package timetable

import (
	"cmp"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// maxBoard is the number of schedules of a tenant up to which a Board holds those that have ended.
// It is greater than the number of schedules that all instances together execute at the same time.
const maxBoard = 4000

// running is the status of a schedule that goes on.
const running = "running"

// Names are the names of the events that a Board applies, beside effect_recorded.
var Names = []string{contract.EventScheduleStarted, contract.EventScheduleFired}

// Board is the view of the schedules of all tenants, for descriptions: those that go on and
// the newest of those that have ended. It is not safe for concurrent use.
type Board struct {
	all   map[boardKey]*events.PipelineSchedule
	order map[string][]string // ids by tenant, oldest first
}

type boardKey struct{ tenant, schedule string }

// Apply applies an event of a schedule, or the outcome of a call that may be a schedule. An
// event with invalid data has no effect.
func (b *Board) Apply(e *contract.Event) {
	if b.all == nil {
		b.all, b.order = map[boardKey]*events.PipelineSchedule{}, map[string][]string{}
	}
	switch e.Name {
	case contract.EventScheduleStarted:
		var d events.ScheduleStarted
		if contract.Decode(e.Data, &d) == nil && d.CallID == e.CallID {
			b.add(e.Tenant, &events.PipelineSchedule{Actor: e.Actor, Cron: d.Cron, Digest: d.Digest, Missed: d.Missed, Pipeline: d.Name, Schedule: d.CallID,
				Session: e.Session, Started: e.Time, Status: running, Timezone: d.Timezone})
		}
	case contract.EventScheduleFired:
		var d events.ScheduleFired
		if contract.Decode(e.Data, &d) == nil {
			advance(b.all[boardKey{e.Tenant, d.Schedule}], &d)
		}
	case contract.EventEffectRecorded:
		var d contract.Recorded
		if contract.Decode(e.Data, &d) == nil && d.Effect.Tool == pipeline.SchedulePack {
			b.ended(e, &d.Effect)
		}
	}
}

// advance applies schedule_fired. It does nothing if s is nil.
func advance(s *events.PipelineSchedule, d *events.ScheduleFired) {
	if s == nil {
		return
	}
	s.Newest, s.NewestRun, s.NewestSkipped = d.At, d.CallID, d.Skipped
	s.Skipped += d.Missed
	if d.CallID != "" {
		s.Runs++
	} else {
		s.Skipped++
	}
}

// ended applies the outcome of a call. It adds a schedule that ended before it began, for example
// because it was cancelled or its arguments are wrong. A call that succeeded without a schedule of
// its own returned the id of another one.
func (b *Board) ended(e *contract.Event, d *contract.Effect) {
	k := boardKey{e.Tenant, e.CallID}
	if b.all[k] == nil && d.Status != contract.Succeeded {
		b.add(e.Tenant, &events.PipelineSchedule{Actor: e.Actor, Schedule: e.CallID, Session: e.Session})
	}
	if s := b.all[k]; s != nil && s.Ended == "" {
		s.Ended, s.Status, s.ErrorCode = e.Time, d.Status, d.ErrorCode
	}
}

// add adds a schedule, unless the board has it. If there are too many of the tenant, it
// removes the oldest one that has ended.
func (b *Board) add(tenant string, s *events.PipelineSchedule) {
	k := boardKey{tenant, s.Schedule}
	if b.all[k] != nil {
		return
	}
	b.all[k] = s
	b.order[tenant] = append(b.order[tenant], s.Schedule)
	if len(b.order[tenant]) <= maxBoard {
		return
	}
	i := slices.IndexFunc(b.order[tenant], func(id string) bool { return b.all[boardKey{tenant, id}].Ended != "" })
	if i >= 0 {
		delete(b.all, boardKey{tenant, b.order[tenant][i]})
		b.order[tenant] = slices.Delete(b.order[tenant], i, i+1)
	}
}

// describe returns a copy of a schedule, with its next time unless it has ended.
func describe(s *events.PipelineSchedule) *events.PipelineSchedule {
	out := *s
	if s.Ended != "" {
		return &out
	}
	next, err := Times(s.Cron, s.Timezone)
	if err != nil {
		return &out
	}
	last, err := contract.ParseTime(cmp.Or(s.Newest, s.Started))
	if err != nil {
		return &out
	}
	if at := next(last); !at.IsZero() {
		out.Next = contract.Time(at)
	}
	return &out
}

// Get returns the description of a schedule of an actor, or of any actor if actor is empty.
// It returns nil if the board has no such schedule.
func (b *Board) Get(tenant, actor, schedule string) *events.PipelineSchedule {
	s := b.all[boardKey{tenant, schedule}]
	if s == nil || actor != "" && s.Actor != actor {
		return nil
	}
	return describe(s)
}

// List returns the descriptions of the newest schedules of an actor, or of all actors if
// actor is empty, newest first and at most limit. Those that go on are listed before those
// that have ended.
func (b *Board) List(tenant, actor string, limit int) []*events.PipelineSchedule {
	out := []*events.PipelineSchedule{}
	for _, ended := range []bool{false, true} {
		for _, id := range slices.Backward(b.order[tenant]) {
			s := b.all[boardKey{tenant, id}]
			if len(out) < limit && (s.Ended != "") == ended && (actor == "" || s.Actor == actor) {
				out = append(out, describe(s))
			}
		}
	}
	return out
}
