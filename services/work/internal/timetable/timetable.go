// Package timetable decides at which times a schedule starts a run of a pipeline. It is
// pure: package runs appends the events and proposes the calls.
package timetable

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
)

// Values of State.Missed: the runs that are started for the times that passed while no instance
// executed the schedule.
const (
	Skip = "skip" // nothing
	Run  = "run"  // one run
)

// Reasons for a time without a run.
const (
	Overlap = "overlap" // the previous run is in progress
	Missed  = "missed"  // the time passed more than Grace ago
)

// Grace is the delay after which a time counts as missed.
const Grace = time.Minute

// maxTimes is the maximum number of times that one decision counts as missed. The next
// decision continues with the times after them.
const maxTimes = 100_000

// State is the state of a schedule.
type State struct {
	ID     string                          // id of its call
	Next   func(after time.Time) time.Time // first time after another one; zero if there is none
	Missed string                          // Skip or Run
	Last   time.Time                       // newest time that was decided, or the time at which the schedule began
	Call   string                          // call of the newest run; empty if there is none
	Since  uint64                          // sequence of the event that names Call
	Open   bool                            // the newest run has no outcome yet; once it has one, the caller of Decide sets Open to false
}

// Key returns the aggregate key of the schedules that an actor of a tenant starts with the
// same document, inputs, times and time zone.
func Key(tenant, actor, digest, cron, timezone string, inputs []byte) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{"binnacle pipeline schedule", tenant, actor, digest, cron, timezone, string(inputs)}, "\n")))
	return contract.IDSchedule + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])[:26]
}

// Evolve applies an event at a ledger sequence. An event of another schedule has no effect.
func (s *State) Evolve(seq uint64, e *contract.Event) error {
	if e.Name != contract.EventScheduleFired {
		return nil
	}
	var d events.ScheduleFired
	if err := contract.Decode(e.Data, &d); err != nil || d.Schedule != s.ID {
		return err
	}
	at, err := contract.ParseTime(d.At)
	if err != nil {
		return err
	}
	s.Last = at
	if d.CallID != "" {
		s.Call, s.Since, s.Open = d.CallID, seq, true
	}
	return nil
}

// Decide returns the event that is due at a time, or nil with the time at which to decide
// again, which is zero if the schedule has no further time. Of several times that have
// passed, it decides the newest one; the others count as missed. If there are more than
// maxTimes others, it decides the time after the first maxTimes ones.
func (s *State) Decide(now time.Time) (*events.ScheduleFired, time.Time) {
	at := s.Next(s.Last)
	if at.IsZero() || at.After(now) {
		return nil, at
	}
	missed := int64(0)
	for n := s.Next(at); !n.IsZero() && !n.After(now) && missed < maxTimes; n = s.Next(at) {
		at = n
		missed++
	}
	d := &events.ScheduleFired{At: contract.Time(at), Missed: missed, Schedule: s.ID}
	switch {
	case s.Open:
		d.Skipped = Overlap
	case now.Sub(at) > Grace && s.Missed != Run:
		d.Skipped = Missed
	default:
		d.CallID = flow.CallID(s.ID, d.At, 0, 1)
	}
	return d, time.Time{}
}
