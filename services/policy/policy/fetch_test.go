package policy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
)

// roundTrips is an http.RoundTripper.
type roundTrips func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestDownload shows the codes of failures of a download, that a bundle is requested for the tenant
// and with the id of the call, that a denial names the setting, that a redirect to a host that the
// ceilings do not list is not followed, and that no error contains the URL of a redirect.
func TestDownload(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		m := founded(t, nil).join("policy-1")
		m.keepUp(ctx)
		respond := func(status int, body io.Reader, fields ...string) func(*http.Request) (*http.Response, error) {
			return func(r *http.Request) (*http.Response, error) {
				h := http.Header{}
				for i := 0; i < len(fields); i += 2 {
					h.Set(fields[i], fields[i+1])
				}
				return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: h, Body: io.NopCloser(body), Request: r}, nil
			}
		}
		refused := `egress-broker; error=http_request_denied; details="host_denied"`
		for _, c := range []struct {
			name, code, want string
			trip             func(*http.Request) (*http.Response, error)
		}{
			{"whole", contract.CodeInvalidInput, "gzip", respond(200, strings.NewReader("no bundle"))},
			{"cut", contract.CodeUnavailable, "not downloaded", respond(200, io.MultiReader(strings.NewReader("a"), iotest.ErrReader(errors.New("the egress-broker does not respond"))))},
			{"missing", contract.CodeInvalidInput, "the bundle server returned Not Found", respond(404, strings.NewReader(""))},
			{"denied", contract.CodeEgressRefused, "policy.bundle_servers", respond(403, strings.NewReader(""), "Proxy-Status", refused)},
			{"unknown", contract.CodeEgressRefused, "policy.bundle_servers is not set", func(*http.Request) (*http.Response, error) {
				return nil, &endpoint.Denied{Endpoint: egress.EndpointBundles, Reason: "endpoint_unknown"}
			}},
			{"broken", contract.CodeUnavailable, "no running instance", func(*http.Request) (*http.Response, error) {
				return nil, errors.New("service egress-broker has no running instance")
			}},
			{"away", contract.CodeInvalidInput, errRedirect.Error(), func(r *http.Request) (*http.Response, error) {
				if r.URL.Hostname() != "mail.example" {
					t.Error("a redirect to", r.URL.Hostname(), "was followed")
				}
				return respond(302, strings.NewReader(""), "Location", "https://evil.example/hush")(r)
			}},
			{"forever", contract.CodeInvalidInput, errRedirect.Error(), func(r *http.Request) (*http.Response, error) {
				return respond(302, strings.NewReader(""), "Location", "https://mail.example/hush")(r)
			}},
		} {
			requested := 0
			m.activator.bundles = func(tenant, call string) http.RoundTripper {
				if requested++; tenant != "t" || call != "g-1" {
					t.Errorf("%s: requested for %s, %s", c.name, tenant, call)
				}
				return roundTrips(c.trip)
			}
			r := m.governor.handle(ctx, work("admin", kindActivate, `{"layer":"p1","name":"x","url":"https://mail.example/b"}`))
			if r.ErrorCode != c.code || !strings.Contains(r.ErrorMessage, c.want) || strings.Contains(r.ErrorMessage, "hush") || requested != 1 {
				t.Errorf("%s: %d requests, %s %q, want %s %q", c.name, requested, r.ErrorCode, r.ErrorMessage, c.code, c.want)
			}
		}
	})
}
