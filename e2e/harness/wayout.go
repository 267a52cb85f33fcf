package harness

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// WaysOut are the attempts of the pack wayout to reach more than its rules permit.
type WaysOut struct {
	Host, Port string   // IPv4 address and port of a server of the test, which the broker may dial
	Raw        []Raw    // further requests
	Tunnels    []Tunnel // further tunnels
	H2         []Raw    // https URLs, and a part of the expected version, status and body
	Dials      []string // further connections past the proxy, which must fail: network and address
}

// Raw is the text of a request to the proxy, and a part of the expected response.
type Raw struct{ Text, Want string }

// Tunnel is the target of a tunnel through the proxy, the server name for TLS in the tunnel, and
// whether the TLS handshake must succeed.
type Tunnel struct {
	To, Name string
	OK       bool
}

// Pack builds the pack wayout into a folder, as cmd.wayout-TIER for each tier. Its rules permit
// HTTP to the server below /open, TLS to tls.example in the mode terminate and to pass.example in
// the mode passthrough, and two addresses that no broker may dial. more are further rules.
func (w *WaysOut) Pack(t testing.TB, dir string, more string, tiers ...string) {
	t.Helper()
	for _, tier := range tiers {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "wayout-"+tier), "./packs/wayout")
		cmd.Dir = filepath.Join(Root(), "e2e")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		manifest := "tier: " + tier + "\ntimeout_s: 120\ninput_schema: {properties: {raw: {type: array, items: {type: string}}, dial: {type: array, items: {type: string}}, tls: {type: array, items: {type: string}}, h2: {type: array, items: {type: string}}}}\n" +
			fmt.Sprintf("egress:\n- {host: %s, port: %s, mode: http, paths: [/open/**]}\n- {host: 127.0.0.1, port: %s, mode: http}\n- {host: 169.254.169.254, port: 80, mode: http}\n- {host: tls.example, mode: terminate}\n- {host: pass.example, mode: passthrough}\n", w.Host, w.Port, w.Port) + more
		if err := os.WriteFile(filepath.Join(dir, "wayout-"+tier+".pack.yaml"), []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Get returns a request for a path of a server.
func Get(authority, path string) string {
	return fmt.Sprintf("GET http://%s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", authority, path, authority)
}

// requests returns the requests to the proxy: some that the rules permit, which show that the
// proxy works, other spellings of the server's address, addresses that may not be dialled,
// paths beside the rules, and requests that servers read in different ways.
func (w *WaysOut) requests() []Raw {
	at, a := w.Host+":"+w.Port, netip.MustParseAddr(w.Host).As4()
	number := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	out := []Raw{
		{Get(at, "/open/a"), "page"}, {Get(at, "/open/away"), "302"}, {Get(at, "/closed"), "path_denied"}, {Get(at, "/open/../closed"), "path_ambiguous"}, {Get(at, "/open/%2e%2e/closed"), "path_ambiguous"},
		{Get("127.0.0.1:"+w.Port, "/"), "address_blocked"}, {Get("169.254.169.254", "/latest"), "address_blocked"}, {Get("169.254.170.2", "/"), "host_denied"}, {Get("localhost:"+w.Port, "/open/a"), "host_denied"},
	}
	for spelling, want := range map[string]string{
		fmt.Sprint(number): "400", fmt.Sprintf("0%o.%d.%d.%d", a[0], a[1], a[2], a[3]): "400", fmt.Sprintf("0x%08x", number): "400", fmt.Sprintf("%d.%d", a[0], number&0xffffff): "400",
		fmt.Sprintf("[::ffff:%s]", w.Host): "400", fmt.Sprintf("[64:ff9b::%x:%x]", number>>16, number&0xffff): "host_denied", fmt.Sprintf("[::%x:%x]", number>>16, number&0xffff): "host_denied",
	} {
		out = append(out, Raw{Get(spelling+":"+w.Port, "/open/a"), want})
	}
	return append(append(out,
		Raw{"CONNECT 169.254.170.2:80 HTTP/1.1\r\nHost: 169.254.170.2:80\r\n\r\n", "host_denied"}, Raw{"CONNECT " + at + " HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		Raw{"POST http://" + at + "/open/a HTTP/1.1\r\nHost: " + at + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://" + at + "/closed HTTP/1.1\r\n\r\n", "400"},
		Raw{"GET http://" + at + "/open/a HTTP/1.1\r\nHost: evil.example\r\n\r\n", "400"}, Raw{"GET http://" + at + "/open/a HTTP/1.1\r\nHost: " + at + "\r\nX: a\n b\r\n\r\n", "400"},
		Raw{"GET /open/a HTTP/1.1\r\nHost: " + at + "\r\n\r\n", "400"},
	), w.Raw...)
}

// Try makes the attempts in a tier. It fails the test if one has another result than expected, or
// if the pack finds a socket in its sandbox.
func (w *WaysOut) Try(t *testing.T, m *Mesh, tier string) {
	t.Helper()
	raw := w.requests()
	tunnels := append([]Tunnel{{"tls.example:443", "evil.example", false}, {"pass.example:443", "evil.example", false}, {"evil.example:443", "evil.example", false}}, w.Tunnels...)
	dials := append([]string{"tcp " + w.Host + ":" + w.Port, "tcp 127.0.0.1:22", "tcp 1.1.1.1:80", "tcp 169.254.169.254:80", "udp 8.8.8.8:53", "tcp [2606:4700::1111]:80", "unix /run/egress/s"}, w.Dials...)
	in := map[string][]string{"dial": dials}
	for _, r := range raw {
		in["raw"] = append(in["raw"], r.Text)
	}
	for _, d := range tunnels {
		in["tls"] = append(in["tls"], d.To+" "+d.Name)
	}
	for _, r := range w.H2 {
		in["h2"] = append(in["h2"], r.Text)
	}
	args, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.wayout-"+tier, "s-wayout-"+tier, string(args))
	if err != nil || r.Status != 200 {
		t.Fatalf("%v %d %s", err, r.Status, r.Body)
	}
	var doc struct {
		Output struct{ Raw, Dial, TLS, H2, Found []string }
	}
	if err := json.Unmarshal(r.Body, &doc); err != nil {
		t.Fatal(err)
	}
	o := doc.Output
	if len(o.Raw) != len(raw) || len(o.Dial) != len(dials) || len(o.TLS) != len(tunnels) || len(o.H2) != len(w.H2) {
		t.Fatalf("%s", r.Body)
	}
	for i, want := range raw {
		if !strings.Contains(o.Raw[i], want.Want) || !strings.HasPrefix(want.Want, "page") && strings.Contains(o.Raw[i], "page") {
			t.Errorf("%q: %q, want %s", want.Text, o.Raw[i], want.Want)
		}
	}
	for i, want := range w.H2 {
		if !strings.Contains(o.H2[i], want.Want) {
			t.Errorf("%s: %q, want %s", want.Text, o.H2[i], want.Want)
		}
	}
	for i, d := range dials {
		if !strings.HasPrefix(o.Dial[i], "error: ") {
			t.Errorf("past the proxy, %s: %s", d, o.Dial[i])
		}
	}
	for i, d := range tunnels {
		if (o.TLS[i] == "connected") != d.OK {
			t.Errorf("TLS for %s in a tunnel to %s: %s", d.Name, d.To, o.TLS[i])
		}
	}
	if len(o.Found) > 0 {
		t.Errorf("sockets in the sandbox: %v", o.Found)
	}
}
