package receipt

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// TestAttested: only the service that hands intents out signs what a caller
// attests, marked so, and of its own only that no report came or that the intent
// was withheld.
func TestAttested(t *testing.T) {
	seed := sha256.Sum256([]byte("k"))
	key, err := sign.NewKey(seed[:])
	if err != nil {
		t.Fatal(err)
	}
	keys := func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil }
	for _, c := range []struct {
		executor, by, status string
		ok                   bool
	}{
		{"gateway", "caller", contract.Succeeded, true},
		{"gateway", "caller", contract.Failed, true},
		{"gateway", "caller", contract.TimedOut, true},
		{"gateway", "caller", contract.Cancelled, true},
		{"gateway", "", contract.Unknown, true},
		{"gateway", "", contract.Cancelled, true},
		{"gateway", "", contract.Succeeded, false}, // an observation that nobody made
		{"gateway", "", contract.Failed, false},
		{"gateway", "caller", contract.Unknown, false},
		{"gateway", "caller", contract.DeadLettered, false},
		{"gateway", "alice", contract.Succeeded, false},
		{"session-runner", "", contract.Succeeded, true},
		{"session-runner", "caller", contract.Succeeded, false},
	} {
		d := &contract.Decision{ID: "d-c-1", CallID: "c-1", Verdict: contract.Allow, Intent: &contract.ExecutionIntent{ID: "i-c-1", Executor: c.executor}}
		e := contract.Effect{CallID: "c-1", AttestedBy: c.by, Status: c.status}
		r := Issue(key, c.executor, Tip{}, d, &e, 1, "now")
		err := Check(&contract.Recorded{Effect: e, Receipt: r}, d, keys)
		if (err == nil) != c.ok || !c.ok && !strings.Contains(err.Error(), "attested_by") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// The mark cannot be taken off, on either side.
	d := &contract.Decision{ID: "d-c-1", CallID: "c-1", Verdict: contract.Allow, Intent: &contract.ExecutionIntent{ID: "i-c-1", Executor: "gateway"}}
	e := contract.Effect{CallID: "c-1", AttestedBy: contract.Caller, Status: contract.Succeeded}
	r := Issue(key, "gateway", Tip{}, d, &e, 1, "now")
	r.AttestedBy = ""
	if Check(&contract.Recorded{Effect: e, Receipt: r}, d, keys) == nil {
		t.Error("a receipt without its mark passes")
	}
}
