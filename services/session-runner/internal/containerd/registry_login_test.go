package containerd

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/content/local"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// private is a registry that requires the login ann with the password tr0ub4dor: directly or, if tokens
// is not empty, for a token from the server with this URL, which private is as well.
type private struct {
	*testImage
	tokens string
}

// ServeHTTP implements http.Handler.
func (p *private) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	known := user == "ann" && password == "tr0ub4dor"
	switch {
	case r.URL.Path == "/token" && known:
		fmt.Fprint(w, `{"token":"of-ann","expires_in":300}`)
	case r.URL.Path == "/token":
		w.WriteHeader(http.StatusUnauthorized)
	case p.tokens == "" && known, p.tokens != "" && r.Header.Get("Authorization") == "Bearer of-ann":
		p.testImage.ServeHTTP(w, r)
	case p.tokens == "":
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
	default:
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="registry",scope="repository:tools:pull"`, p.tokens))
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// TestDownloadWithLogin shows that an image is downloaded from registries that require a login, by
// Basic authentication or for a token of another server; that a wrong or missing login is ErrLogin, whose
// text has no password; and that the server to which requests for layers are redirected gets no
// credential.
func TestDownloadWithLogin(t *testing.T) {
	for _, tokens := range []bool{false, true} {
		for _, c := range []struct {
			login *url.Userinfo
			want  error
		}{{url.UserPassword("ann", "tr0ub4dor"), nil}, {url.UserPassword("ann", "wr0ng-one"), ErrLogin}, {nil, ErrLogin}} {
			p := &private{testImage: newTestImage(t)}
			registry, _ := counting(t, p, true)
			servers, _ := counting(t, p, true)
			layers := newTestImage(t)
			cdn, _ := counting(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("Authorization"); got != "" {
					t.Errorf("the server of layers got %q", got)
				}
				layers.ServeHTTP(w, r)
			}), true)
			p.cdn = strings.Replace(cdn.URL, "127.0.0.1", "example.com", 1) // clients send credentials to another port of the same host
			if tokens {
				p.tokens = servers.URL
			}
			ca := filepath.Join(t.TempDir(), "ca.crt")
			if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cdn.Certificate().Raw}), 0o600); err != nil {
				t.Fatal(err)
			}
			host := registry.Listener.Addr().String()
			g, err := ParseRegistries([]string{host}, nil, ca)
			if err != nil {
				t.Fatal(err)
			}
			store, err := local.NewStore(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			proxy := newTestProxy(t, host, servers.Listener.Addr().String(), strings.TrimPrefix(p.cdn, "https://"))
			root, err := g.download(t.Context(), host+"/tools@"+p.manifest.String(), store, c.login, proxy.dial)
			if !errors.Is(err, c.want) || err == nil && root.Digest != p.manifest {
				t.Errorf("tokens %v, login %v: %v %v", tokens, c.login != nil, root, err)
			}
			if err != nil && (strings.Contains(err.Error(), "wr0ng-one") || strings.Contains(err.Error(), "tr0ub4dor")) {
				t.Error(err)
			}
		}
	}
}

// TestSecrets checks which logins a configuration may name, and what the executor of pulls may receive.
func TestSecrets(t *testing.T) {
	g, err := ParseRegistries([]string{"registry.test", "registry.test:5000", "other.test"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]string{{"cdn.test=registry.a"}, {"registry.test"}, {"registry.test=a"}, {"registry.test=registry."}, {"registry.test=registry.*"}, {"registry.test=registry.a", "registry.test=registry.b"}} {
		if err := g.Secrets(bad); err == nil || !strings.Contains(err.Error(), "session-runner.registry_secrets") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := g.Secrets(nil); err != nil || g.Grants() != nil {
		t.Errorf("%v %v", err, g.Grants())
	}
	if err := g.Secrets([]string{"registry.test:5000=registry.b", "registry.test=registry.a"}); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(g.Grants()), fmt.Sprint([]contract.SecretGrant{{Name: RegistrySecrets, Hosts: []string{"registry.test"}}}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for ref, want := range map[string]string{"registry.test/tools@sha256:x": "registry.a", "registry.test:5000/tools": "registry.b", "other.test/tools": "", "registry.test": "registry.a"} {
		if got := g.Secret(ref); got != want {
			t.Errorf("%s: %q", ref, got)
		}
	}
}
