package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
)

// vaultConfig returns the part of a configuration file with which the vault-broker stores
// values in the server, and logs in with AppRole.
func vaultConfig(t *testing.T, v *vaulttest.Server) string {
	t.Helper()
	role, id := vaultRole(t, v)
	return vaultSettings(v, role, id)
}

// vaultSettings is vaultConfig for a role whose secret id is in a file.
func vaultSettings(v *vaulttest.Server, role, file string) string {
	return fmt.Sprintf("vault-broker:\n  store: vault\n  vault: {address: %q, role_id: %q, secret_id_file: %q, timeout: 2s}\n", v.Addr, role, file)
}

// vaultRole makes a role for the vault-broker, and returns its id and the file of its secret id.
func vaultRole(t *testing.T, v *vaulttest.Server) (role, file string) {
	t.Helper()
	v.WritePolicy(vaulttest.Policy)
	role, file = v.AppRole(20*time.Second, time.Hour), filepath.Join(t.TempDir(), "secret-id")
	if err := os.WriteFile(file, []byte(v.SecretID(false)), 0o600); err != nil {
		t.Fatal(err)
	}
	return role, file
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
			if out, err := m.CLI("secret", "delete", "demo-api-key"); err != nil {
				t.Fatal(out, err)
			}
			if status, body := secretLength(t, m); status == http.StatusOK || !strings.Contains(body, "is deleted") {
				t.Errorf("a call with a deleted secret: %d %s", status, body)
			}
			if out, err := m.CLI("secret", "restore", "demo-api-key"); err != nil {
				t.Fatal(out, err)
			}
			works(15)
			if out, err := m.CLI("secret", "rotate", "demo-api-key", "--overlap", "1h"); err != nil || !strings.Contains(out, `"version": 3`) {
				t.Fatal(out, err)
			}
			works(43)
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

// TestVaultBrokers shows, with two session-runners, that two brokers can share a Vault:
// rotations at the same time make one version each, a deletion and a restoration hold for the
// next call whichever broker handles it, and calls that use secrets succeed while one of the
// brokers is killed, and afterwards.
func TestVaultBrokers(t *testing.T) {
	v := vaulttest.Start(t, vaulttest.Options{})
	m := harness.Processes(t, harness.Options{Config: vaultConfig(t, v)})
	m.StartService("vault-broker-2", "vault-broker")
	m.StartService("session-runner-2", "session-runner")
	m.StartService("policy-2", "policy")
	eventually(t, "the second broker is ready", 30*time.Second, func() bool {
		return strings.Count(m.Log(), `"vault: logged in"`) == 2
	})
	if out, err := m.CLIStdin("bilge-rat\n", "secret", "put", "demo-api-key"); err != nil {
		t.Fatal(out, err)
	}
	t.Run("life", func(t *testing.T) { sharedLife(t, m) })
	t.Run("access", func(t *testing.T) { sharedAccess(t, m, m.Restart) })
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

// sharedAccess permits a number of calls to use a secret, makes more of them concurrently, and
// counts those that received it; the count survives restarts, and another entry has its own.
// restart restarts the instances of a service.
func sharedAccess(t *testing.T, m *harness.Mesh, restart func(service string)) {
	const permitted, calls = 7, 20
	grant := func(args ...string) {
		t.Helper()
		if out, err := m.CLI(append([]string{"secret", "access", "grant", "demo-api-key"}, args...)...); err != nil {
			t.Fatal(out, err)
		}
	}
	grant("someone-else")
	if status, body := secretLength(t, m); status != http.StatusForbidden || !strings.Contains(body, contract.ReasonSecretAccessDenied) {
		t.Errorf("a caller without an entry: %d %s", status, body)
	}
	grant("*", "--max-uses", fmt.Sprint(permitted))
	var mu sync.Mutex
	var wg sync.WaitGroup
	received := 0
	for range calls {
		wg.Go(func() {
			status, body := secretLength(t, m)
			if status != http.StatusOK && !strings.Contains(body, "used up") {
				t.Errorf("%d %s", status, body)
			}
			mu.Lock()
			defer mu.Unlock()
			if status == http.StatusOK {
				received++
			}
		})
	}
	wg.Wait()
	if received != permitted {
		t.Errorf("%d of %d calls received the secret, want %d", received, calls, permitted)
	}
	for _, service := range []string{"policy", "vault-broker"} {
		restart(service)
		if status, body := secretLength(t, m); status == http.StatusOK || !strings.Contains(body, "used up") {
			t.Errorf("after a restart of %s: %d %s", service, status, body)
		}
	}
	grant("*")
	if status, body := secretLength(t, m); status != http.StatusOK {
		t.Errorf("with an entry without a limit: %d %s", status, body)
	}
}

// sharedLife rotates one secret several times at once, and deletes and restores another one.
func sharedLife(t *testing.T, m *harness.Mesh) {
	const rotations = 6
	var mu sync.Mutex
	versions := map[string]int{}
	var wg sync.WaitGroup
	for range rotations {
		wg.Go(func() {
			out, err := m.CLI("secret", "rotate", "turned")
			var made struct{ Version int }
			if err == nil {
				err = json.Unmarshal([]byte(out), &made)
			}
			if err != nil {
				t.Error(err, out)
			}
			mu.Lock()
			defer mu.Unlock()
			versions[fmt.Sprint(made.Version)]++
		})
	}
	wg.Wait()
	for n := range rotations {
		if versions[fmt.Sprint(n+1)] != 1 {
			t.Errorf("%d rotations made the versions %v", rotations, versions)
			break
		}
	}
	for range 3 {
		if out, err := m.CLI("secret", "delete", "demo-api-key"); err != nil {
			t.Fatal(out, err)
		}
		for range 3 {
			if status, body := secretLength(t, m); status == http.StatusOK || !strings.Contains(body, "is deleted") {
				t.Errorf("with a deleted secret: %d %s", status, body)
			}
		}
		if out, err := m.CLI("secret", "restore", "demo-api-key"); err != nil {
			t.Fatal(out, err)
		}
		for range 3 {
			if status, body := secretLength(t, m); status != http.StatusOK {
				t.Errorf("with a restored secret: %d %s", status, body)
			}
		}
	}
}
