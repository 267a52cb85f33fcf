package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
)

// vaultConfig returns the part of a configuration file with which the vault-broker stores
// values in the server, and logs in with AppRole.
func vaultConfig(t *testing.T, v *vaulttest.Server) string {
	t.Helper()
	v.WritePolicy(vaulttest.Policy)
	role := v.AppRole(20*time.Second, time.Hour)
	id := filepath.Join(t.TempDir(), "secret-id")
	if err := os.WriteFile(id, []byte(v.SecretID(false)), 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("vault-broker:\n  store: vault\n  vault: {address: %q, role_id: %q, secret_id_file: %q, timeout: 2s}\n", v.Addr, role, id)
}

// secretLength calls the pack that returns the length of the secret demo-api-key, and
// returns the call's outcome.
func secretLength(t *testing.T, m *harness.Mesh) (status int, body string) {
	t.Helper()
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.secretlen", "", "{}")
	if err != nil {
		t.Fatal(err)
	}
	return r.Status, string(r.Body)
}

// TestVault shows that with Vault as the broker's store a secret is stored in Vault alone
// and reaches a tool, that secrets written with Vault's own tools reach it too, that calls
// while Vault is sealed or down fail with a typed error or wait for it, and that secrets
// and content keys survive restarts of the mesh and of Vault.
func TestVault(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := vaulttest.Start(t, vaulttest.Options{})
			dir := t.TempDir()
			o := harness.Options{Dir: dir, Config: vaultConfig(t, v)}
			m := start(t, o)
			put := func(value string) {
				t.Helper()
				if out, err := m.CLIStdin(value+"\n", "secret", "put", "demo-api-key"); err != nil || !strings.Contains(out, "fingerprint") {
					t.Fatal(out, err)
				}
			}
			works := func(length int) {
				t.Helper()
				if status, body := secretLength(t, m); status != http.StatusOK || !strings.Contains(body, fmt.Sprintf(`"length":%d`, length)) {
					t.Fatalf("want length %d: %d %s", length, status, body)
				}
			}
			put("bilge-rat")
			works(9)
			contentKey := func(want string) {
				t.Helper()
				if out, err := m.CLI("secret", "rotate-content-key"); err != nil || !strings.Contains(out, want) {
					t.Errorf("want content key %s: %s %v", want, out, err)
				}
			}
			contentKey("tk-000001")
			stored := fmt.Sprint(v.Do("GET", "secret/data/binnacle/secrets/default/demo-api-key", nil)["data"])
			if !strings.Contains(stored, "value:bilge-rat") || !strings.Contains(stored, "version:1") {
				t.Errorf("Vault stores %s", stored)
			}
			for _, f := range []string{"vault/secrets.json", "vault-broker/secrets.json"} {
				if _, err := os.Stat(filepath.Join(dir, f)); err == nil {
					t.Errorf("%s exists beside Vault", f)
				}
			}
			v.Do("POST", "secret/data/binnacle/secrets/default/demo-api-key", map[string]any{"data": map[string]string{"value": "rotated-by-hand"}})
			works(15)

			// A call that begins while Vault is sealed waits, and succeeds once it is unsealed.
			v.Seal()
			var wg sync.WaitGroup
			wg.Go(func() {
				if status, body := secretLength(t, m); status != http.StatusOK {
					t.Errorf("a call during which Vault was unsealed: %d %s", status, body)
				}
			})
			time.Sleep(2 * time.Second)
			v.Unseal()
			wg.Wait()

			// A call that waits too long fails with a code that names Vault's state.
			v.Seal()
			if status, body := secretLength(t, m); status == http.StatusOK || !strings.Contains(body, "vault_sealed") {
				t.Errorf("a call while Vault is sealed: %d %s", status, body)
			}
			if out, err := m.CLIStdin("lost\n", "secret", "put", "demo-api-key"); err == nil || !strings.Contains(err.Error(), "the store is sealed") {
				t.Errorf("storing while Vault is sealed: %s %v", out, err)
			}
			v.Unseal()
			works(15) // the secret that could not be stored changed nothing
			v.WritePolicy(`path "secret/data/other" { capabilities = ["read"] }`)
			if status, body := secretLength(t, m); status == http.StatusOK || !strings.Contains(body, "vault_denied") {
				t.Errorf("a call while Vault denies access: %d %s", status, body)
			}
			v.WritePolicy(vaulttest.Policy)
			works(15)

			v.Kill()
			if status, body := secretLength(t, m); status == http.StatusOK || !strings.Contains(body, "vault_unavailable") {
				t.Errorf("a call while Vault is down: %d %s", status, body)
			}
			v.Restart()
			v.Unseal()
			eventually(t, "the broker logs in to the restarted Vault", 20*time.Second, func() bool {
				status, _ := secretLength(t, m)
				return status == http.StatusOK
			})
			m.StopAll()
			m = start(t, o)
			works(15)
			contentKey("tk-000002")
			if names := fmt.Sprint(v.Do("LIST", "secret/metadata/binnacle/content-keys/default", nil)["data"]); names != "map[keys:[tk-000001 tk-000002]]" {
				t.Errorf("content keys in Vault: %s", names)
			}
		})
	}
}

// TestVaultBrokers shows, with two session-runners, that two brokers can share a Vault,
// and that calls that use secrets succeed while one of the brokers is killed, and
// afterwards.
func TestVaultBrokers(t *testing.T) {
	v := vaulttest.Start(t, vaulttest.Options{})
	m := harness.Processes(t, harness.Options{Config: vaultConfig(t, v)})
	m.StartService("vault-broker-2", "vault-broker")
	m.StartService("session-runner-2", "session-runner")
	eventually(t, "the second broker is ready", 30*time.Second, func() bool {
		return strings.Count(m.Log(), `"vault: logged in"`) == 2
	})
	if out, err := m.CLIStdin("bilge-rat\n", "secret", "put", "demo-api-key"); err != nil {
		t.Fatal(out, err)
	}
	const callers, calls = 4, 10
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range calls {
				if status, body := secretLength(t, m); status != http.StatusOK || !strings.Contains(body, `"length":9`) {
					t.Errorf("%d %s", status, body)
				}
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	m.Kill("vault-broker")
	wg.Wait()
	if out, err := m.CLIStdin("bilge-rats\n", "secret", "put", "demo-api-key"); err != nil {
		t.Fatal(out, err)
	}
	if status, body := secretLength(t, m); status != http.StatusOK || !strings.Contains(body, `"length":10`) {
		t.Errorf("%d %s", status, body)
	}
	for _, who := range []string{"vault-broker-1", "vault-broker-2"} {
		if out, err := m.CLI("events", "list", "--json"); err != nil || !strings.Contains(out, `vault-broker/`+who) {
			t.Errorf("%s released nothing (%v)", who, err)
		}
	}
}
