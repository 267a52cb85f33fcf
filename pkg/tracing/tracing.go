// Package tracing exports OpenTelemetry spans if a collector is configured, and reads
// and writes the W3C trace context of events. Its callers choose names and attributes by
// the OpenTelemetry conventions for generative AI, and put no part of a prompt, an
// answer or a key into an attribute.
package tracing

import (
	"context"
	"os"
	"strings"

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

// New returns the tracer of an instance. endpoint is the base URL of a collector; the
// environment variables of OpenTelemetry override it, and without either no spans are
// created. Spans are sent in batches, in the background: if the collector does not
// respond, spans are lost, but no call waits or fails. New returns an error if the
// exporter cannot be created.
func New(ctx context.Context, service, instance, endpoint string) (*Tracer, error) {
	var options []otlptracehttp.Option
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		if endpoint == "" {
			return &Tracer{}, nil
		}
		options = append(options, otlptracehttp.WithEndpointURL(strings.TrimSuffix(endpoint, "/")+"/v1/traces"))
	}
	x, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, err
	}
	p := sdk.NewTracerProvider(sdk.WithBatcher(x), sdk.WithResource(resource.NewSchemaless(
		attribute.String("service.name", "binnacle-"+service), attribute.String("service.instance.id", instance))))
	return &Tracer{p.Tracer("binnacle"), p.Shutdown}, nil
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
