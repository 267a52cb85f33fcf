package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// bundleServer serves the file of a bundle.
type bundleServer struct {
	*httptest.Server
	file     atomic.Value // path of the bundle; "" before it is built
	requests atomic.Int64

	mu   sync.Mutex
	hold func(http.ResponseWriter, *http.Request) // handles the next request in place of the server; nil for none
}

// newBundleServer starts a server, which is closed when the test ends.
func newBundleServer(t *testing.T) *bundleServer {
	s := &bundleServer{}
	s.file.Store("")
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		s.mu.Lock()
		hold := s.hold
		s.hold = nil
		s.mu.Unlock()
		if hold != nil {
			hold(w, r)
			return
		}
		http.ServeFile(w, r, s.file.Load().(string))
	}))
	t.Cleanup(s.Close)
	return s
}

// url returns the URL of the bundle under an address of the server.
func (s *bundleServer) url(host string) string {
	return "http://" + host + s.URL[strings.LastIndexByte(s.URL, ':'):] + "/web.tar.gz"
}

// build builds a bundle that denies tool.noop, signs it with a key that it adds to the trusted keys
// of the mesh, and makes the server serve it.
func (s *bundleServer) build(t *testing.T, m *harness.Mesh) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.rego"), []byte("package binnacle.p1\n\nimport rego.v1\n\nanswer := {\"verdict\": \"DENY\", \"reason_code\": \"DENY_WEB\"} if input.kind == \"tool.noop\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	kid := strings.TrimSpace(cli(t, m, "trust", "add", "bundle", "web"))
	file := filepath.Join(dir, "web.tar.gz")
	cli(t, m, "policy", "build", dir, "--out", file, "--sign", filepath.Join(m.Dir, "keys/bundle-web.seed"))
	s.file.Store(file)
	eventually(t, "the key of the bundle is on the ledger", time.Minute, func() bool { return strings.Contains(cli(t, m, "trust", "list"), kid) })
}

// activated activates the bundle by its URL, and checks that it is in force, that it was
// downloaded once, through the egress-broker, and that the flow is on the ledger with the id of
// the call. It retires the bundle, and checks that it is no longer in force.
func (s *bundleServer) activated(t *testing.T, m *harness.Mesh, host string) {
	t.Helper()
	noop := func() string {
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-bundles", fmt.Sprintf(`{"at":%d}`, time.Now().UnixNano()))
		if err != nil {
			t.Fatal(err)
		}
		return string(r.Body)
	}
	before := s.requests.Load()
	cli(t, m, "policy", "activate", "--url", s.url(host))
	if got := noop(); !strings.Contains(got, "DENY_WEB") || s.requests.Load() != before+1 {
		t.Errorf("%d requests, %s", s.requests.Load()-before, got)
	}
	call := lastGoverning(t, m)
	eventually(t, "the flow is on the ledger", time.Minute, func() bool {
		for _, f := range endpointFlows(t, m) {
			if f.Endpoint == "bundles" && f.Reference == call && !f.denied && f.Reason == "" && f.Sender == "policy" && f.Host == host && f.Address != "" && f.BytesIn > 300 {
				return true
			}
		}
		return false
	})
	cli(t, m, "policy", "retire", "p1", "web")
	if got := noop(); strings.Contains(got, "DENY_WEB") {
		t.Error(got)
	}
}

// lastGoverning returns the id of the last call that policy started.
func lastGoverning(t *testing.T, m *harness.Mesh) (call string) {
	t.Helper()
	for _, e := range ledger(t, m) {
		if e.Name == contract.EventEffectStarted && e.Service() == "policy" {
			call = e.CallID
		}
	}
	return call
}

// TestBundleSources shows that a bundle is downloaded from a bundle server through the
// egress-broker, or read from the object store; that a server that the ceilings do not list is
// not contacted; that one that the broker's configuration does not list is denied, with an error
// that names the setting, and with an event; and that a redirect to such a server is not followed.
// With one process per service, it also shows that a download whose broker is killed continues through
// another broker if no response has begun; and that otherwise it fails within seconds, is recorded, and
// succeeds when it is repeated.
func TestBundleSources(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, foreign := newBundleServer(t), newBundleServer(t)
			m := start(t, harness.Options{Noop: true, Env: []string{"BINNACLE_BUNDLE_SERVERS=" + srv.URL}})
			srv.build(t, m)
			host := "127.0.0.1"
			if out, err := m.CLI("policy", "activate", "--url", srv.url(host)); err == nil || !strings.Contains(err.Error(), "egress_hosts") || srv.requests.Load() != 0 {
				t.Fatal(out, err)
			}
			cli(t, m, "trust", "sign", write(t, "p0.json", `{"egress_hosts":["127.0.0.1"]}`))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			srv.activated(t, m, host)
			deniedBundle(t, m, foreign, host)
			srv.mu.Lock()
			srv.hold = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, foreign.url(host), http.StatusFound) }
			srv.mu.Unlock()
			if out, err := m.CLI("policy", "activate", "--url", srv.url(host)); err == nil || !strings.Contains(err.Error(), "policy.bundle_servers") || foreign.requests.Load() != 0 {
				t.Error("a redirect to a server that is not configured:", out, err)
			}
			if name == "processes" {
				brokerOfBundleKilled(t, m, srv, host)
			}
			bundleOfObject(t, m, srv.url(host))
			proves(t, m)
		})
	}
}

