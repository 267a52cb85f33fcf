package guard_test

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// TestOwnUID shows that any layer can require a user id per run, that no other
// layer can cancel this, and that an unknown value is rejected.
func TestOwnUID(t *testing.T) {
	own := contract.Sandbox{UID: contract.OwnUID, Tier: "process"}
	for _, s := range []contract.Sandbox{guard.Narrow(box(64, "process"), own), guard.Narrow(own, box(64, "process")), guard.Narrow(guard.Narrow(own, own), contract.Sandbox{})} {
		if s.UID != contract.OwnUID {
			t.Errorf("%+v", s)
		}
	}
	odd := box(64, "process")
	odd.UID = "root"
	if err := (&guard.Ceilings{Sandbox: odd, StartWindowMS: 1000, MaxCents: 1}).Validate(); err == nil {
		t.Error("ceilings with an unknown demand are valid")
	}
}
