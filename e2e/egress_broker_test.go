package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// fetchPack builds the pack fetch into a new folder, which it returns. egress is the part of
// the manifest with its rules for egress.
func fetchPack(t testing.TB, egress string) string {
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "fetch"), "./packs/fetch")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	manifest := "name: cmd.fetch\ninput_schema:\n  properties: {url: string, method: string, direct: boolean, tcp: string}\noutput_schema:\n  properties: {status: integer, body: string, error: string, environment: {type: array, items: {type: string}}}\nreserve: {egress_bytes: 100000}\n" + egress
	if err := os.WriteFile(filepath.Join(dir, "fetch.pack.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// lineServer is a TCP server that responds to a line with "received " and that line, and closes
// the connection.
type lineServer struct {
	net.Listener
	conns atomic.Int64
}

// newLineServer starts a lineServer at a free port of host.
func newLineServer(t testing.TB, host string) *lineServer {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	s := &lineServer{Listener: l}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			go func() {
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				if line, err := bufio.NewReader(c).ReadString('\n'); err == nil {
					_, _ = io.WriteString(c, "received "+line)
				}
			}()
		}
	}()
	return s
}

func (s *lineServer) port() int { return s.Addr().(*net.TCPAddr).Port }

// rule returns the rule of a manifest or, as JSON, of ceilings that permits TCP to the server.
func (s *lineServer) rule() string {
	return fmt.Sprintf(`{"host":%q,"port":%d,"mode":"tcp"}`, s.Addr().(*net.TCPAddr).IP, s.port())
}

// tcpRule checks that cmd.fetch can exchange data over TCP with the server open, for which its
// intent has a rule with mode tcp, that no connection to the servers shut is opened, for which
// it has none, and that the flow and the denials are on the ledger.
func tcpRule(t *testing.T, m *harness.Mesh, open *lineServer, shut ...*lineServer) {
	t.Helper()
	call := func(s *lineServer) string {
		t.Helper()
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.fetch", "s-tcp", fmt.Sprintf(`{"tcp":%q}`, s.Addr()))
		if err != nil || r.Status != 200 {
			t.Fatal(err, r.Status, string(r.Body))
		}
		return string(r.Body)
	}
	if out := call(open); !strings.Contains(out, `"body":"received hello\n"`) || !strings.Contains(out, `"status":200`) {
		t.Error("TCP by a rule:", out)
	}
	for _, s := range shut {
		if out := call(s); !strings.Contains(out, `"status":403`) || !strings.Contains(out, "_denied") {
			t.Error("TCP without a rule:", out)
		}
		if n := s.conns.Load(); n > 0 {
			t.Errorf("%d connections to a server that no rule names", n)
		}
	}
	eventually(t, "the flow and the denials are on the ledger", 30*time.Second, func() bool {
		flows, denials := 0, 0
		for _, e := range ledger(t, m) {
			if e.Session != harness.SessionID("admin", "s-tcp") {
				continue
			}
			if e.Name == "flow_ended" && strings.Contains(string(e.Data), `"mode":"tcp"`) && strings.Contains(string(e.Data), fmt.Sprintf(`"port":%d`, open.port())) {
				flows++
			}
			if e.Name == "flow_denied" {
				denials++
			}
		}
		return flows == 1 && denials == len(shut)
	})
}

// TestEgressBroker shows that a pack reaches the host that its intent permits, through the
// egress-broker only, and nothing else, that each flow and denial is on the ledger, without
// the query of a flow's URL, that the proxy ends with the call, and that TCP requires a rule
// of the tool with mode tcp, which the ceilings must permit.
func TestEgressBroker(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
			return
		}
		fmt.Fprint(w, "hello from ", r.URL.Path)
	}))
	defer site.Close()
	host := strings.TrimPrefix(site.URL, "http://")
	for name, start := range map[string]func(testing.TB, harness.Options) *harness.Mesh{"one": harness.One, "processes": harness.Processes} {
		t.Run(name, func(t *testing.T) {
			open, unnamed := newLineServer(t, "127.0.0.1"), newLineServer(t, "127.0.0.1")
			m := start(t, harness.Options{Packs: fetchPack(t, fmt.Sprintf("egress_hosts: [%q]\negress: [%s]\n", host, open.rule())), Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8"}})
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":[%q]}`, host)))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.fetch", "s-early", fmt.Sprintf(`{"tcp":%q}`, open.Addr())); err != nil || r.Status != 403 || !strings.Contains(string(r.Body), "DATA_EGRESS_BLOCKED") || open.conns.Load() > 0 {
				t.Error("ceilings that do not permit the tool's rule with mode tcp:", err, r.Status, string(r.Body))
			}
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":[%q],"egress":[%s,%s]}`, host, open.rule(), unnamed.rule())))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			fetch := func(url string, direct bool) (status int, text string) {
				t.Helper()
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.fetch", "s-fetch", fmt.Sprintf(`{"url":%q,"direct":%v}`, url, direct))
				if err != nil || r.Status != 200 {
					t.Fatal(err, r.Status, string(r.Body))
				}
				var out struct {
					Output struct {
						Status      int
						Body, Error string
					}
				}
				if err := json.Unmarshal(r.Body, &out); err != nil {
					t.Fatal(err)
				}
				return out.Output.Status, out.Output.Body + out.Output.Error
			}
			if status, text := fetch(site.URL+"/page?q=private", false); status != 200 || text != "hello from /page" {
				t.Error(status, text)
			}
			if status, text := fetch("http://example.com/", false); status != 403 || !strings.Contains(text, "host_denied") {
				t.Error(status, text)
			}
			if status, _ := fetch(site.URL+"/away", false); status != 302 {
				t.Error("a redirect was followed:", status)
			}
			if status, text := fetch(site.URL+"/page", true); status != 0 || text == "" {
				t.Error("a program that ignores the proxy reached the host:", status, text)
			}
			count := map[string]int{}
			closed := func(e *contract.Event) bool { return e.Name == "egress_closed" }
			for end := time.Now().Add(20 * time.Second); count["egress_closed"] < 4 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				clear(count)
				for _, e := range ledger(t, m) {
					count[e.Name]++
					if strings.Contains(string(e.Data), "private") && e.Name == "flow_ended" {
						t.Fatal("the query of a flow is on the ledger")
					}
					if closed(e) && !strings.Contains(string(e.Data), `"reason":"call_ended"`) {
						t.Errorf("%s", e.Data)
					}
				}
			}
			if count["egress_requested"] < 4 || count["egress_opened"] != 4 || count["flow_ended"] != 2 || count["flow_denied"] != 1 || count["egress_closed"] != 4 {
				t.Error(count)
			}
			tcpRule(t, m, open, unnamed)
		})
	}
}