// deniedBundle checks that the broker denies, with an event, the download of a bundle from a server
// that the ceilings list and the broker's configuration does not.
func deniedBundle(t *testing.T, m *harness.Mesh, foreign *bundleServer, host string) {
	t.Helper()
	if out, err := m.CLI("policy", "activate", "--url", foreign.url(host)); err == nil || !strings.Contains(err.Error(), "policy.bundle_servers") || foreign.requests.Load() != 0 {
		t.Error("a server that is not configured:", out, err)
	}
	eventually(t, "the denial is on the ledger", time.Minute, func() bool {
		for _, f := range endpointFlows(t, m) {
			if f.Endpoint == "bundles" && f.denied && f.Reason == "port_denied" && f.Sender == "policy" && f.Host == host && f.Reference != "" && f.BytesOut == 0 {
				return true
			}
		}
		return false
	})
}

// brokerOfBundleKilled kills the only egress-broker while a bundle is downloaded and another broker
// starts: after a part of the response, when the download fails at once and can be repeated, and
// before a response, when it continues through the other broker. It checks the records of both.
func brokerOfBundleKilled(t *testing.T, m *harness.Mesh, srv *bundleServer, host string) {
	t.Helper()
	const one, two = "egress-broker", "egress-broker-b"
	if took, err := brokerKilledDuring(t, m, srv, host, one, func() { m.StartService(two, one) }, "a part"); err == nil || !strings.Contains(err.Error(), "the bundle was not downloaded") || took > 10*time.Second {
		t.Errorf("a download of which a part had arrived: %v after %v", err, took)
	}
	srv.activated(t, m, host)
	m.Restart(one)
	flowOfKilledBroker(t, m)
	m.Kill(two)
	if took, err := brokerKilledDuring(t, m, srv, host, one, func() { m.Restart(two) }, ""); err != nil || took > 10*time.Second {
		t.Errorf("a download without a response: %v after %v", err, took)
	}
	m.Restart(one)
	cli(t, m, "policy", "retire", "p1", "web")
}

// brokerKilledDuring activates a bundle whose server sends a part of the response and no more, or
// nothing if part is empty. When the request has reached the server, it calls start and kills a broker.
// It returns the error of the activation and the time from the kill to its end.
func brokerKilledDuring(t *testing.T, m *harness.Mesh, srv *bundleServer, host, broker string, start func(), part string) (took time.Duration, err error) {
	t.Helper()
	reached := make(chan struct{})
	srv.mu.Lock()
	srv.hold = func(w http.ResponseWriter, r *http.Request) {
		if part != "" {
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
		}
		close(reached)
		<-r.Context().Done()
	}
	srv.mu.Unlock()
	failed := make(chan error, 1)
	go func() {
		_, err := m.CLI("policy", "activate", "--url", srv.url(host))
		failed <- err
	}()
	select {
	case <-reached:
	case <-time.After(time.Minute):
		t.Fatal("no request after a minute")
	}
	start()
	time.Sleep(time.Second) // the part arrives
	m.Kill(broker)
	killed := time.Now()
	err = <-failed
	return time.Since(killed), err
}

// flowOfKilledBroker checks that the flow of a killed broker is on the ledger, and one outcome of its
// call, that it failed and can be repeated.
func flowOfKilledBroker(t *testing.T, m *harness.Mesh) {
	t.Helper()
	var call string
	eventually(t, "the flow of the killed broker is on the ledger", 2*time.Minute, func() bool {
		for _, f := range endpointFlows(t, m) {
			if f.Endpoint == "bundles" && f.Reason == "broker_failed" && f.Sender == "policy" {
				call = f.Reference
			}
		}
		return call != ""
	})
	outcomes := 0
	for _, e := range ledger(t, m) {
		if e.Name == contract.EventEffectRecorded && e.CallID == call {
			if outcomes++; !strings.Contains(string(e.Data), `"error_code":"unavailable"`) {
				t.Errorf("the outcome of the call: %s", e.Data)
			}
		}
	}
	if outcomes != 1 {
		t.Errorf("%d outcomes of call %s", outcomes, call)
	}
}

// bundleOfObject activates a bundle from the object store, which holds it under the commitment in
// the event of its activation by URL, and checks that it is in force.
func bundleOfObject(t *testing.T, m *harness.Mesh, url string) {
	t.Helper()
	var commitment string
	var size int64
	for _, e := range ledger(t, m) {
		var a contract.Activated
		if e.Name == contract.EventPolicyActivated && contract.Decode(e.Data, &a) == nil && a.Source == "url "+url {
			commitment, size = a.Bundle.Commitment, a.Bundle.Size
		}
	}
	cli(t, m, "policy", "activate", "--object", commitment, "--size", fmt.Sprint(size), "--name", "web")
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-b", "{}"); err != nil || !strings.Contains(string(r.Body), "DENY_WEB") {
		t.Fatal(err, r)
	}
}
