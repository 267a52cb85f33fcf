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

// Remember is the time for which a view contains a sandbox that has ended.
const Remember = time.Hour

// History is the age of the oldest event that a view needs. An older sandbox has ended,
// and its end is recorded, or was due to be recorded while no instance ran.
const History = MaxLife + LostAfter + Remember

// View holds the held sandboxes of all tenants. It is not safe for concurrent use.
type View struct {
	all map[key]*Sandbox
}

type key struct{ tenant, id string }

// Apply applies an event of the session-runner, with its ledger sequence.
func (v *View) Apply(seq uint64, e *contract.Event) {
	if v.all == nil {
		v.all = map[key]*Sandbox{}
	}
	k := key{e.Tenant, e.Key}
	if s := Evolve(v.all[k], seq, e); s != nil {
		v.all[k] = s
	}
}

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

// Trim removes the sandboxes that ended before a time.
func (v *View) Trim(before time.Time) {
	maps.DeleteFunc(v.all, func(_ key, s *Sandbox) bool { return s.Ended != "" && s.EndedAt.Before(before) })
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
		return o.Ended == "" && o.Seq < s.Seq && (instance == "" && o.Tenant == s.Tenant || instance != "" && o.Holder == instance)
	})
	return len(older) >= most
}
