package auth

import (
	"cmp"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// policyActivated applies the activation or retirement of a policy document. It ignores
// those that are not overlays.
func (a *Authority) policyActivated(t *standing, d *contract.Activated) {
	if d.Layer != "p2" {
		return
	}
	if d.Retired {
		delete(t.overlays, d.Name)
	} else {
		if t.overlays == nil {
			t.overlays = map[string]contract.Content{}
		}
		t.overlays[d.Name] = d.Bundle
	}
	a.policies.Add(1)
}

// Policies returns a number that grows with each change of the overlays of any tenant.
func (a *Authority) Policies() uint64 { return a.policies.Load() }

// Overlays returns the contents of the overlays of a tenant that are in force, in the order of
// their commitments.
func (a *Authority) Overlays(tenant string) []contract.Content {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []contract.Content
	for _, c := range a.of(tenant).overlays {
		out = append(out, c)
	}
	slices.SortFunc(out, func(x, y contract.Content) int { return cmp.Compare(x.Commitment, y.Commitment) })
	return out
}
