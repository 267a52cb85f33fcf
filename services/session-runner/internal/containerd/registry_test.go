package containerd

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/content/local"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// TestRegistryRules checks the rules of registries and of further hosts, and the errors for hosts that
// are none.
func TestRegistryRules(t *testing.T) {
	g, err := ParseRegistries([]string{"registry.test", "http://127.0.0.1:5000", "registry.test:443", "[2001:db8::1]:5000"}, []string{"cdn.test", "registry.test:5001"}, "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range g.Rules() {
		if len(r.Methods)+len(r.Paths) > 0 || r.Credential != nil {
			t.Errorf("%+v", r)
		}
		got = append(got, fmt.Sprint(r.Mode, " ", r.Host, " ", r.Port))
	}
	slices.Sort(got)
	want := "http 127.0.0.1 5000, passthrough 2001:db8::1 5000, passthrough cdn.test 443, passthrough registry.test 443, passthrough registry.test 5001"
	if _, err := netrule.Compile(g.Rules()); err != nil || strings.Join(got, ", ") != want {
		t.Errorf("%v %q", err, got)
	}
	for setting, lists := range map[string][2][]string{"session-runner.registries": {{"0x7f.1:5000"}, nil}, "session-runner.registry_hosts": {nil, {"https://cdn.test"}}} {
		if _, err := ParseRegistries(lists[0], lists[1], ""); err == nil || !strings.Contains(err.Error(), setting) {
			t.Errorf("%v: %v", lists, err)
		}
	}
}

// testProxy is an HTTP proxy on a unix socket that permits some hosts, as that of a call does.
type testProxy struct {
	socket  string
	permits []string // hosts with ports

	mu       sync.Mutex
	requests []string // hosts with ports
}

func newTestProxy(t *testing.T, permits ...string) *testProxy {
	p := &testProxy{socket: filepath.Join(t.TempDir(), "p"), permits: permits}
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: p}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return p
}

// dial opens a connection to the proxy.
func (p *testProxy) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", p.socket)
}

// ServeHTTP implements http.Handler.
func (p *testProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests = append(p.requests, r.Host)
	p.mu.Unlock()
	if !slices.Contains(p.permits, r.Host) {
		w.Header().Set("Proxy-Status", `egress-broker; error=http_request_denied; details="host_denied"`)
		w.WriteHeader(http.StatusForbidden)
		return
	}
	if r.Method != http.MethodConnect {
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
		return
	}
	far, err := net.Dial("tcp", strings.Replace(r.Host, "example.com", "127.0.0.1", 1)) // a name in the certificate of net/http/httptest
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer far.Close()
	near, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer near.Close()
	_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
	_, _ = io.Copy(near, far)
}

// testImage is the content of a registry: an image of one layer, named tools.
type testImage struct {
	blobs    map[digest.Digest][]byte
	manifest digest.Digest
	layer    digest.Digest
	cdn      string // URL to which requests for the layer are redirected, or ""
}

func newTestImage(t *testing.T) *testImage {
	i := &testImage{blobs: map[digest.Digest][]byte{}}
	add := func(kind string, body []byte) v1.Descriptor {
		d := v1.Descriptor{MediaType: kind, Digest: digest.FromBytes(body), Size: int64(len(body))}
		i.blobs[d.Digest] = body
		return d
	}
	layer := add(v1.MediaTypeImageLayer, []byte(strings.Repeat("a layer ", 100_000)))
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: add(v1.MediaTypeImageConfig, []byte(`{"os":"linux"}`)), Layers: []v1.Descriptor{layer}}
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	i.layer, i.manifest = layer.Digest, add(v1.MediaTypeImageManifest, body).Digest
	return i
}

// ServeHTTP implements http.Handler, as a registry does.
func (i *testImage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/tools/"), "/")
	body, ok := i.blobs[digest.Digest(name)]
	switch {
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		return
	case kind == "blobs" && digest.Digest(name) == i.layer && i.cdn != "":
		http.Redirect(w, r, i.cdn+r.URL.Path+"?token=hush", http.StatusTemporaryRedirect)
		return
	case kind == "manifests":
		w.Header().Set("Content-Type", v1.MediaTypeImageManifest)
	}
	w.Header().Set("Docker-Content-Digest", name)
	_, _ = w.Write(body)
}

// counting serves h on loopback, with TLS if secure is true, and counts the connections.
func counting(t *testing.T, h http.Handler, secure bool) (s *httptest.Server, connections func() int) {
	var mu sync.Mutex
	n := 0
	s = httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if state == http.StateNew {
			n++
		}
	}
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// TestDownload shows that an image is downloaded from a registry with TLS and from one without, whose
// layers may be at another server, through the proxy of the call and not otherwise; and that the
// proxy's denial of the registry or of the other server is an error that names the host and the
// setting, and no part of the URL.
func TestDownload(t *testing.T) {
	for name, c := range map[string]struct {
		secure, elsewhere bool
		permits           int // of the registry and the other server
	}{
		"TLS": {secure: true, permits: 1}, "no TLS": {permits: 1}, "redirect": {secure: true, elsewhere: true, permits: 2},
		"denied": {secure: true}, "denied without TLS": {}, "denied redirect": {secure: true, elsewhere: true, permits: 1},
	} {
		t.Run(name, func(t *testing.T) {
			image := newTestImage(t)
			registry, reached := counting(t, image, c.secure)
			cdn, reachedCDN := counting(t, newTestImage(t), true)
			hosts := []string{registry.Listener.Addr().String(), cdn.Listener.Addr().String()}
			if c.elsewhere {
				image.cdn = cdn.URL
			}
			ca := filepath.Join(t.TempDir(), "ca.crt")
			if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cdn.Certificate().Raw}), 0o600); err != nil {
				t.Fatal(err)
			}
			listed := hosts[0]
			if !c.secure {
				listed = registry.URL
			}
			g, err := ParseRegistries([]string{listed}, nil, ca)
			if err != nil {
				t.Fatal(err)
			}
			proxy := newTestProxy(t, hosts[:c.permits]...)
			store, err := local.NewStore(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			root, err := g.download(t.Context(), hosts[0]+"/tools@"+image.manifest.String(), store, nil, proxy.dial)
			if c.permits > 0 && (c.permits == 2 || !c.elsewhere) {
				if err != nil || root.Digest != image.manifest {
					t.Fatal(root, err)
				}
				for d := range image.blobs {
					if _, err := store.Info(t.Context(), d); err != nil {
						t.Error(err)
					}
				}
			} else {
				denied := (*DeniedError)(nil)
				if !errors.As(err, &denied) || denied.Host != hosts[c.permits] || denied.Reason != "host_denied" || !strings.Contains(err.Error(), "session-runner.registry_hosts") || strings.Contains(err.Error(), "hush") {
					t.Error(err)
				}
			}
			for i, n := range []int{reached(), reachedCDN()} {
				proxied := 0
				for _, h := range proxy.requests {
					if h == hosts[i] && slices.Contains(proxy.permits, h) {
						proxied++
					}
				}
				if n != proxied {
					t.Errorf("%d connections to server %d, of which %d through the proxy", n, i, proxied)
				}
			}
		})
	}
}
