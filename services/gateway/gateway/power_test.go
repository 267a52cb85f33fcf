package gateway

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestWithheld shows that every route that requires a credential, and every POST route
// of logins, responds with 503 while the ledger cannot be synced, whatever its handler
// responds, and that the other routes respond as usual.
func TestWithheld(t *testing.T) {
	s, _, mint := edge(t, body.Limits{})
	s.env.Conn, s.env.Log = meshtest.Grouped(t, nil), slog.New(slog.DiscardHandler) // handlers without a ledger may panic
	srv := httptest.NewServer(s.routes())
	defer srv.Close()
	bearer := "Bearer " + mint("alice", token.All...)
	for _, r := range s.table() {
		req, err := http.NewRequest(r.method, srv.URL+r.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", bearer)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s %s: %v", r.method, r.path, err)
			continue
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		withheld := resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(b), "cannot be synced")
		logs := r.method == http.MethodPost && (strings.HasPrefix(r.path, "/oauth/") || strings.HasPrefix(r.path, "/auth/")) // logins are events, too
		if err != nil || withheld != (r.need.Caller || logs) {
			t.Errorf("%s %s: %d %.100s %v", r.method, r.path, resp.StatusCode, b, err)
		}
	}
}
