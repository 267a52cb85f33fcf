package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/postgrestest"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
)

// TestDatabaseCredentials shows, with a real Vault and a real PostgreSQL, that each call gets a user
// of the database, which is revoked after the call, also if the vault-broker is killed at its end
// and started again, and that the facts contain no credential.
func TestDatabaseCredentials(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg, v := postgrestest.Start(t), vaulttest.Start(t, vaulttest.Options{})
			config := vaultConfig(t, v)
			v.WritePolicy(vaulttest.Policy + vaulttest.LeasePolicy)
			v.Database(pg.Port, postgrestest.Password, 10*time.Minute, time.Hour)
			v.Do("POST", "secret/data/binnacle/secrets/default/demo-api-key", map[string]any{"data": map[string]string{"dynamic": "database/creds/reader"}})
			m := start(t, harness.Options{Config: config})
			for range 2 {
				if status, body := secretLength(t, m); status != http.StatusOK || !strings.Contains(body, `"length"`) {
					t.Fatal(status, body)
				}
			}
			if name == "processes" {
				m.Kill("vault-broker")
				m.Restart("vault-broker")
			}
			eventually(t, "two leases have ended", time.Minute, func() bool {
				issued, revoked := map[string]bool{}, map[string]bool{}
				for _, e := range ledger(t, m) {
					if strings.Contains(string(e.Data), "v-approle-") {
						t.Fatalf("%s contains a user of the database", e.Name)
					}
					var d events.LeaseEnded
					switch e.Name {
					case events.LeaseIssuedName:
						issued[e.CallID] = true
					case events.LeaseEndedName:
						if err := json.Unmarshal(e.Data, &d); err != nil {
							t.Fatal(err)
						}
						revoked[e.CallID] = d.Reason == "revoked"
					}
				}
				return len(issued) == 2 && len(revoked) == 2
			})
			if status, leases := v.Try(v.Root, "LIST", "sys/leases/lookup/database/creds/reader", nil); status != http.StatusNotFound {
				t.Errorf("leases after the calls: %d %s", status, leases)
			}
			proves(t, m)
		})
	}
}
