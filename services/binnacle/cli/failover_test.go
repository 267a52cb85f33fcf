package cli

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFailover checks that requests of a command that has two addresses reach the second gateway while
// the first one accepts no connection, and the first one otherwise, also with TLS; and which lists of
// addresses are errors.
func TestFailover(t *testing.T) {
	for _, start := range []func(http.Handler) *httptest.Server{httptest.NewServer, httptest.NewTLSServer} {
		names := map[string]*httptest.Server{}
		for _, name := range []string{"first", "second"} {
			s := start(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
			t.Cleanup(s.Close)
			names[name] = s
		}
		to := &target{addr: names["first"].URL + " , " + names["second"].URL + "/", token: "x"}
		if cert := names["first"].Certificate(); cert != nil {
			to.ca = filepath.Join(t.TempDir(), "ca")
			if err := os.WriteFile(to.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		send := func() string {
			r, err := (&env{target: to}).request(t.Context(), http.MethodGet, "/", nil, nil)
			if err != nil {
				return err.Error()
			}
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		if got := send(); got != "first" {
			t.Error(got)
		}
		names["first"].Close()
		if got := send(); got != "second" {
			t.Errorf("while the first gateway is away: %s", got)
		}
		names["second"].Close()
		if got := send(); !strings.Contains(got, "no mesh responds at") {
			t.Errorf("while both are away: %s", got)
		}
	}
	for _, list := range []string{"http://a,https://b", "a:1,", "a:1,http://b/path", "a:1,http://%"} {
		if _, err := (&env{target: &target{addr: list}}).transport(); err == nil {
			t.Errorf("%q is accepted", list)
		}
	}
}
