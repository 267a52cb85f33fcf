package attack

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// site is a server of the test that records the paths at which it is reached.
type site struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
}

func newSite(t *testing.T, host string, tls bool) *site {
	l, err := net.Listen("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{}
	s.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.paths = append(s.paths, r.URL.Path)
		s.mu.Unlock()
		if r.URL.Path == "/open/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
			return
		}
		fmt.Fprint(w, "page")
	})}}
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// reached returns the paths at which the site was reached.
func (s *site) reached() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.paths...)
}

// TestEgressEscapes shows in tier process, on one process and on one process per service, that a
// program reaches what its rules permit and nothing else: not by other spellings of an address,
// not a special address that a rule names, not by a name that resolves to one, at once or later
// (DNS rebinding), not by a redirect, not by requests that servers read in different ways, not
// with another server name (SNI) than that of its tunnel, not past the proxy, and not through a
// socket or descriptor of another call. TestEgressEscapesContainer makes those attempts that need
// no DNS server in tier container, and TestComposeConfigured makes them on compose.
func TestEgressEscapes(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			open := newSite(t, "127.0.0.2:0", false)
			_, port, _ := net.SplitHostPort(open.Listener.Addr().String())
			inner := newSite(t, "127.0.0.1:"+port, false) // at the address to which a name is rebound later
			secure := newSite(t, "127.0.0.3:0", true)
			_, securePort, _ := net.SplitHostPort(secure.Listener.Addr().String())
			good, bad, link := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")
			names := harness.NewNames(t, map[string][][]netip.Addr{
				"rebound.example": {{good}, {bad}}, "both.example": {{good, bad}}, "link.example": {{link}}, "six.example": {{netip.MustParseAddr("::1")}},
				"pass.example": {{netip.MustParseAddr("127.0.0.3")}}, "tls.example": {{netip.MustParseAddr("127.0.0.3")}},
			})
			w := &harness.WaysOut{Host: "127.0.0.2", Port: port, Tunnels: []harness.Tunnel{{To: "pass.example:" + securePort, Name: "pass.example", OK: true}, {To: "pass.example:" + securePort, Name: "evil.example"}, {To: "tls.example:" + securePort, Name: "evil.example"}}}
			more := fmt.Sprintf("- {host: pass.example, port: %s, mode: passthrough}\n- {host: tls.example, port: %s, mode: terminate}\n", securePort, securePort)
			for _, n := range []string{"rebound", "both", "link", "six"} {
				more += fmt.Sprintf("- {host: %s.example, port: %s, mode: http}\n", n, port)
			}
			at := func(n string) string { return harness.Get(n+".example:"+port, "/open/a") }
			blocked := []harness.Raw{{Text: at("both"), Want: "address_blocked"}, {Text: at("link"), Want: "address_blocked"}, {Text: at("six"), Want: "address_blocked"}}
			o := harness.Options{Packs: t.TempDir(), Wrap: names.Wrap, Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.2/32,127.0.0.3/32"}}
			w.Pack(t, o.Packs, more, "process")
			m := start(t, o)
			permitAll(t, m)
			w.Dials = []string{"unix " + m.Dir + "/egress"}
			// In one call, the second request uses the connection of the first one, to the address
			// that was checked. The next call resolves the name again.
			w.Raw = append(blocked, harness.Raw{Text: at("rebound"), Want: "page"}, harness.Raw{Text: at("rebound"), Want: "page"})
			w.Try(t, m, "process")
			if n := names.Queries("rebound.example"); n != 1 {
				t.Errorf("a name was resolved %d times for one connection", n)
			}
			w.Raw = append(blocked, harness.Raw{Text: at("rebound"), Want: "address_blocked"})
			w.Try(t, m, "process")
			for _, path := range open.reached() {
				if !strings.HasPrefix(path, "/open/a") {
					t.Errorf("the site was reached at %s", path)
				}
			}
			if p := inner.reached(); len(p) > 0 {
				t.Errorf("an address that may not be dialled was reached at %v", p)
			}
			out, err := m.CLI("events", "list", "--session", "s-wayout-process", "--json")
			for _, reason := range []string{"sni_mismatch", "address_blocked", "authority_mismatch", "request_invalid", "path_ambiguous"} {
				if err != nil || !strings.Contains(out, `"reason":"`+reason+`"`) {
					t.Errorf("no denial with reason %s on the ledger: %v", reason, err)
				}
			}
			if out, err := m.CLI("replay"); err != nil || !strings.HasSuffix(strings.TrimSpace(out), "equal") {
				t.Error(out, err)
			}
		})
	}
}

// permitAll activates ceilings that limit no egress.
func permitAll(t *testing.T, m *harness.Mesh) {
	t.Helper()
	p0 := filepath.Join(t.TempDir(), "p0.json")
	if err := os.WriteFile(p0, []byte(`{"egress":[{"host":"*"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"trust", "sign", p0}, {"policy", "activate", filepath.Join(m.Dir, "keys/p0.json")}} {
		if out, err := m.CLI(args...); err != nil {
			t.Fatal(out, err)
		}
	}
}

// TestEgressEscapesContainer makes the attempts of TestEgressEscapes that need no DNS server
// in tier container, on one process.
func TestEgressEscapesContainer(t *testing.T) {
	open := newSite(t, "127.0.0.2:0", false)
	_, port, _ := net.SplitHostPort(open.Listener.Addr().String())
	w := &harness.WaysOut{Host: "127.0.0.2", Port: port}
	o := harness.Options{Packs: t.TempDir(), Containerd: "/run/containerd/containerd.sock", Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.2/32"}}
	w.Pack(t, o.Packs, "", "container")
	m := harness.One(t, o)
	permitAll(t, m)
	w.Dials = []string{"unix " + m.Dir + "/egress"}
	w.Try(t, m, "container")
	for _, path := range open.reached() {
		if !strings.HasPrefix(path, "/open/a") {
			t.Errorf("the site was reached at %s", path)
		}
	}
}
