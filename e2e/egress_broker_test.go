package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// fetchPack builds the pack fetch into a new folder, which it returns. egress is the part of its
// manifest that names what it may reach.
func fetchPack(t testing.TB, egress string) string {
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "fetch"), "./packs/fetch")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	manifest := "name: cmd.fetch\ninput_schema:\n  properties: {url: string, method: string, direct: boolean}\noutput_schema:\n  properties: {status: integer, body: string, error: string, environment: {type: array, items: {type: string}}}\nreserve: {egress_bytes: 100000}\n" + egress
	if err := os.WriteFile(filepath.Join(dir, "fetch.pack.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestEgressBroker shows that a pack reaches the host that its intent permits, through the
// egress-broker only, and nothing else, that each flow and denial is on the ledger, with
// the URL of a flow but without its query, and that the proxy ends with the call.
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
			m := start(t, harness.Options{Packs: fetchPack(t, fmt.Sprintf("egress_hosts: [%q]\n", host)), Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8"}})
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":[%q]}`, host)))
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
		})
	}
}
