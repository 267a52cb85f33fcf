package stack

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// TestOver shows that a tenant has the ceilings of the cell, its bundles except those that
// the tenant has replaced or retired, and its own bundles and overlays, and that neither
// stack is changed.
func TestOver(t *testing.T) {
	put := func(s Stack, layer, name, digest string, precedence int64, retired bool) Stack {
		t.Helper()
		doc := map[string]any{"p0": &guard.Ceilings{}, "p1": &rego.Engine{}, "p2": &guard.Overlay{}}[layer]
		s, err := s.With(&contract.Activated{Layer: layer, Name: name, Digest: digest, Precedence: precedence, Retired: retired}, doc)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	shown := func(s Stack) string {
		var out []string
		for _, a := range s.InForce() {
			out = append(out, a.Digest)
		}
		return strings.Join(out, " ")
	}
	base := put(put(put(put(Stack{}, "p0", "", "P0", 0, false), "p1", "default", "D", 1000, false), "p1", "first", "F", 1, false), "p1", "gone", "G", 2, false)
	own := put(put(put(Stack{}, "p1", "own", "O", 500, false), "p2", "x", "X", 0, false), "p1", "gone", "G", 2, true)
	for _, c := range []struct {
		own  Stack
		want string
	}{
		{Stack{}, "P0 F G D"},
		{own, "P0 F O D X"},
		{put(own, "p1", "default", "D2", 10, false), "P0 F D2 O X"},
		{put(put(own, "p1", "default", "D2", 10, false), "p1", "default", "D2", 10, true), "P0 F O X"},
	} {
		over := c.own.Over(base)
		if got := shown(over); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
		if c.own.Ceilings() != nil || over.Ceilings() == nil || shown(base) != "P0 F G D" {
			t.Error("the ceilings are wrong, or a stack has changed")
		}
	}
	if !(&Stack{}).Empty() || own.Empty() {
		t.Error("which stack is empty is wrong")
	}
}
