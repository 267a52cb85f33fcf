package auth

import (
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Dump returns the view in canonical form: sorted JSON lines.
func (a *Authority) Dump() []byte {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []string
	line := func(members ...string) { // members are names and values in turn, sorted by name
		w := canon.Object(nil)
		for i := 0; i < len(members); i += 2 {
			w.Str(members[i], members[i+1])
		}
		out = append(out, string(w.End())+"\n")
	}
	for digest, k := range a.keys {
		line("actor", k.Actor, "created", contract.Time(k.created), "digest", digest, "expires", k.Expires, "key", k.ID, "maker", k.Maker, "scopes", strings.Join(k.Scopes, " "))
	}
	for p, is := range a.suspended {
		if is {
			line("suspended", p)
		}
	}
	for id, is := range a.revoked {
		if is {
			line("revoked_token", id)
		}
	}
	for p, until := range a.ended {
		line("before", contract.Time(until), "revoked_principal", p)
	}
	for session, to := range a.grants {
		for p, g := range to {
			line("expires", g.expires, "owner", g.owner, "principal", p, "session", session)
		}
	}
	slices.Sort(out)
	return []byte(strings.Join(out, ""))
}
