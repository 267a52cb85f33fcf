package auth

import (
	"maps"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Dump returns the view in canonical form: JSON lines in the order of the tenants' ids,
// with the lines of each tenant sorted. A tenant without state has no lines.
func (a *Authority) Dump() []byte {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []byte
	for _, id := range slices.Sorted(maps.Keys(a.tenants)) {
		lines := a.tenants[id].lines(a, id)
		slices.Sort(lines)
		out = append(out, strings.Join(lines, "")...)
	}
	return out
}

// lines returns the lines of a tenant's state, in no particular order.
func (t *standing) lines(a *Authority, tenant string) (out []string) {
	line := func(members ...string) { // members are names and values in turn, sorted by name
		w := canon.Object(nil)
		for i := 0; i < len(members); i += 2 {
			w.Str(members[i], members[i+1])
		}
		w.Str("tenant", tenant)
		out = append(out, string(w.End())+"\n")
	}
	for _, k := range t.byID {
		if a.keys[k.Digest] == k {
			line("actor", k.Actor, "created", contract.Time(k.created), "digest", k.Digest, "expires", k.Expires, "key", k.ID, "maker", k.Maker, "scopes", strings.Join(k.Scopes, " "))
		}
	}
	for p, is := range t.suspended {
		if is {
			line("suspended", p)
		}
	}
	for id, is := range t.revoked {
		if is {
			line("revoked_token", id)
		}
	}
	for p, until := range t.ended {
		line("before", contract.Time(until), "revoked_principal", p)
	}
	for p, until := range t.demoted {
		line("before", contract.Time(until), "demoted", p)
	}
	t.members.lines(line)
	for name, c := range t.overlays {
		line("commitment", c.Commitment, "overlay", name)
	}
	for session, to := range t.grants {
		for p, g := range to {
			line("expires", g.expires, "owner", g.owner, "principal", p, "session", session)
		}
	}
	return out
}
