package harness

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// SessionID returns the id of the session to which an actor of the tenant default has
// given a name.
func SessionID(actor, name string) string { return contract.SessionID("default", actor, name) }

// Response is a received HTTP response with its whole body.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// JSON decodes the body into out, and fails the test if it cannot.
func (r *Response) JSON(t testing.TB, out any) {
	t.Helper()
	if err := json.Unmarshal(r.Body, out); err != nil {
		t.Fatalf("%v: %s", err, r.Body)
	}
}

// Do sends a request with the mesh's token, which is the administrator's unless As set
// another one. If session is not empty, the request names it.
func (m *Mesh) Do(ctx context.Context, method, path, session, body string) (*Response, error) {
	h := map[string]string{}
	if session != "" {
		h["X-Binnacle-Session"] = session
	}
	return m.DoHeader(ctx, method, path, body, h)
}

// DoHeader is like Do, but adds header fields instead of a session. They may replace the
// Authorization field.
func (m *Mesh) DoHeader(ctx context.Context, method, path, body string, header map[string]string) (*Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, m.URL()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+m.Token)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := m.client().Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return &Response{resp.StatusCode, resp.Header, b}, err
}
