package tracing

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// direct returns a transport without a proxy.
func direct(conf *tls.Config) http.RoundTripper { return &http.Transport{TLSClientConfig: conf} }

// collector starts a server that stores the bodies of the requests for /v1/traces, and
// clears the variables of OpenTelemetry.
func collector(t *testing.T) (url string, bodies func() []string) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	var mu sync.Mutex
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, string(b))
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

// TestOff checks that without a collector no span is recorded and the trace context of an
// event remains as it is.
func TestOff(t *testing.T) {
	collector(t)
	made, err := New(t.Context(), "gateway", "gateway-1", "", direct)
	if err != nil {
		t.Fatal(err)
	}
	var none *Tracer
	for name, tr := range map[string]*Tracer{"nil": none, "zero": {}, "no endpoint": made} {
		span := tr.Start(parent, "chat", trace.SpanKindClient)
		if tr.On() || span.IsRecording() || Context(span, parent) != parent {
			t.Errorf("%s: on %v, context %q", name, tr.On(), Context(span, parent))
		}
		span.End()
		tr.Close(t.Context())
	}
}

// TestExport checks that Close sends the spans to the collector, whose URL may end with a
// slash, that a span is below the trace context of its parent, and that a malformed
// parent begins a new trace.
func TestExport(t *testing.T) {
	url, bodies := collector(t)
	for _, endpoint := range []string{url, url + "/"} {
		tr, err := New(t.Context(), "gateway", "gateway-1", endpoint, direct)
		if err != nil || !tr.On() {
			t.Fatal(err)
		}
		span := tr.Start(parent, "chat demo", trace.SpanKindClient, attribute.String("gen_ai.operation.name", "chat"))
		got := Context(span, "")
		if !strings.HasPrefix(got, parent[:36]) || got == parent || !strings.HasSuffix(got, "-01") {
			t.Errorf("the span below %s has the context %s", parent, got)
		}
		fresh := tr.Start("x", "chat", trace.SpanKindClient)
		if c := Context(fresh, parent); c == parent || len(c) != len(parent) || strings.HasPrefix(c, parent[:36]) {
			t.Errorf("a span below a malformed context has the context %s", c)
		}
		span.End()
		fresh.End()
		before := len(bodies())
		tr.Close(t.Context())
		sent := strings.Join(bodies()[before:], "")
		for _, part := range []string{"binnacle-gateway", "gateway-1", "chat demo", "gen_ai.operation.name"} {
			if !strings.Contains(sent, part) {
				t.Errorf("%s: the exported spans lack %q: %q", endpoint, part, sent)
			}
		}
	}
}

// TestEnvironment checks that OTEL_EXPORTER_OTLP_ENDPOINT overrides the configured endpoint,
// and suffices without one.
func TestEnvironment(t *testing.T) {
	url, bodies := collector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
	for i, endpoint := range []string{"", "http://127.0.0.1:1"} {
		tr, err := New(t.Context(), "gateway", "gateway-1", endpoint, direct)
		if err != nil || !tr.On() {
			t.Fatal(err)
		}
		tr.Start("", "chat", trace.SpanKindClient).End()
		tr.Close(t.Context())
		if n := len(bodies()); n != i+1 {
			t.Errorf("endpoint %q: %d exports", endpoint, n)
		}
	}
}
