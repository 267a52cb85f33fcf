package e2e

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// tokenValue is a secret whose spellings in JSON, URLs, base64 and hex all differ.
const tokenValue = `t0ken/"with+odd\characters&more`

// tokenSpellings returns the spellings of tokenValue that must not occur in outputs, events and
// logs.
func tokenSpellings() []string {
	quoted, _ := json.Marshal(tokenValue)
	return []string{tokenValue, string(quoted[1 : len(quoted)-1]), url.QueryEscape(tokenValue), url.PathEscape(tokenValue),
		base64.StdEncoding.EncodeToString([]byte(tokenValue)), base64.RawURLEncoding.EncodeToString([]byte(tokenValue)), hex.EncodeToString([]byte(tokenValue))}
}

// api is a server that requires a token, and that returns the token in every spelling.
type api struct {
	*httptest.Server
	host, port string
	roots      string // path of the certificate with which the server's certificate is verified
	granted    atomic.Int64
}

func newAPI(t testing.TB) *api {
	a := &api{}
	a.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+tokenValue {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		a.granted.Add(1)
		w.Header().Set("X-Echo", tokenValue)
		fmt.Fprint(w, "page of ", r.URL.Path, "\n", strings.Join(tokenSpellings(), "\n"))
	}))
	t.Cleanup(a.Close)
	a.host, a.port, _ = strings.Cut(strings.TrimPrefix(a.URL, "https://"), ":")
	a.roots = filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(a.roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	return a
}

// egress returns the part of a manifest that permits GET and PUT below /v1 with the token.
func (a *api) egress() string {
	return fmt.Sprintf("egress:\n- {host: %s, port: %s, methods: [GET, PUT], paths: [/v1/**], credential: {secret: page-token, header: Authorization, format: 'Bearer {}'}}\n", a.host, a.port)
}

// clean fails if a text contains the token in any spelling.
func clean(t *testing.T, what, text string) {
	t.Helper()
	for _, s := range tokenSpellings() {
		if strings.Contains(text, s) {
			t.Errorf("%s contains the token as %q", what, s)
		}
	}
}

