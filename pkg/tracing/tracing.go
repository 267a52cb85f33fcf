// Package tracing exports OpenTelemetry spans if a collector is configured, and reads
// and writes the W3C trace context of events. Its callers choose names and attributes by
// the OpenTelemetry conventions for generative AI, and put no part of a prompt, an
// answer or a key into an attribute.
package tracing

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Tracer creates the spans of one instance. A nil Tracer and the zero value create none.
type Tracer struct {
	t    trace.Tracer
	stop func(context.Context) error
}

// Collector returns the URL to which spans are sent, or "" if there is none. endpoint is the
// base URL of a collector; the environment variables of OpenTelemetry override it.
func Collector(endpoint string) string {
	if u := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"); u != "" {
		return u
	}
	base := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), endpoint)
	if base == "" {
		return ""
	}
	return strings.TrimSuffix(base, "/") + "/v1/traces"
}

// exportTime is the maximum duration of a request to the collector.
const exportTime = 10 * time.Second

// New returns the tracer of an instance, which sends spans to Collector(endpoint); without a
// collector no spans are created. via returns what sends the requests, with a configuration of TLS,
// which is nil for the default. Spans are sent in batches, in the background: if the collector does
// not respond, spans are lost, but no call waits or fails. New returns an error if the exporter
// cannot be created, or a file of the environment's certificates cannot be read.
func New(ctx context.Context, service, instance, endpoint string, via func(*tls.Config) http.RoundTripper) (*Tracer, error) {
	to := Collector(endpoint)
	if to == "" {
		return &Tracer{}, nil
	}
	conf, err := tlsConfig()
	if err != nil {
		return nil, err
	}
	x, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(to), otlptracehttp.WithHTTPClient(&http.Client{Transport: via(conf), Timeout: exportTime}))
	if err != nil {
		return nil, err
	}
	p := sdk.NewTracerProvider(sdk.WithBatcher(x), sdk.WithResource(resource.NewSchemaless(
		attribute.String("service.name", "binnacle-"+service), attribute.String("service.instance.id", instance))))
	return &Tracer{p.Tracer("binnacle"), p.Shutdown}, nil
}

// tlsConfig returns the configuration of TLS that the environment variables of OpenTelemetry give,
// or nil if they give none.
func tlsConfig() (*tls.Config, error) {
	variable := func(name string) string {
		return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_"+name), os.Getenv("OTEL_EXPORTER_OTLP_"+name))
	}
	ca, cert, key := variable("CERTIFICATE"), variable("CLIENT_CERTIFICATE"), variable("CLIENT_KEY")
	if ca+cert+key == "" {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %s has no certificate in PEM", ca)
		}
	}
	if cert+key != "" {
		c, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: %w", err)
		}
		conf.Certificates = []tls.Certificate{c}
	}
	return conf, nil
}

// Close sends the remaining spans, until ctx is done.
func (t *Tracer) Close(ctx context.Context) {
	if t != nil && t.stop != nil {
		_ = t.stop(ctx)
	}
}

// On reports whether spans are exported.
func (t *Tracer) On() bool { return t != nil && t.t != nil }

// Start begins a span below the trace context parent, or a new trace if parent is empty
// or malformed. If spans are not exported, the span does nothing.
func (t *Tracer) Start(parent, name string, kind trace.SpanKind, attrs ...attribute.KeyValue) trace.Span {
	if !t.On() {
		return noop.Span{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
	_, span := t.t.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attrs...))
	return span
}

// Context returns the W3C trace context (traceparent) of a span, or its second argument
// if the span has none.
func Context(s trace.Span, otherwise string) string {
	c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpan(context.Background(), s), c)
	if v := c["traceparent"]; v != "" {
		return v
	}
	return otherwise
}
