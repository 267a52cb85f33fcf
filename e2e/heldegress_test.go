package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// slowSite starts a server whose pages contain their paths. Each request for /held/slow sends
// to reached, and its response begins when release is closed.
func slowSite(t testing.TB) (site *httptest.Server, reached, release chan struct{}) {
	t.Helper()
	reached, release = make(chan struct{}, 8), make(chan struct{})
	site = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held/slow" {
			reached <- struct{}{}
			<-release
		}
		fmt.Fprint(w, "page of ", r.URL.Path)
	}))
	t.Cleanup(site.Close)
	return site, reached, release
}

// TestHeldEgress runs heldEgress on one process, and with one process per service, two
// session-runners and two egress-brokers.
func TestHeldEgress(t *testing.T) {
	images, _ := shellImages(t, filepath.Join(fetchPack(t, ""), "fetch"))
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			site, reached, release := slowSite(t)
			host := strings.TrimPrefix(site.URL, "http://")
			m := start(t, harness.Options{Containerd: containerdSocket,
				Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0", "BINNACLE_EGRESS_NETWORKS=127.0.0.0/8", "BINNACLE_SANDBOX_HOSTS=" + host}})
			if name == "processes" {
				m.StartService("session-runner-b", "session-runner")
				m.StartService("egress-broker-b", "egress-broker")
			}
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":[%q]}`, host)))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			heldEgress(t, m, site.URL, name == "processes", reached, release)
			bothVerify(t, m, "s-net")
		})
	}
}

// heldEgress checks that a command which sandbox.exec_egress runs in a held sandbox reaches
// what the intent permits, through the egress-broker only, that a command without egress then
// reaches neither the site nor the address of the proxy, that one command at a time has
// egress, and that the ledger has each proxy, its end, the denial and at least two flows.
// spread is whether several session-runners run, of which at least two must execute calls.
// The configuration and the ceilings of the mesh must permit requests to the URL site, which
// slowSite serves.
func heldEgress(t *testing.T, m *harness.Mesh, site string, spread bool, reached, release chan struct{}) {
	t.Helper()
	agentRuns(t, m, site)
	h := &heldMesh{t, m}
	h.must("s-net", "create", `{"image":"shell","memory_mib":64}`)
	args := func(url string, direct bool) string {
		stdin, _ := json.Marshal(map[string]any{"url": url, "direct": direct})
		b, _ := json.Marshal(map[string]any{"command": []string{"/bin/fetch"}, "stdin": string(stdin)})
		return string(b)
	}
	calls := 0
	online := func(url string, direct bool) string {
		t.Helper()
		calls++
		return fmt.Sprint(h.must("s-net", "exec_egress", args(url, direct))["stdout"])
	}
	if out := online(site+"/held/a", false); !strings.Contains(out, "page of /held/a") || !strings.Contains(out, "SSL_CERT_FILE=/run/egress-ca.pem") {
		t.Errorf("a permitted request: %q", out)
	}
	if out := online("http://other.example/held/a", false); strings.Contains(out, "page") || !strings.Contains(out, "host_denied") {
		t.Errorf("a host that the configuration does not name: %q", out)
	}
	if out := online(site+"/held/a", true); strings.Contains(out, "page") || !strings.Contains(out, `"error"`) {
		t.Errorf("a command that ignores the proxy: %q", out)
	}
	if out := fmt.Sprint(h.must("s-net", "exec", args(site+"/held/a", false))["stdout"]); strings.Contains(out, "page") {
		t.Errorf("a command without egress: %q", out)
	}
	if out := h.sh("s-net", "echo | /bin/busybox nc -w 5 127.0.0.1 3128 2>&1; true"); !strings.Contains(out, "refused") {
		t.Errorf("the address of the proxy, without egress: %q", out)
	}
	if spread {
		eventually(t, "both session-runners execute commands with egress", time.Minute, func() bool {
			if out := online(site+"/held/b", false); !strings.Contains(out, "page of /held/b") {
				t.Fatalf("a call that an instance forwards, or not: %q", out)
			}
			took := map[string]bool{}
			for _, eff := range effectsOf(t, m, "s-net") {
				if eff.Tool == "sandbox.exec_egress" {
					took[eff.Instance] = true
				}
			}
			return len(took) > 1
		})
	}
	slow := make(chan string, 1)
	go func() {
		_, out, body := h.call("", "s-net", "exec_egress", args(site+"/held/slow", false))
		slow <- fmt.Sprint(out["stdout"], body)
	}()
	calls++
	<-reached
	if status, _, body := h.call("", "s-net", "exec_egress", args(site+"/held/a", false)); status != 429 || !strings.Contains(body, contract.CodeTooManySandboxes) {
		t.Errorf("a second command with egress: %d %s", status, body)
	}
	calls++
	close(release)
	if out := <-slow; !strings.Contains(out, "page of /held/slow") {
		t.Errorf("the first command with egress: %s", out)
	}
	var sent []int64
	for _, eff := range effectsOf(t, m, "s-net") {
		if eff.Tool != "sandbox.exec_egress" || eff.Status != "succeeded" {
			continue
		}
		if eff.Attestation == nil || !slices.Contains(eff.Attestation.Enforced, "network:egress_broker") || slices.Contains(eff.Attestation.Enforced, "no_network") {
			t.Errorf("attestation of %s: %+v", eff.CallID, eff.Attestation)
		}
		if eff.Usage != nil {
			sent = append(sent, eff.Usage.EgressBytes)
		}
	}
	if len(sent) != calls-1 || sent[0] < 100 || sent[2] != 0 {
		t.Errorf("bytes of the successful commands: %v", sent)
	}
	count := map[string]int{}
	eventually(t, "each proxy is closed with its call", 30*time.Second, func() bool {
		clear(count)
		for _, e := range ledger(t, m) {
			if e.Session != harness.SessionID("admin", "s-net") {
				continue
			}
			count[e.Name]++
			if e.Name == "egress_closed" && !strings.Contains(string(e.Data), `"reason":"call_ended"`) {
				t.Errorf("%s", e.Data)
			}
		}
		return count["egress_closed"] == calls
	})
	if count["egress_opened"] != calls || count["flow_denied"] != 1 || count["flow_ended"] < 2 {
		t.Error(calls, count)
	}
	eventually(t, "the sandbox ends", 30*time.Second, func() bool {
		status, _, _ := h.call("", "s-net", "terminate", `{}`)
		return status == 200 || status == 404 // 404 after a call that succeeded late
	})
}
