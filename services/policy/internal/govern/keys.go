package govern

import (
	"maps"
	"path"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

type virtualKey struct {
	events.VirtualKeyCreated
	revoked string // why; empty while it stands
}

// Key is a virtual key as a call of a kind at now finds it; model is the one asked
// for, or "" where the call is not to a model.
func (s *State) Key(id, actor, kind, now, model string) *guard.KeyFact {
	f := &guard.KeyFact{ID: id}
	k := s.keys[id]
	if k == nil || k.Actor != actor || k.revoked != "" || k.Expires != "" && k.Expires <= now || k.Maker != "" && s.Suspended(k.Maker) {
		f.Fault = contract.ReasonKeyInvalid
		return f
	}
	f.Models, f.Tags = k.Models, k.Tags
	if InPerson(kind) {
		f.Fault = contract.ReasonKeyNotInPerson
	}
	if model != "" && len(k.Models) > 0 && !slices.ContainsFunc(k.Models, func(p string) bool { return matchModel(p, model) }) {
		f.Fault = contract.ReasonModelNotAllowed
	}
	return f
}

// matchModel matches a model against a pattern in which * stands for any run of
// characters other than a slash.
func matchModel(pattern, model string) bool {
	ok, err := path.Match(pattern, model)
	return err == nil && ok
}

// KeyLimits are the limits that the virtual keys that stand bring along.
func (s *State) KeyLimits() []guard.Limit {
	var out []guard.Limit
	for _, id := range slices.Sorted(maps.Keys(s.keys)) {
		k := s.keys[id]
		if k.revoked != "" {
			continue
		}
		add := func(what, measure, window string, limit int64) {
			if limit > 0 {
				out = append(out, guard.Limit{ID: guard.KeyLimit + id + "_" + what, Level: "key", Subject: id, Max: limit, Measure: measure, Window: window})
			}
		}
		add("budget", "usd_micros", k.BudgetWindow, k.BudgetUSDMicros)
		add("rate", "calls", k.RateWindow, k.RateCalls)
		add("concurrent", "calls", "concurrent", k.Concurrent)
	}
	return out
}

// VirtualKey is a key as people see it.
type VirtualKey struct {
	events.VirtualKeyCreated
	Revoked string `json:"revoked,omitempty"` // why
}

// Keys lists the virtual keys, sorted by id.
func (s *State) Keys() []VirtualKey {
	out := []VirtualKey{}
	for _, id := range slices.Sorted(maps.Keys(s.keys)) {
		out = append(out, VirtualKey{s.keys[id].VirtualKeyCreated, s.keys[id].revoked})
	}
	return out
}

func (s *State) dumpKeys(b []byte) []byte {
	for _, k := range s.Keys() {
		w := canon.Object(b)
		w.Raw("key", contract.Bytes(&k.VirtualKeyCreated))
		w.Str("revoked", k.Revoked)
		b = append(w.End(), '\n')
	}
	return b
}
