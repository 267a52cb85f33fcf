package e2e

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
)

// TestTraces shows that one trace includes the client, the mesh and the provider, that the spans
// name the tenant, that the span of the request to the provider follows the GenAI conventions of
// OpenTelemetry and does not contain the prompt, that at least five events of the call have the
// trace context, that /metrics has counters for the model, and that the spans are sent through the
// egress-broker.
func TestTraces(t *testing.T) {
	var mu sync.Mutex
	spans := map[string]*otlp.Span{}
	by := map[string]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		var req collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(b, &req); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rs := range req.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					spans[s.Name] = s
					for _, a := range rs.Resource.Attributes {
						if a.Key == "service.name" {
							by[s.Name] = a.Value.GetStringValue()
						}
					}
				}
			}
		}
	}))
	defer srv.Close()
	p, doc := harness.NewProviders(t, nil)
	m := harness.Processes(t, harness.Options{LLM: doc, Env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + srv.URL, "OTEL_BSP_SCHEDULE_DELAY=100"}})
	const id = "0af7651916cd43dd8448eb211c80319c"
	h := bearer(m, "s-trace")
	h["Traceparent"] = "00-" + id + "-b7ad6b7169203331-01"
	const prompt = "very private words"
	if r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", h, `{"model":"anthropic/t-good","temperature":0.5,"messages":[{"role":"user","content":"`+prompt+`"}]}`); r.StatusCode != 200 {
		t.Fatal(all(t, r))
	}
	get := func(name string) *otlp.Span { mu.Lock(); defer mu.Unlock(); return spans[name] }
	eventually(t, "the spans are exported", 10*time.Second, func() bool {
		return get("POST /v1/chat/completions") != nil && get("decide llm.chat") != nil && get("chat t-good") != nil
	})
	edge, decide, client := get("POST /v1/chat/completions"), get("decide llm.chat"), get("chat t-good")
	for _, s := range []*otlp.Span{edge, decide, client} {
		if hex.EncodeToString(s.TraceId) != id {
			t.Errorf("span %s is in trace %x", s.Name, s.TraceId)
		}
		if !slices.ContainsFunc(s.Attributes, func(a *common.KeyValue) bool {
			return a.Key == "binnacle.tenant" && a.Value.GetStringValue() == "default"
		}) {
			t.Errorf("span %s does not name the tenant", s.Name)
		}
	}
	if hex.EncodeToString(edge.ParentSpanId) != "b7ad6b7169203331" || string(client.ParentSpanId) != string(edge.SpanId) || string(decide.ParentSpanId) != string(edge.SpanId) {
		t.Error("the spans do not hang together")
	}
	if by["chat t-good"] != "binnacle-llm-router" || client.Kind != otlp.Span_SPAN_KIND_CLIENT || edge.Kind != otlp.Span_SPAN_KIND_SERVER {
		t.Errorf("%v %v", by, client.Kind)
	}
	attrs := map[string]string{}
	for _, a := range client.Attributes {
		attrs[a.Key] = a.Value.String()
		if strings.Contains(a.Value.String(), prompt) {
			t.Error("a span holds the prompt")
		}
	}
	for _, k := range []string{"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.request.temperature", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.response.id", "gen_ai.conversation.id"} {
		if attrs[k] == "" {
			t.Errorf("no attribute %s", k)
		}
	}
	if got := p.Requests("anthropic/t-good")[0].Header.Get("Traceparent"); got != "00-"+id+"-"+hex.EncodeToString(client.SpanId)+"-01" {
		t.Errorf("the provider got %q", got)
	}
	out, err := m.CLI("events", "list", "--session", "s-trace", "--json")
	if err != nil || strings.Count(out, id) < 5 {
		t.Errorf("%d events carry the trace: %v", strings.Count(out, id), err)
	}
	eventually(t, "/metrics has a series of the model", 5*time.Second, func() bool {
		r, err := http.Get("http://" + m.Addr + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body := all(t, r)
		return strings.Contains(body, `binnacle_llm_attempts_total{model="t-good",outcome="succeeded",provider="anthropic"} 1`) && strings.Contains(body, `binnacle_llm_tokens_total{model="t-good",provider="anthropic",type="input"} 25`)
	})
	eventually(t, "the flows to the collector are on the ledger", time.Minute, func() bool {
		senders := map[string]bool{}
		for _, f := range endpointFlows(t, m) {
			senders[f.Sender] = senders[f.Sender] || f.Endpoint == egress.EndpointTraces && !f.denied && f.BytesOut > 0
		}
		return senders["gateway"] && senders["policy"] && senders["llm-router"]
	})
}
