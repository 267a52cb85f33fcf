package upstream

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestDiscover shows where the metadata of a server are read, that those of another origin or
// resource are not used, and the errors.
func TestDiscover(t *testing.T) {
	for _, x := range []struct {
		name, challenge, at string // where the metadata are
		doc                 string // SELF stands for the server's origin
		code, text          string
	}{
		{"named", `Bearer error="invalid_token", resource_metadata="SELF/meta?a=b", scope="one two"`, "/meta", `{"resource":"SELF/mcp","authorization_servers":["https://as.example"],"scopes_supported":["three"]}`, "", "one two"},
		{"relative", `Basic realm="x", Bearer resource_metadata="/meta"`, "/meta", `{"resource":"SELF/mcp","authorization_servers":["https://as.example"],"scopes_supported":["three"]}`, "", "three"},
		{"well-known", "", wellKnown + "/mcp", `{"resource":"SELF/mcp","authorization_servers":["https://as.example"]}`, "", ""},
		{"well-known of the origin", "Bearer", wellKnown, `{"resource":"SELF","authorization_servers":["https://as.example"]}`, "", ""},
		{"another origin", `Bearer resource_metadata="http://169.254.169.254/meta"`, "/meta", `{}`, contract.CodeUpstreamRefused, "another origin"},
		{"another resource", "", wellKnown, `{"resource":"https://other.example/mcp","authorization_servers":["https://as.example"]}`, contract.CodeUpstreamRefused, "another resource"},
		{"another path", "", wellKnown, `{"resource":"SELF/mc","authorization_servers":["https://as.example"]}`, contract.CodeUpstreamRefused, "another resource"},
		{"no authorization server", "", wellKnown, `{"resource":"SELF/mcp"}`, contract.CodeUpstreamRefused, "name no authorization server"},
		{"no metadata", "", "/nowhere", `{}`, contract.CodeUpstreamRefused, "--header"},
	} {
		t.Run(x.name, func(t *testing.T) {
			var self string
			h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/mcp":
					if x.challenge != "" {
						w.Header().Set("WWW-Authenticate", strings.ReplaceAll(x.challenge, "SELF", self))
					}
					w.WriteHeader(http.StatusUnauthorized)
				case x.at:
					_, _ = w.Write([]byte(strings.ReplaceAll(x.doc, "SELF", self)))
				default:
					http.NotFound(w, r)
				}
			}))
			defer h.Close()
			self = h.URL
			p, err := Discover(t.Context(), h.URL+"/mcp", "t", false)
			var e *Error
			if x.code != "" {
				if !errors.As(err, &e) || e.Code != x.code || !strings.Contains(e.Message, x.text) {
					t.Error(err)
				}
				return
			}
			if err != nil || !slices.Equal(p.Issuers, []string{"https://as.example"}) || strings.Join(p.Scopes, " ") != x.text {
				t.Error(p, err)
			}
		})
	}
	open := httptest.NewServer(http.NotFoundHandler())
	defer open.Close()
	var e *Error
	if _, err := Discover(t.Context(), open.URL, "t", true); !errors.As(err, &e) || e.Code != contract.CodeUpstreamRefused || !strings.Contains(e.Message, "404") {
		t.Error("a server that requires no token:", err)
	}
}

// TestUnauthorized shows that a rejected credential is an error that names the command to log in,
// for both transports, and that it does not delay the next attempt.
func TestUnauthorized(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer h.Close()
	for _, sse := range []bool{false, true} {
		s := New(Config{Name: "notes", URL: h.URL, SSE: sse, Concurrency: 1, Timeout: 5 * time.Second, Version: "t"})
		for range 3 {
			err := s.Do(t.Context(), "", http.Header{}, nil, func(context.Context, Session) error { return nil })
			var e *Error
			if !errors.As(err, &e) || e.Code != contract.CodeUpstreamRefused || !strings.Contains(e.Message, "binnacle mcp login notes") {
				t.Error(sse, err)
			}
		}
		if got := s.Health(); got.State != Failing || got.Failures != 0 || !strings.Contains(got.Error, "401") {
			t.Errorf("%+v", got)
		}
		s.Close()
	}
}
