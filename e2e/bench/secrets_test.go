//go:build bench

package bench

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
)

// secrets measures the time that the delivery of a secret adds to a call of a tool. Calls of a
// pack with a secret alternate with calls of a pack without one, so that both run under the
// same load. The secret is stored in the encrypted file, and in Vault on the same host.
func secrets(t *testing.T) {
	v := vaulttest.Start(t, vaulttest.Options{})
	v.WritePolicy(vaulttest.Policy)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(v.Token(time.Hour)), 0o600); err != nil {
		t.Fatal(err)
	}
	inVault := fmt.Sprintf("vault-broker:\n  store: vault\n  vault: {address: %q, token_file: %q}\n", v.Addr, token)
	for _, store := range []struct{ name, config string }{{"embedded", ""}, {"Vault", inVault}} {
		m := harness.One(t, harness.Options{Config: store.config})
		if out, err := m.CLIStdin("bilge-rat\n", "secret", "put", "demo-api-key"); err != nil {
			t.Fatal(out, err)
		}
		call := func(pack, args string) time.Duration {
			began := time.Now()
			r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+pack, "s-secrets", args)
			if err != nil || r.Status != http.StatusOK {
				t.Fatalf("%s: %v %+v", pack, err, r)
			}
			return time.Since(began)
		}
		const calls = 300
		var with, without []time.Duration
		for i := range 20 + calls {
			a, b := call("cmd.secretlen", "{}"), call("cmd.upper", `{"text":"hi"}`)
			if i >= 20 {
				with, without = append(with, a), append(without, b)
			}
		}
		slices.Sort(with)
		slices.Sort(without)
		us := func(at int) float64 { return float64((with[at] - without[at]).Microseconds()) }
		add(row{Name: "secret delivery, added to a call of a tool, " + store.name, Durability: "process", Clients: 1, P50us: us(calls / 2), P99us: us(calls * 99 / 100)})
		m.StopAll()
	}
}
