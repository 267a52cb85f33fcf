package receipt

import (
	"crypto/sha256"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

func BenchmarkCheck(b *testing.B) {
	seed := sha256.Sum256([]byte("k"))
	key, err := sign.NewKey(seed[:])
	if err != nil {
		b.Fatal(err)
	}
	d := &contract.Decision{ID: "d-c-1", CallID: "c-1", Verdict: contract.Allow, Intent: &contract.ExecutionIntent{ID: "i-c-1", Executor: "session-runner"}}
	e := contract.Effect{CallID: "c-1", Status: contract.Succeeded}
	rec := contract.Recorded{Effect: e, Receipt: Issue(key, "session-runner", Tip{}, d, &e, 1, "2026-05-04T03:02:01.000Z")}
	keys := func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil }
	b.ReportAllocs()
	for b.Loop() {
		if err := checked(&rec, d, keys); err != nil {
			b.Fatal(err)
		}
	}
}
