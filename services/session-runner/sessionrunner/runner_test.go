package sessionrunner

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/wasi"
)

// TestRunner checks that a call is refused if it requires a tier or a separate user id
// that this host does not support. It must not run in a weaker tier.
func TestRunner(t *testing.T) {
	shared := sandbox.Process{} // all runs share one user id
	w, err := wasi.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{runners: []sandbox.Runner{shared}, wasi: w}
	for _, c := range []struct {
		own  string
		want contract.Sandbox
		ok   bool
	}{
		{"process", contract.Sandbox{Tier: "process"}, true}, {"process", contract.Sandbox{Tier: "process", UID: contract.OwnUID}, false},
		{"process", contract.Sandbox{Tier: "container"}, false}, {"wasi", contract.Sandbox{Tier: "wasi", UID: contract.OwnUID}, true}, {"wasi", contract.Sandbox{Tier: "container"}, false},
		{"process", contract.Sandbox{}, false}, {"process", contract.Sandbox{Tier: "cardboard"}, false}, {"wasi", contract.Sandbox{Tier: "cardboard"}, false},
	} {
		r, res := s.runner(c.own, c.want)
		if (r != nil) != c.ok || !c.ok && res.ErrorCode != "sandbox_unavailable" {
			t.Errorf("%+v: %v %+v", c, r, res)
		}
	}
}
