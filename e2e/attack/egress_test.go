package attack

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// wayoutPacks builds the pack wayout for the tiers process and container into a folder. Its
// rules permit HTTP to a site below /open, TLS to it, and a request to an address that the
// broker may not dial.
func wayoutPacks(t *testing.T, port string) string {
	dir := t.TempDir()
	for _, tier := range []string{"process", "container"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "wayout-"+tier), "./packs/wayout")
		cmd.Dir = filepath.Join(harness.Root(), "e2e")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		manifest := "tier: " + tier + "\ntimeout_s: 60\ninput_schema: {properties: {raw: {type: array, items: {type: string}}, dial: {type: array, items: {type: string}}, tls: {type: array, items: {type: string}}}}\n" +
			fmt.Sprintf("egress:\n- {host: 127.0.0.2, port: %s, mode: http, paths: [/open/**]}\n- {host: 127.0.0.1, port: %s, mode: http}\n- {host: tls.example, mode: terminate}\n- {host: pass.example, mode: passthrough}\n", port, port)
		if err := os.WriteFile(filepath.Join(dir, "wayout-"+tier+".pack.yaml"), []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestEgressEscapes shows in the tiers process and container that a program reaches what its
// rules permit and nothing else: not by other spellings of an address, not a special
// address that a rule names, not by a redirect, not by requests that servers read in
// different ways, not with another server name than that of its tunnel, not past the proxy,
// and not through a socket or descriptor of another call.
func TestEgressEscapes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan string, 100)
	site := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached <- r.URL.Path
		if r.URL.Path == "/open/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
			return
		}
		fmt.Fprint(w, "page")
	})}}
	site.Start()
	defer site.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	m := harness.One(t, harness.Options{Packs: wayoutPacks(t, port), Containerd: "/run/containerd/containerd.sock", Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.2/32"}})
	p0 := filepath.Join(t.TempDir(), "p0.json")
	if err := os.WriteFile(p0, []byte(`{"egress":[{"host":"*"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"trust", "sign", p0}, {"policy", "activate", filepath.Join(m.Dir, "keys/p0.json")}} {
		if out, err := m.CLI(args...); err != nil {
			t.Fatal(out, err)
		}
	}
	get := func(authority, path string) string {
		return fmt.Sprintf("GET http://%s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", authority, path, authority)
	}
	at := "127.0.0.2:" + port
	raw := []struct{ text, want string }{
		{get(at, "/open/a"), "page"}, {get(at, "/open/away"), "302"}, {get("169.254.169.254", "/latest"), "host_denied"}, {get(at, "/closed"), "path_denied"}, {get(at, "/open/../closed"), "path_ambiguous"}, {get(at, "/open/%2e%2e/closed"), "path_ambiguous"},
		{get("127.0.0.1:"+port, "/"), "address_blocked"},
		{get("2130706434:"+port, "/open/a"), "400"}, {get("0177.0.0.2:"+port, "/open/a"), "400"}, {get("0x7f000002:"+port, "/open/a"), "400"}, {get("127.2:"+port, "/open/a"), "400"},
		{get("[::ffff:127.0.0.2]:"+port, "/open/a"), "400"}, {get("[64:ff9b::7f00:2]:"+port, "/open/a"), "host_denied"}, {get("[::7f00:2]:"+port, "/open/a"), "host_denied"},
		{"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80\r\n\r\n", "host_denied"}, {"CONNECT " + at + " HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"POST http://" + at + "/open/a HTTP/1.1\r\nHost: " + at + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://" + at + "/closed HTTP/1.1\r\n\r\n", "400"},
		{"GET http://" + at + "/open/a HTTP/1.1\r\nHost: evil.example\r\n\r\n", "400"}, {"GET http://" + at + "/open/a HTTP/1.1\r\nHost: " + at + "\r\nX: a\n b\r\n\r\n", "400"},
		{"GET /open/a HTTP/1.1\r\nHost: " + at + "\r\n\r\n", "400"},
	}
	dials := []string{"tcp " + at, "tcp 127.0.0.1:22", "tcp 1.1.1.1:80", "tcp 169.254.169.254:80", "udp 8.8.8.8:53", "tcp [2606:4700::1111]:80", "unix /run/egress/s", "unix " + m.Dir + "/egress"}
	tunnels := []string{"tls.example:443 evil.example", "pass.example:443 evil.example", "evil.example:443 evil.example"}
	in := map[string][]string{"dial": dials, "tls": tunnels}
	for _, r := range raw {
		in["raw"] = append(in["raw"], r.text)
	}
	args, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range []string{"process", "container"} {
		t.Run(tier, func(t *testing.T) {
			r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.wayout-"+tier, "s-"+tier, string(args))
			if err != nil || r.Status != 200 {
				t.Fatalf("%v %d %s", err, r.Status, r.Body)
			}
			var doc struct {
				Output struct{ Raw, Dial, TLS, Found []string }
			}
			if err := json.Unmarshal(r.Body, &doc); err != nil {
				t.Fatal(err)
			}
			o := doc.Output
			if len(o.Raw) != len(raw) || len(o.Dial) != len(dials) || len(o.TLS) != len(tunnels) {
				t.Fatalf("%s", r.Body)
			}
			for i, want := range raw {
				if !strings.Contains(o.Raw[i], want.want) || want.want != "page" && strings.Contains(o.Raw[i], "page") {
					t.Errorf("%q: %q, want %s", want.text, o.Raw[i], want.want)
				}
			}
			for i, d := range dials {
				if !strings.HasPrefix(o.Dial[i], "error: ") {
					t.Errorf("%s: %s", d, o.Dial[i])
				}
			}
			for i, d := range tunnels {
				if o.TLS[i] == "connected" {
					t.Errorf("TLS in a tunnel: %s", d)
				}
			}
			if len(o.Found) > 0 {
				t.Errorf("sockets in the sandbox: %v", o.Found)
			}
		})
	}
	close(reached)
	for path := range reached {
		if !strings.HasPrefix(path, "/open/a") {
			t.Errorf("the site was reached at %s", path)
		}
	}
	if out, err := m.CLI("replay"); err != nil || !strings.HasSuffix(strings.TrimSpace(out), "equal") {
		t.Error(out, err)
	}
}