// TestEgressRules shows on one process, and with a process per service and two brokers, that
// a rule with a credential lets a program fetch a page that requires a secret: in the tier
// process, and as a Python script in a container. The secret reaches the server, and neither
// the program, nor the ledger, nor the logs, in any spelling. Method and path are checked
// inside the TLS connection. An overlay narrows the rules in the signed intent, an overlay
// that widens the ceilings is rejected, and replay makes the same decisions.
func TestEgressRules(t *testing.T) {
	archive, lock := built(t, "python")
	for name, start := range map[string]func(testing.TB, harness.Options) *harness.Mesh{"one": harness.One, "processes": harness.Processes} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			packs, images := imagePacks(t, lock, "words"), t.TempDir()
			for _, f := range []string{"fetch", "fetch.pack.yaml"} {
				body, err := os.ReadFile(filepath.Join(fetchPack(t, a.egress()), f))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(packs, f), body, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			script, err := os.ReadFile(filepath.Join(harness.Root(), "e2e/packs/images/page.py"))
			if err != nil {
				t.Fatal(err)
			}
			for f, body := range map[string]string{"page.py": string(script), "page.pack.yaml": "image: python\nmemory_mib: 256\ninput_schema:\n  properties: {url: string}\noutput_schema:\n  properties: {status: integer, body: string}\nreserve: {egress_bytes: 100000}\n" + a.egress()} {
				if err := os.WriteFile(filepath.Join(packs, f), []byte(body), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			m := start(t, harness.Options{Packs: packs, Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_EGRESS_NETWORKS=127.0.0.0/8", "SSL_CERT_FILE=" + a.roots}})
			if name == "processes" {
				m.StartService("egress-broker-b", "egress-broker")
			}
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress":[{"host":%q,"port":%s,"mode":"terminate"}]}`, a.host, a.port)))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			cli(t, m, "image", "import", archive, "--images", images)
			call := func(pack, session, args string) (status int, text string) {
				t.Helper()
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+pack, session, args)
				if err != nil || r.Status != 200 {
					t.Fatalf("%s: %v %+v %s", pack, err, r.Status, r.Body)
				}
				clean(t, "the output of "+pack, string(r.Body))
				var out struct {
					Output struct {
						Status      int
						Body, Error string
					}
				}
				if err := json.Unmarshal(r.Body, &out); err != nil {
					t.Fatal(err)
				}
				clean(t, "the text of "+pack, out.Output.Body)
				return out.Output.Status, out.Output.Body + out.Output.Error
			}
			get := func(path, method string) string { return fmt.Sprintf(`{"url":%q,"method":%q}`, a.URL+path, method) }
			if status, text := call("cmd.fetch", "s-early", get("/v1/early", "GET")); status != 503 || !strings.Contains(text, "credential_failed") {
				t.Error("without the secret:", status, text)
			}
			if out, err := m.CLIStdin(tokenValue, "secret", "put", "page-token"); err != nil {
				t.Fatal(out, err)
			}
			for _, pack := range []string{"cmd.fetch", "cmd.page"} {
				args := get("/v1/a", "GET")
				if pack == "cmd.page" {
					args = fmt.Sprintf(`{"url":%q}`, a.URL+"/v1/a")
				}
				if status, text := call(pack, "s-page", args); status != 200 || !strings.Contains(text, "page of /v1/a") || !strings.Contains(text, "[secret:page-token]") {
					t.Error(pack, status, text)
				}
			}
			if a.granted.Load() != 2 {
				t.Errorf("the server granted %d requests", a.granted.Load())
			}
			for _, d := range []struct{ path, method, want string }{{"/v2/a", "GET", "path_denied"}, {"/v1/../v2/a", "GET", "path_ambiguous"}, {"/v1/a", "DELETE", "method_denied"}} {
				if status, text := call("cmd.fetch", "s-denied", get(d.path, d.method)); status != 403 || !strings.Contains(text, d.want) {
					t.Error(d, status, text)
				}
			}
			overlay := func(rules string) (string, error) {
				return m.CLI("policy", "activate", write(t, "overlay.json", `{"id":"narrow","scope":"session","subject":"s-narrow","egress":[`+rules+`]}`))
			}
			if out, err := overlay(`{"host":"other.example"}`); err == nil || !strings.Contains(err.Error()+out, "widening") {
				t.Error("an overlay that names a host beyond the ceilings:", out, err)
			}
			if out, err := overlay(`{"host":"*","methods":["GET"],"paths":["/v1/b"]}`); err != nil {
				t.Fatal(out, err)
			}
			if status, text := call("cmd.fetch", "s-narrow", get("/v1/b", "GET")); status != 200 {
				t.Error("narrowed:", status, text)
			}
			if status, text := call("cmd.fetch", "s-narrow", get("/v1/a", "GET")); status != 403 || !strings.Contains(text, "path_denied") {
				t.Error("beyond the overlay:", status, text)
			}
			if status, text := call("cmd.fetch", "s-narrow", get("/v1/b", "PUT")); status != 403 || !strings.Contains(text, "method_denied") {
				t.Error("beyond the overlay:", status, text)
			}
			released, used := 0, 0
			eventually(t, "the flows are on the ledger", 20*time.Second, func() bool {
				released, used = 0, 0
				for _, e := range ledger(t, m) {
					clean(t, "event "+e.Name, string(e.Data))
					if e.Name == "secret_released" && strings.Contains(string(e.Data), "page-token") {
						released++
					}
					if e.Name == "flow_ended" && strings.Contains(string(e.Data), `"credential":"page-token"`) {
						used++
					}
				}
				return used == 3
			})
			if released != 3 {
				t.Errorf("%d releases of the secret for 3 calls", released)
			}
			clean(t, "a log", m.Log())
			if out := cli(t, m, "replay"); !strings.HasSuffix(strings.TrimSpace(out), "equal") {
				t.Error(out)
			}
			bothVerify(t, m, "s-page")
		})
	}
}

// certificateSecret returns a certificate of a client with its private key, in PEM, as the value of a
// secret, and the pool that accepts it.
func certificateSecret(t testing.TB) (value string, accepts *x509.CertPool) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	doc := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "binnacle"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(nil, doc, doc, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	accepts = x509.NewCertPool()
	accepts.AddCert(leaf)
	return string(slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))), accepts
}

