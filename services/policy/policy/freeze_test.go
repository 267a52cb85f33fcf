package policy

import "testing"

// TestOwnInstance shows which names are those of a service's instances.
func TestOwnInstance(t *testing.T) {
	for _, c := range []struct {
		service, name string
		own           bool
	}{
		{"gateway", "gw1", true}, {"gateway", "gateway-1", false}, {"session-runner", "session-runner-2", true}, {"judge", "session-runner-2", false},
		{"beacon", "beacon-1", true}, {"judge", "judge-", false}, {"judge", "judge-x", false}, {"judge", "", false},
	} {
		if got := ownInstance(c.service, c.name); got != c.own {
			t.Errorf("%s of %s: %v", c.name, c.service, got)
		}
	}
}
