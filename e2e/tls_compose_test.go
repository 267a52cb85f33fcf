package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
)

// composeTLS is a mesh on compose with TLS and two gateways.
type composeTLS struct {
	*testing.T
	m *harness.Mesh
}

func (c composeTLS) works(when string) {
	c.Helper()
	if r, err := c.m.Do(c.Context(), "POST", "/api/v1/packs/noop", "s-tls", "{}"); err != nil || r.Status != 200 {
		c.Fatal(when, r, err)
	}
	if out, err := c.m.CLI("call", "noop"); err != nil {
		c.Fatal(when, out, err)
	}
}

// gateways returns the address of the load balancer and the addresses of both gateways.
func (c composeTLS) gateways() []string {
	return []string{c.m.Addr, c.m.ContainerAddr("gateway", 1) + ":8080", c.m.ContainerAddr("gateway", 2) + ":8080"}
}

func (c composeTLS) nats() string { return c.m.ContainerAddr("nats", 1) + ":4222" }

// serve waits until every listener presents a certificate with the common name name to a
// client that verifies it, and checks that plain text is rejected.
func (c composeTLS) serve(name string) {
	c.Helper()
	for _, addr := range c.gateways() {
		eventually(c.T, addr+" serves the certificate "+name, 30*time.Second, func() bool {
			got, err := certificateOf(c.T, c.m, addr, "gateway", false)
			return err == nil && got == name
		})
		refusesPlain(c.T, addr)
	}
	eventually(c.T, "NATS serves the certificate "+name, 30*time.Second, func() bool {
		got, err := certificateOf(c.T, c.m, c.nats(), "nats", true)
		return err == nil && got == name
	})
	refusesPlainNATS(c.T, c.nats())
}

// ready waits until the gateway's cached state has expired, and reports whether the mesh
// is ready.
func (c composeTLS) ready() bool {
	time.Sleep(1500 * time.Millisecond)
	r, err := c.m.Do(c.Context(), "GET", "/readyz", "", "")
	return err == nil && r.Status == 200
}

func (c composeTLS) logs(service string) string {
	c.Helper()
	return c.compose("logs", "--no-color", service)
}

func (c composeTLS) compose(args ...string) string {
	c.Helper()
	out, err := c.m.ComposeCLI(args...)
	if err != nil {
		c.Fatal(err)
	}
	return out
}

// TestComposeTLS shows that on compose both gateways and NATS use certificates from the
// configuration folder and reload them without a restart, that services reconnect after
// the certificate authority was replaced at both ends, and that errors name unusable
// files.
func TestComposeTLS(t *testing.T) {
	m := harness.Compose(t, harness.Options{Noop: true, TLS: true})
	m.Scale("gateway=2")
	c := composeTLS{t, m}
	c.works("first")
	c.serve("first")
	began := func() string {
		return m.Inspect("gateway", 1, "{{.State.StartedAt}}") + m.Inspect("gateway", 2, "{{.State.StartedAt}}") + m.Inspect("nats", 1, "{{.State.StartedAt}}")
	}
	was := began()
	m.Recertify("second")
	c.serve("second")
	if now := began(); now != was {
		t.Fatalf("something was restarted: %s, %s", was, now)
	}
	c.works("with the second certificate")
	if out := c.compose("run", "--rm", "-T", "-e", "BINNACLE_TOKEN="+m.Token, "cli", "call", "noop"); !strings.Contains(out, "{}") {
		t.Errorf("the command line's image: %s", out)
	}
	// After the rotation of a service's key, the NATS server's configuration still
	// enables TLS.
	kid := strings.TrimSpace(c.compose("run", "--rm", "-T", "keys", "trust", "rotate", "policy"))
	eventually(t, "policy signs with the new key", 30*time.Second, func() bool { return strings.Contains(strings.Join(signing(t, m, "policy"), " "), kid) })
	c.compose("restart", "nats", "gateway")
	m.WaitReady()
	c.serve("second")
	c.works("after a restart")
	for _, s := range []string{"gateway", "nats"} {
		if strings.Contains(c.logs(s), "WITHOUT TLS") {
			t.Errorf("%s warns that it is without TLS", s)
		}
	}
	t.Run("another authority", func(t *testing.T) { composeTLS{t, m}.anotherAuthority() })
	t.Run("wrong files", func(t *testing.T) { composeTLS{t, m}.wrongFiles() })
}

// anotherAuthority shows that services reject a NATS server whose certificate authority
// they do not trust, and load a new authority without a restart.
func (c composeTLS) anotherAuthority() {
	file := filepath.Join(c.TempDir(), "ca.crt")
	other := certs.NewAuthority(c, file)
	c.m.CertifyService(other, "nats", "third")
	eventually(c.T, "NATS serves another authority's certificate", 30*time.Second, func() bool {
		_, err := certificateOf(c.T, c.m, c.nats(), "nats", true)
		return err != nil && strings.Contains(err.Error(), "unknown authority")
	})
	started := c.m.Inspect("judge", 1, "{{.State.StartedAt}}")
	c.compose("restart", "nats") // a restart of the server closes every connection
	eventually(c.T, "services refuse the server", 60*time.Second, func() bool {
		return strings.Contains(c.compose("logs", "--no-color", "--since", "10s", "nats"), "bad certificate")
	})
	if c.ready() {
		c.Error("a mesh without its ledger is ready")
	}
	ca := filepath.Join(c.m.Dir, "config/nats/ca.crt")
	old, err := os.ReadFile(ca)
	if err != nil {
		c.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		c.Fatal(err)
	}
	if err := os.WriteFile(ca, append(old, b...), 0o644); err != nil { // trust both authorities during the change
		c.Fatal(err)
	}
	c.compose("run", "--rm", "-T", "keys", "init")
	eventually(c.T, "services are connected", 90*time.Second, c.ready)
	c.works("under another authority")
	if now := c.m.Inspect("judge", 1, "{{.State.StartedAt}}"); now != started {
		c.Errorf("judge was restarted: %s, %s", started, now)
	}
	c.m.Recertify("fourth")
	c.serve("fourth")
}

// wrongFiles shows that a running process keeps its certificate if the file becomes
// unusable, and that a process that starts then exits with an error that names the file
// and the fix, and starts successfully once the file is correct.
func (c composeTLS) wrongFiles() {
	for service, text := range map[string]string{"gateway": "the key is that of the first certificate", "nats": "both must be PEM files"} {
		key := filepath.Join(c.m.Dir, "config", service, "tls.key")
		good, err := os.ReadFile(key)
		if err != nil {
			c.Fatal(err)
		}
		if err := os.WriteFile(key, []byte("no key"), 0o600); err != nil {
			c.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		c.serve("fourth")
		c.works("with a wrong file")
		c.compose("restart", service)
		eventually(c.T, service+" names the file and the fix", 30*time.Second, func() bool {
			log := c.logs(service)
			return strings.Contains(log, "/config/tls.key") && strings.Contains(log, text)
		})
		if err := os.WriteFile(key, good, 0o600); err != nil {
			c.Fatal(err)
		}
		eventually(c.T, service+" is back", 90*time.Second, c.ready)
		c.serve("fourth")
		c.works("with the right file again")
	}
}
