package e2e

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/oauthtest"
)

// oauthClient returns the value of a secret: a client of the server with a new refresh token.
func oauthClient(t *testing.T, s *oauthtest.Server) string {
	t.Helper()
	b, err := json.Marshal(map[string]string{"client_id": oauthtest.ClientID, "client_secret": oauthtest.ClientSecret, "refresh_token": s.Grant("read"), "token_endpoint": s.TokenEndpoint(), "scope": "read"})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// oauthCredential matches every credential of the fixture.
var oauthCredential = regexp.MustCompile(`(access|refresh)-[A-Z2-7]{26}|` + regexp.QuoteMeta(oauthtest.ClientSecret))

// TestAccessTokens shows that concurrent calls receive an access token that was obtained with one
// request, from a fixture of an authorization server, through the egress-broker and over TLS; that
// the flow is on the ledger, and no credential; that a server which refuses, and one that the
// egress-broker's configuration does not list, give typed errors.
func TestAccessTokens(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, foreign := oauthtest.New(true), oauthtest.New(true)
			defer srv.Close()
			defer foreign.Close()
			srv.Rotate = true
			ca := write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})))
			m := start(t, harness.Options{Env: []string{"BINNACLE_TOKEN_ENDPOINTS=" + strings.TrimPrefix(srv.URL, "https://"), "BINNACLE_TOKEN_CA=" + ca}})
			put := func(value string) {
				t.Helper()
				if out, err := m.CLIStdin(value, "secret", "put", "demo-api-key", "--type", "oauth"); err != nil {
					t.Fatal(out, err)
				}
			}
			put(oauthClient(t, srv))
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					if status, body := secretLength(t, m); status != http.StatusOK || !strings.Contains(body, `"length":33`) {
						t.Errorf("%d %s", status, body)
					}
				})
			}
			wg.Wait()
			if n := len(srv.Requests()); n != 1 {
				t.Errorf("%d requests for a token", n)
			}
			put(oauthClient(t, foreign))
			if status, body := secretLength(t, m); status == http.StatusOK || !strings.Contains(body, "egress_refused") || len(foreign.Requests()) != 0 {
				t.Errorf("a server that is not configured: %d %s", status, body)
			}
			put(strings.Replace(oauthClient(t, srv), "refresh-", "refresh-x", 1))
			if status, body := secretLength(t, m); status == http.StatusOK || !strings.Contains(body, "token_refused") || !strings.Contains(body, "invalid_grant") {
				t.Errorf("a refresh token that the server does not know: %d %s", status, body)
			}
			eventually(t, "the flow is on the ledger", time.Minute, func() bool {
				for _, f := range endpointFlows(t, m) {
					if f.Endpoint == "oauth" && f.Sender == "vault-broker" && !f.denied && f.Reference != "" {
						return true
					}
				}
				return false
			})
			for _, e := range ledger(t, m) {
				if oauthCredential.Match(e.Data) {
					t.Errorf("%s contains a credential", e.Name)
				}
			}
			proves(t, m)
		})
	}
}
