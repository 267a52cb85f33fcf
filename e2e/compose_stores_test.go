package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/s3test"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
)

// TestComposeStores shows that, on compose and with two instances of the services that scale,
// artifacts are stored in an S3 endpoint and secrets in Vault, which only the members of the
// networks objects and vault reach, that the content about a data subject is erased, that access
// lists of secrets are exact, and that a secret reaches a tool after one of the vault-brokers was
// killed.
func TestComposeStores(t *testing.T) {
	v, e := vaulttest.Start(t, vaulttest.Options{}), s3test.Start(t)
	role, id := vaultRole(t, v)
	writer, collector := e.File(t, s3test.Writer), e.File(t, s3test.Collector)
	in := func(path string) string { return "/config/" + filepath.Base(path) }
	m := harness.Compose(t, harness.Options{
		Capture:  "encrypted",
		Noop:     true,
		Config:   vaultSettings(v, role, in(id)),
		Env:      []string{"BINNACLE_S3_ENDPOINT=" + e.URL, "BINNACLE_S3_BUCKET=" + s3test.Bucket, "BINNACLE_S3_CREDENTIALS_FILE=" + in(writer), "BINNACLE_S3_COLLECTOR_FILE=" + in(collector)},
		Files:    []string{"vault-broker=" + id, "gateway=" + writer, "work=" + writer, "work=" + collector},
		Networks: []string{"objects", "vault"},
	})
	m.Scale("gateway=2", "policy=2", "session-runner=2", "vault-broker=2")
	restart := func(services ...string) {
		t.Helper()
		if out, err := m.ComposeCLI(append([]string{"restart"}, services...)...); err != nil {
			t.Fatal(out, err)
		}
		m.WaitReady()
	}
	t.Run("artifacts", func(t *testing.T) {
		artifactsInS3(t, m, e, func() { restart("gateway", "work", "session-runner") })
	})
	t.Run("erasure", func(t *testing.T) {
		erasedOnCompose(t, m, func() { restart("gateway", "work", "vault-broker") })
	})
	if out, err := m.CLIStdin("bilge-rat\n", "secret", "put", "demo-api-key"); err != nil {
		t.Fatal(out, err)
	}
	if stored := v.Do("GET", "secret/data/binnacle/secrets/default/demo-api-key", nil)["data"]; stored == nil {
		t.Error("Vault has no secret")
	}
	t.Run("life", func(t *testing.T) { sharedLife(t, m) })
	t.Run("access", func(t *testing.T) { sharedAccess(t, m, func(service string) { restart(service) }) })
	crashContainer(t, m.Container("vault-broker", 1))
	eventually(t, "a call uses a secret after a vault-broker was killed", time.Minute, func() bool {
		status, body := secretLength(t, m)
		return status == http.StatusOK && strings.Contains(body, `"length":9`)
	})
}
