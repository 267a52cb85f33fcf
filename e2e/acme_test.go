package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// pebble starts the programs of Pebble, the test server of Let's Encrypt, which are in the module
// graph of the gateway's tests: an authority that validates challenges by connecting to the
// addresses that its name server returns, here always 127.0.0.1, and to port. It returns the URL of
// the directory, and a function that returns the authorities of the certificates it issues.
func pebble(t *testing.T, dir, port string) (directory string, roots func() *x509.CertPool) {
	t.Helper()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, program := range []string{"pebble", "pebble-challtestsrv"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path(program), "github.com/letsencrypt/pebble/v2/cmd/"+program)
		cmd.Dir, cmd.Env = filepath.Join(harness.Root(), "services/gateway"), append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	certs.NewAuthority(t, path("directory.ca")).Write(t, path("directory.crt"), path("directory.key"), "directory")
	listen, manage, names := ports.Free(t), ports.Free(t), ports.Free(t)
	conf, err := json.Marshal(map[string]any{"pebble": map[string]any{"listenAddress": listen, "managementListenAddress": manage, "certificate": path("directory.crt"), "privateKey": path("directory.key"),
		"httpPort": 1, "tlsPort": json.Number(port), "retryAfter": map[string]int{"authz": 1, "order": 1}, "keyAlgorithm": "ecdsa"}})
	if err == nil {
		err = os.WriteFile(path("pebble.json"), conf, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{path("pebble-challtestsrv"), "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-dnsserver", names, "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-management", ports.Free(t)},
		{path("pebble"), "-config", path("pebble.json"), "-dnsserver", names},
	} {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	pool := func(pem []byte) *x509.CertPool {
		p := x509.NewCertPool()
		p.AppendCertsFromPEM(pem)
		return p
	}
	own, err := os.ReadFile(path("directory.ca"))
	if err != nil {
		t.Fatal(err)
	}
	manager := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool(own)}}}
	return "https://" + listen + "/dir", func() *x509.CertPool {
		t.Helper()
		for until := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			r, err := manager.Get("https://" + manage + "/roots/0")
			if err == nil {
				pem, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err == nil && r.StatusCode == http.StatusOK {
					return pool(pem)
				}
			}
			if time.Now().After(until) {
				t.Fatal("pebble does not respond:", err)
			}
		}
	}
}

// TestACME checks that a gateway that requires certificates of clients obtains its own from Pebble,
// through the egress-broker of the mesh, which records the flows, and that it uses the same one
// after a restart.
func TestACME(t *testing.T) {
	const domain = "mesh.example.com"
	dir, addr := t.TempDir(), ports.Free(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	directory, roots := pebble(t, dir, port)
	trusted := roots()
	robot := certs.NewAuthority(t, filepath.Join(dir, "clients")).Client(t, "robot", "")
	start := func(state string) *harness.Mesh {
		t.Helper()
		return harness.OneUnready(t, harness.Options{Dir: state, Flags: []string{"--addr", addr}, Env: []string{"BINNACLE_ACME_DOMAINS=" + domain, "BINNACLE_ACME_DIRECTORY=" + directory,
			"BINNACLE_ACME_CA=" + filepath.Join(dir, "directory.ca"), "BINNACLE_TLS_CLIENT_CA=" + filepath.Join(dir, "clients"), "BINNACLE_TLS_CLIENT_CERTIFICATES=require"}})
	}
	get := func(path, token string, with ...tls.Certificate) (status int, text, serial string, err error) {
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: domain, Certificates: with}}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		r, err := client.Do(req)
		if err != nil {
			return 0, "", "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return r.StatusCode, string(b), fmt.Sprint(r.TLS.PeerCertificates[0].SerialNumber), err
	}
	await := func() string {
		t.Helper()
		for until := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
			status, _, serial, err := get("/readyz", "", robot)
			if err == nil && status == http.StatusOK {
				return serial
			}
			if time.Now().After(until) {
				t.Fatal("no certificate:", status, err)
			}
		}
	}
	state := t.TempDir()
	m := start(state)
	first := await()
	if status, _, _, err := get("/readyz", ""); err == nil {
		t.Error("a client without a certificate:", status)
	}
	m.StopAll()
	start(state)
	if again := await(); again != first {
		t.Error("after a restart certificate", again, "instead of", first)
	}
	token, err := os.ReadFile(filepath.Join(state, "operator.token"))
	if err != nil {
		t.Fatal(err)
	}
	status, text, _, err := get("/api/v1/events?type=endpoint_flow_ended", strings.TrimSpace(string(token)), robot)
	if err != nil || status != http.StatusOK || !strings.Contains(text, `"endpoint":"acme"`) {
		t.Errorf("no flow to the authority on the ledger: %d %v %.2000s", status, err, text)
	}
}