// TestClientCertificate shows that a server which requires a certificate of its clients gets the secret of
// type certificate that the rule names, through each of two brokers; that a call without the secret, or
// after it was deleted, fails; and that neither a file nor an event has a line of the private key.
func TestClientCertificate(t *testing.T) {
	value, accepts := certificateSecret(t)
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "page for ", r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	site.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: accepts}
	site.StartTLS()
	t.Cleanup(site.Close) // after the parallel tests
	host, port, _ := strings.Cut(strings.TrimPrefix(site.URL, "https://"), ":")
	roots := write(t, "roots.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: site.Certificate().Raw})))
	packs := fetchPack(t, fmt.Sprintf("egress:\n- {host: %s, port: %s, credential: {secret: bank-client, format: certificate}}\n", host, port))
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, harness.Options{Packs: packs, Listen: true, Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8", "SSL_CERT_FILE=" + roots}})
			if name != "one" {
				m.StartService("egress-broker-b", "egress-broker")
			}
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress":[{"host":%q,"port":%s,"mode":"terminate"}]}`, host, port)))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			fetch := func(want string) {
				t.Helper()
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.fetch", "s-mutual", fmt.Sprintf(`{"url":%q}`, site.URL))
				if err != nil || r.Status != http.StatusOK || !strings.Contains(string(r.Body), want) {
					t.Errorf("want %q: %v %d %s", want, err, r.Status, r.Body)
				}
			}
			fetch("credential_failed")
			if out, err := m.CLIStdin(value, "secret", "put", "bank-client", "--type", "certificate"); err != nil {
				t.Fatal(out, err)
			}
			for range 4 { // the brokers share the calls
				fetch(`"body":"page for binnacle"`)
			}
			cli(t, m, "secret", "delete", "bank-client")
			fetch("credential_failed")
			eventually(t, "the flows are on the ledger", 20*time.Second, func() bool {
				used := 0
				for _, e := range ledger(t, m) {
					if e.Name == "flow_ended" && strings.Contains(string(e.Data), `"credential":"bank-client"`) {
						used++
					}
				}
				return used == 4
			})
			key := strings.Split(value[strings.Index(value, "PRIVATE KEY"):], "\n")[1]
			leaks(t, m, key)
			if in := inStreams(t, m, key); len(in) > 0 {
				t.Errorf("the private key is in %v", in)
			}
		})
	}
}

