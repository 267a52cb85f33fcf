// Package keyringtest makes rings of keys for tests.
package keyringtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// Released returns a new ring in dir as a release before 0.6 made it: its keys are for
// tenant, and it has no documents about the cell and its operators.
func Released(t testing.TB, dir, tenant string) *keyring.Ring {
	t.Helper()
	r, err := keyring.Init(dir, "default")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := r.Trust()
	if err != nil {
		t.Fatal(err)
	}
	root, err := r.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"trust", "operators", "cell.json"} {
		if err := os.RemoveAll(r.Path(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(r.Path("trust"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, d := range docs {
		d.Tenant, d.Sig = tenant, ""
		d = trust.Publish(root, d)
		if err := os.WriteFile(r.Path(fmt.Sprintf("trust/%04d-%s.json", i+1, d.KID)), contract.Bytes(&d), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return r
}
