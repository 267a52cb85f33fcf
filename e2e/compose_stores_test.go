package e2e

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/s3test"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
)

// TestComposeStores shows that, on compose and with two instances of the services that scale,
// artifacts are stored in an S3 endpoint, which the gateway and work reach through the egress-broker
// alone, and secrets in Vault, which only the members of the network vault reach, that events are
// forwarded through the egress-broker, that the content about a data subject is erased, that access
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
		Env:      []string{"BINNACLE_S3_ENDPOINT=" + e.URL, "BINNACLE_S3_BUCKET=" + s3test.Bucket, "BINNACLE_S3_CREDENTIALS_FILE=" + in(writer), "BINNACLE_S3_COLLECTOR_FILE=" + in(collector), "BINNACLE_EXPORTS=tcp://siem:514", "BINNACLE_EGRESS_NETWORKS=172.16.0.0/12,192.168.0.0/16,10.0.0.0/8"},
		Files:    []string{"vault-broker=" + id, "gateway=" + writer, "work=" + writer, "work=" + collector},
		Networks: []string{"vault"},
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
	t.Run("servers", func(t *testing.T) { serversOnCompose(t, m) })
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

// serversOnCompose starts a receiver of events in a container that joins the network servers as siem. It
// checks that the egress-broker alone reaches it, that `binnacle forward` delivers events to it
// through the egress-broker, and that it delivers none to a server that is not configured.
func serversOnCompose(t *testing.T, m *harness.Mesh) {
	t.Helper()
	name := m.Container("siem", 1)
	docker(t, "run", "-d", "--rm", "--name", name, "--network", strings.TrimSuffix(name, "-siem-1")+"_servers", "--network-alias", "siem", busybox(t), "/bin/busybox", "nc", "-ll", "-p", "514", "-e", "/bin/busybox", "sh", "-c", "exec /bin/busybox cat >/proc/1/fd/1")
	t.Cleanup(func() { docker(t, "rm", "-f", name) })
	addr := m.Inspect("siem", 1, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
	for _, service := range []string{"gateway", "work", "audit", "session-runner", "policy", "egress-broker"} {
		dial := exec.Command("nsenter", "-t", m.Inspect(service, 1, "{{.State.Pid}}"), "-n", "timeout", "1", "/bin/bash", "-c", `exec 3<>"/dev/tcp/$0/514" && echo connected`, addr)
		if out, _ := dial.Output(); strings.Contains(string(out), "connected") != (service == "egress-broker") {
			t.Errorf("a connection of %s to a server of the egress-broker: %q", service, out)
		}
	}
	forward := func(to string) error {
		_, err := m.ComposeCLI("run", "--rm", "-T", "--no-deps", "-e", "BINNACLE_TOKEN="+m.Token, "forward", "--to", "syslog+tcp://"+to, "--cursor", "/state/"+to)
		return err
	}
	if err := forward("siem:514"); err != nil {
		t.Error(err)
	}
	eventually(t, "the receiver has events", 10*time.Second, func() bool { return strings.Contains(docker(t, "logs", name), `"class_uid":6003`) })
	if err := forward("siem:515"); err == nil || !strings.Contains(err.Error(), "egress-broker.exports") {
		t.Errorf("a receiver that is not configured: %v", err)
	}
}