// TestEgressBrokerKilled shows that a call continues if the broker is killed during a flow,
// that the flow is on the ledger when the broker runs again, and that the next call has a
// proxy.
func TestEgressBrokerKilled(t *testing.T) {
	reached, release := make(chan struct{}, 8), make(chan struct{})
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/slow" {
			reached <- struct{}{}
			<-release
		}
		fmt.Fprint(w, "page")
	}))
	defer site.Close()
	defer close(release)
	host, port, _ := strings.Cut(strings.TrimPrefix(site.URL, "http://"), ":")
	m := harness.Processes(t, harness.Options{Packs: fetchPack(t, fmt.Sprintf("egress:\n- {host: %s, port: %s, mode: http}\n", host, port)), Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8"}})
	cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":["%s:%s"]}`, host, port)))
	cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
	brokerKilled(t, m, site.URL, reached, func() { m.Kill("egress-broker") }, func() {
		m.Restart("egress-broker")
		m.WaitReady()
	})
	if out := cli(t, m, "replay"); !strings.HasSuffix(strings.TrimSpace(out), "equal") {
		t.Error(out)
	}
}

// TestEgressKilledInContainer shows in tier container, during a flow of a call: if the egress-broker
// is killed, what TestEgressBrokerKilled shows; if the session-runner is killed, that the connection
// to the server ends, that the outcome of the call is recorded as unknown when the session-runner
// runs again, that the flow and the end of the proxy are on the ledger, and that the next call has a
// proxy. No container, task, socket or file of these calls is left.
func TestEgressKilledInContainer(t *testing.T) {
	reached, release, left := make(chan struct{}, 8), make(chan struct{}), make(chan struct{}, 8)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/slow" {
			reached <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
				left <- struct{}{}
			}
		}
		fmt.Fprint(w, "page")
	}))
	defer site.Close()
	defer close(release)
	host, port, _ := strings.Cut(strings.TrimPrefix(site.URL, "http://"), ":")
	m := harness.Processes(t, harness.Options{Packs: fetchPack(t, fmt.Sprintf("egress:\n- {host: %s, port: %s, mode: http}\n", host, port)), Containerd: containerdSocket,
		Config: "session-runner: {warm: 0}\n", Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8"}})
	cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":["%s:%s"]}`, host, port)))
	cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
	brokerKilled(t, m, site.URL, reached, func() { m.Kill("egress-broker") }, func() {
		m.Restart("egress-broker")
		m.WaitReady()
	})
	for len(left) > 0 {
		<-left
	}
	go func() {
		_, _ = m.Do(t.Context(), "POST", "/api/v1/packs/cmd.fetch", "s-runner", fmt.Sprintf(`{"url":%q}`, site.URL+"/v1/slow"))
	}()
	<-reached
	m.Kill("session-runner")
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Error("the connection to the server did not end with the session-runner")
	}
	time.Sleep(bus.SlotTTL + 2*time.Second) // so that the next process gets the name of this one, and sweeps its namespace when it starts and not two minutes later
	m.Restart("session-runner")
	m.WaitReady()
	var seen []string
	defer func() {
		if t.Failed() {
			t.Log("events of the call whose session-runner was killed:", seen)
		}
	}()
	eventually(t, "the outcome, the flow and the end of the proxy are on the ledger", 2*time.Minute, func() bool {
		count := map[string]int{}
		seen = nil
		for _, e := range ledger(t, m) {
			if e.Session != harness.SessionID("admin", "s-runner") {
				continue
			}
			seen = append(seen, e.Name+" "+string(e.Data))
			for name, part := range map[string]string{"effect_recorded": `"status":"unknown"`, "flow_ended": `"path":"/v1/slow"`, "egress_closed": `"reason":"call_ended"`} {
				if e.Name == name && strings.Contains(string(e.Data), part) {
					count[name]++
				}
			}
		}
		return count["effect_recorded"] == 1 && count["flow_ended"] == 1 && count["egress_closed"] == 1
	})
	if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.fetch", "s-runner", fmt.Sprintf(`{"url":%q}`, site.URL+"/v1/a")); err != nil || r.Status != 200 || !strings.Contains(string(r.Body), `"body":"page`) || !strings.Contains(string(r.Body), `"tier":"container"`) {
		t.Errorf("after the restart: %v %s", err, r.Body)
	}
	eventually(t, "nothing of the calls is left", time.Minute, func() bool {
		seen = remains(t, m)
		return len(seen) == 0
	})
	if out := cli(t, m, "replay"); !strings.HasSuffix(strings.TrimSpace(out), "equal") {
		t.Error(out)
	}
}

// remains returns the containers and tasks in the namespaces of a mesh, and the sockets and files
// of its egress-broker.
func remains(t *testing.T, m *harness.Mesh) (out []string) {
	t.Helper()
	ctr := func(args ...string) []string {
		b, err := exec.Command("ctr", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ctr %v: %v\n%s", args, err, b)
		}
		return strings.Fields(string(b))
	}
	for _, ns := range ctr("namespaces", "list", "-q") {
		if strings.HasPrefix(ns, namespaceOf(t, m.Dir)) {
			out = slices.Concat(out, ctr("-n", ns, "containers", "list", "-q"), ctr("-n", ns, "tasks", "list", "-q"))
		}
	}
	err := filepath.WalkDir(filepath.Join(m.Dir, "egress-broker"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// brokerKilled makes a call of cmd.fetch for /v1/slow at the URL site, kills every
// egress-broker when the request has reached the site, and checks that the call ends, that
// the flow and the end of the proxy are on the ledger when the brokers run again, and that
// the next call has a proxy.
func brokerKilled(t *testing.T, m *harness.Mesh, site string, reached <-chan struct{}, kill, restart func()) {
	t.Helper()
	for len(reached) > 0 { // earlier requests of that path
		<-reached
	}
	ended := make(chan string, 1)
	go func() {
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.fetch", "s-killed", fmt.Sprintf(`{"url":%q}`, site+"/v1/slow"))
		if err != nil {
			ended <- err.Error()
			return
		}
		ended <- fmt.Sprint(r.Status, " ", string(r.Body))
	}()
	<-reached
	kill()
	if got := <-ended; !strings.HasPrefix(got, "200 ") || !strings.Contains(got, `"error"`) {
		t.Error("the call whose flow was cut:", got)
	}
	restart()
	var seen []string
	defer func() {
		if t.Failed() {
			t.Log("events of the call whose broker was killed:", seen)
		}
	}()
	eventually(t, "the flow and the end of the proxy are on the ledger", time.Minute, func() bool {
		flow, closed := 0, 0
		seen = nil
		for _, e := range ledger(t, m) {
			if e.Session != harness.SessionID("admin", "s-killed") {
				continue
			}
			seen = append(seen, e.Name+" "+string(e.Data))
			if e.Name == "flow_ended" && strings.Contains(string(e.Data), `"reason":"broker_failed"`) && strings.Contains(string(e.Data), `"path":"/v1/slow"`) {
				flow++
			}
			if e.Name == "egress_closed" && strings.Contains(string(e.Data), `"reason":"restarted"`) {
				closed++
			}
		}
		return flow == 1 && closed == 1
	})
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.fetch", "s-killed", fmt.Sprintf(`{"url":%q}`, site+"/v1/a"))
	if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), `"body":"page`) {
		t.Errorf("after the restart: %v %s", err, r.Body)
	}
}
