package held

import (
	"encoding/json"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// dumped is a sandbox as Dump writes it.
type dumped struct {
	Created string                `json:"created"`
	Data    events.SandboxCreated `json:"data"`
	Ended   string                `json:"ended"`
	EndedAt string                `json:"ended_at"`
	Holder  string                `json:"holder"`
	ID      string                `json:"id"`
	Running map[string]string     `json:"running"`
	Seq     uint64                `json:"seq"`
	Tenant  string                `json:"tenant"`
	Used    string                `json:"used"`
}

// Dump returns the canonical form of the view: a line of JSON for each sandbox that, at the time
// of the newest event, was created less than MaxLife + LostAfter ago and had not ended for longer
// than Remember, in the order of their creation. So the dump does not depend on when the view
// began to read, as long as it began where Begin requires, nor on when Trim was called.
func (v *View) Dump() []byte {
	var out []byte
	oldest := v.newest.Add(-MaxLife - LostAfter)
	for _, s := range v.List(func(s *Sandbox) bool { return s.Created.After(oldest) && !v.forgotten(s) }) {
		d := dumped{Created: contract.Time(s.Created), Data: s.Data, Ended: s.Ended, Holder: s.Holder, ID: s.ID, Running: s.Running, Seq: s.Seq, Tenant: s.Tenant, Used: contract.Time(s.Used)}
		if s.Ended != "" {
			d.EndedAt = contract.Time(s.EndedAt)
		}
		line, _ := json.Marshal(&d) // strings, numbers and maps of strings can be encoded
		out = append(append(out, line...), '\n')
	}
	return out
}

// Begin returns the time of the oldest event that a view must apply, if it begins to read at
// the time now. newest is the time of the newest event of any sandbox on the ledger, or the
// zero time if there is none. A time after now counts as now.
func Begin(newest, now time.Time) time.Time {
	if newest.IsZero() || newest.After(now) {
		newest = now
	}
	return newest.Add(-History)
}
