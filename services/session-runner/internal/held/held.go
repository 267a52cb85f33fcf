// Package held is the aggregate of a held sandbox: a container that one call creates and
// that later calls of the same principal and session use. It folds the events of each
// held sandbox, decides which event may follow, and finds the sandboxes that are due to
// end. It is pure: it reads no clock, and the shell passes times to it.
package held

import (
	"errors"
	"maps"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// Values of the member reason of sandbox_ended.
const (
	Terminated = "terminated" // ended by a call
	Idle       = "idle"       // not used during its idle time
	Life       = "life"       // its maximum life had passed
	Failed     = "failed"     // its container could not be created
	Refused    = "refused"    // there were too many sandboxes
	Lost       = "lost"       // its container ended, or no instance adopted it in time
)

// Values of the member status of sandbox_exec_ended. ExecRunning is the status of a
// command for which no sandbox_exec_ended was recorded.
const (
	ExecRunning   = "running"
	ExecExited    = "exited"
	ExecTimedOut  = contract.TimedOut
	ExecCancelled = contract.Cancelled
	ExecFailed    = contract.Failed
	ExecLost      = "lost"
)

// MaxRunning is the maximum number of commands that run at a time in one sandbox.
const MaxRunning = 32

// LostAfter is the time after the end of a sandbox's life after which any instance may
// record that it is lost, because its holder did not record its end.
const LostAfter = time.Minute

// Errors of the decisions.
var (
	ErrEnded = errors.New("the sandbox has ended")
	ErrBusy  = errors.New("too many commands run in the sandbox")
)

// Sandbox is the state of one held sandbox.
type Sandbox struct {
	ID      string
	Tenant  string
	Data    events.SandboxCreated
	Holder  string // instance that holds the container
	Created time.Time
	Used    time.Time         // time of the last event that shows a use
	Running map[string]string // commands that run: id of the call by id of the execution
	Ended   string            // reason; empty while it is open
	EndedAt time.Time
	Seq     uint64 // ledger sequence of sandbox_created
}

// Evolve returns the state after an event with its ledger sequence, and does not change s.
// s is nil for the first event. It returns s itself if the event does not apply, such as a
// second sandbox_created, an event of another sandbox, or one after sandbox_ended.
func Evolve(s *Sandbox, seq uint64, e *contract.Event) *Sandbox {
	at, err := contract.ParseTime(e.Time)
	if err != nil || (s == nil) != (e.Name == contract.EventSandboxCreated) || s != nil && (s.Ended != "" || s.ID != e.Key || s.Tenant != e.Tenant) {
		return s
	}
	if s == nil {
		n := &Sandbox{ID: e.Key, Tenant: e.Tenant, Created: at, Used: at, Running: map[string]string{}, Seq: seq}
		if contract.Decode(e.Data, &n.Data) != nil {
			return nil
		}
		n.Holder = n.Data.Instance
		return n
	}
	next := *s
	next.Running = maps.Clone(s.Running)
	next.apply(at, e)
	return &next
}

// apply applies an event after sandbox_created. An event with invalid data has no
// effect.
func (s *Sandbox) apply(at time.Time, e *contract.Event) {
	var (
		started events.SandboxExecStarted
		stopped events.SandboxExecEnded
		renewed events.SandboxRenewed
		ended   events.SandboxEnded
		adopted events.SandboxAdopted
	)
	doc, does := map[string]canon.Document{
		contract.EventSandboxExecStarted: &started, contract.EventSandboxExecEnded: &stopped,
		contract.EventSandboxRenewed: &renewed, contract.EventSandboxEnded: &ended, contract.EventSandboxAdopted: &adopted,
	}[e.Name]
	if !does || contract.Decode(e.Data, doc) != nil {
		return
	}
	if e.Name == contract.EventSandboxAdopted {
		s.Holder = adopted.Instance // not a use
		return
	}
	if at.After(s.Used) {
		s.Used = at
	}
	switch e.Name {
	case contract.EventSandboxExecStarted:
		s.Running[started.Exec] = started.CallID
	case contract.EventSandboxExecEnded:
		delete(s.Running, stopped.Exec)
	case contract.EventSandboxEnded:
		s.Ended, s.EndedAt = ended.Reason, at
	}
}

// May reports whether calls of a principal in a session of a tenant may use the sandbox.
func (s *Sandbox) May(tenant, actor, session string) bool {
	return s != nil && s.Tenant == tenant && s.Data.Actor == actor && s.Data.Session == session
}

// Server reports whether the sandbox is that of an MCP server: its session is none of calls.
func (s *Sandbox) Server() bool { return !contract.Token(s.Data.Session) }

// Expires returns the time at which the maximum life of the sandbox has passed.
func (s *Sandbox) Expires() time.Time { return s.Created.Add(ms(s.Data.LifeMS)) }

// Due returns the reason for which the sandbox must end at the time now, or "". Its idle time
// begins at the later of s.Used and used, the time of the last use that the instance has
// noted, which may not be recorded. A sandbox in which a command runs is not idle.
func (s *Sandbox) Due(now, used time.Time) string {
	switch {
	case s.Ended != "":
		return ""
	case !now.Before(s.Expires()):
		return Life
	case used.Before(s.Used):
		used = s.Used
	}
	if len(s.Running) == 0 && !now.Before(used.Add(ms(s.Data.IdleMS))) {
		return Idle
	}
	return ""
}

// Abandoned reports whether an instance other than the sandbox's holder may record that
// it is lost: it has not ended, although its life has been over for LostAfter.
func (s *Sandbox) Abandoned(now time.Time) bool {
	return s.Ended == "" && !now.Before(s.Expires().Add(LostAfter))
}

// Start decides on sandbox_exec_started. It returns ErrEnded if the sandbox has ended or
// does not exist, and ErrBusy if MaxRunning commands run in it.
func (s *Sandbox) Start(call, exec string) (*events.SandboxExecStarted, error) {
	switch {
	case s == nil || s.Ended != "":
		return nil, ErrEnded
	case len(s.Running) >= MaxRunning:
		return nil, ErrBusy
	}
	return &events.SandboxExecStarted{CallID: call, Exec: exec}, nil
}

// Adopt decides on sandbox_adopted. It returns nil if the sandbox has ended or does not
// exist, or if an instance other than from holds it.
func (s *Sandbox) Adopt(from, to string) *events.SandboxAdopted {
	if s == nil || s.Ended != "" || s.Holder != from {
		return nil
	}
	return &events.SandboxAdopted{Instance: to}
}

// Renew decides on sandbox_renewed. It returns ErrEnded if the sandbox has ended or does not
// exist.
func (s *Sandbox) Renew(call string) (*events.SandboxRenewed, error) {
	if s == nil || s.Ended != "" {
		return nil, ErrEnded
	}
	return &events.SandboxRenewed{CallID: call}, nil
}

// End decides on sandbox_ended. It returns nil if the sandbox has ended or was never
// created.
func (s *Sandbox) End(call, reason string) *events.SandboxEnded {
	if s == nil || s.Ended != "" {
		return nil
	}
	return &events.SandboxEnded{CallID: call, Reason: reason}
}

// Stop decides on sandbox_exec_ended. It returns nil if the sandbox has ended or the
// command does not run.
func (s *Sandbox) Stop(d events.SandboxExecEnded) *events.SandboxExecEnded {
	if s == nil || s.Ended != "" {
		return nil
	}
	if _, runs := s.Running[d.Exec]; !runs {
		return nil
	}
	return &d
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
