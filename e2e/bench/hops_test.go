//go:build bench

package bench

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// hops measures how long a call to a model takes in each of five steps on the way from
// the client to the provider and back, computed from the spans that the mesh exports.
func hops(t *testing.T) {
	var mu sync.Mutex
	traces := map[string]map[string]*otlp.Span{}
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var req collector.ExportTraceServiceRequest
		if err != nil || proto.Unmarshal(b, &req) != nil {
			t.Error("a batch of spans cannot be read")
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rs := range req.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					id, name := string(s.TraceId), s.Name
					if traces[id] == nil {
						traces[id] = map[string]*otlp.Span{}
					}
					traces[id][name] = s
				}
			}
		}
	}))
	defer srv.Close()
	const calls = 1000
	up := mock(t)
	m, key := fresh(t, up.URL, "OTEL_EXPORTER_OTLP_ENDPOINT="+srv.URL, "OTEL_BSP_SCHEDULE_DELAY=50")
	w := &rivalAt{base: "http://" + m.Addr, token: key, model: "mock/m"}
	body := []byte(`{"model":"mock/m","messages":[{"role":"user","content":"say hi"}]}`)
	for i := range warm + calls {
		if i == warm {
			time.Sleep(200 * time.Millisecond)
			mu.Lock()
			clear(traces)
			mu.Unlock()
		}
		if _, err := timed(w, "s-hops", body, false); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second)
	names := []string{"to policy: read, proposed, delivered", "at policy: decided, reserved, signed, stored", "to the provider: delivered, verified, claimed", "at the provider", "to the client: recorded, signed, delivered"}
	took := make([][]time.Duration, len(names))
	mu.Lock()
	defer mu.Unlock()
	for _, spans := range traces {
		edge, decide, chat := spans["POST /v1/chat/completions"], spans["decide llm.chat"], spans["chat m"]
		if edge == nil || decide == nil || chat == nil {
			continue
		}
		at := []uint64{edge.StartTimeUnixNano, decide.StartTimeUnixNano, decide.EndTimeUnixNano, chat.StartTimeUnixNano, chat.EndTimeUnixNano, edge.EndTimeUnixNano}
		for i := range names {
			took[i] = append(took[i], time.Duration(int64(at[i+1]-at[i])))
		}
	}
	if n := len(took[0]); n < calls/2 {
		t.Fatalf("spans of %d calls of %d: %s", n, calls, strings.Join(names, "; "))
	}
	for i, name := range names {
		slices.Sort(took[i])
		add(row{Name: fmt.Sprintf("hop %d, %s", i+1, name), Durability: "process", Clients: 1, P50us: us(took[i], .5), P99us: us(took[i], .99)})
	}
}
