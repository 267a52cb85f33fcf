package held

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Names lists the events of a held sandbox.
var Names = []string{contract.EventSandboxCreated, contract.EventSandboxAdopted, contract.EventSandboxExecStarted, contract.EventSandboxExecEnded, contract.EventSandboxRenewed, contract.EventSandboxEnded}

// MaxLife is the maximum life of a held sandbox.
const MaxLife = 24 * time.Hour

// Remember is the minimum time for which a view contains a sandbox that has ended, by the times of
// the events that it has applied.
const Remember = time.Hour

// History is how long before the newest event of any sandbox a view must begin to read. The life
// of a sandbox that was created earlier is over, and the view need not contain it, even if no
// instance ran that could record its end.
const History = MaxLife + LostAfter + Remember

// View holds the held sandboxes of all tenants. It reads no clock: which sandboxes it removes
// depends on the times of its events alone. It is not safe for concurrent use.
type View struct {
	all    map[key]*Sandbox
	newest time.Time // of the events that were applied
	trim   int       // number of sandboxes above which Apply calls Trim
}

type key struct{ tenant, id string }

// Apply applies an event of the session-runner, with its ledger sequence.
func (v *View) Apply(seq uint64, e *contract.Event) {
	if v.all == nil {
		v.all = map[key]*Sandbox{}
	}
	if at, err := contract.ParseTime(e.Time); err == nil && at.After(v.newest) {
		v.newest = at
	}
	k := key{e.Tenant, e.Key}
	if s := Evolve(v.all[k], seq, e); s != nil {
		v.all[k] = s
	}
	if len(v.all) > v.trim {
		v.Trim()
		v.trim = 2*len(v.all) + minTrim
	}
}

// minTrim is the least number of sandboxes that Apply adds between two calls of Trim.
const minTrim = 256

// Get returns a sandbox, or nil. The caller must not change it; later events do not
// change it either.
func (v *View) Get(tenant, id string) *Sandbox { return v.all[key{tenant, id}] }

// Open reports whether any tenant has an open sandbox with the given id.
func (v *View) Open(id string) bool {
	for k, s := range v.all {
		if k.id == id && s.Ended == "" {
			return true
		}
	}
	return false
}

// Trim removes the sandboxes that had ended for longer than Remember at the time of the newest
// event.
func (v *View) Trim() {
	maps.DeleteFunc(v.all, func(_ key, s *Sandbox) bool { return v.forgotten(s) })
}

// forgotten reports whether a sandbox had ended for longer than Remember at the time of the
// newest event.
func (v *View) forgotten(s *Sandbox) bool {
	return s.Ended != "" && s.EndedAt.Before(v.newest.Add(-Remember))
}

// List returns the sandboxes for which a function returns true, in the order of their
// creation.
func (v *View) List(of func(*Sandbox) bool) []*Sandbox {
	out := slices.DeleteFunc(slices.Collect(maps.Values(v.all)), func(s *Sandbox) bool { return !of(s) })
	slices.SortFunc(out, func(a, b *Sandbox) int { return cmp.Compare(a.Seq, b.Seq) })
	return out
}

// Current returns the newest open sandbox of a principal and session, or nil.
func (v *View) Current(tenant, actor, session string) *Sandbox {
	all := v.List(func(s *Sandbox) bool { return s.Ended == "" && s.May(tenant, actor, session) })
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// Over reports whether a sandbox exceeds a limit: whether at least most other sandboxes that
// were created before it are open. It counts the sandboxes of the same tenant or, if instance
// is not empty, those of that instance. Instances that have read the same events get the same
// result.
func (v *View) Over(s *Sandbox, instance string, most int) bool {
	older := v.List(func(o *Sandbox) bool {
		return o.Ended == "" && o.Seq < s.Seq && (instance == "" && o.Tenant == s.Tenant && !o.Server() || instance != "" && o.Holder == instance)
	})
	return len(older) >= most
}
