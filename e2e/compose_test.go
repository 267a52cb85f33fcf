package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// TestComposeConfigured shows that the services on compose apply the llm document, the
// capture mode, the policy and the OpenTelemetry settings with which they are
// configured, and that the NATS server commits in groups in durability mode power.
func TestComposeConfigured(t *testing.T) {
	_, doc := harness.NewLLM(t)
	var spans atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/v1/traces") {
			spans.Add(1)
		}
	}))
	defer collector.Close()
	rego := filepath.Join(t.TempDir(), "own.rego")
	if err := os.WriteFile(rego, []byte(`package binnacle.p1

answer := {"verdict": "DENY", "reason_code": "DENY_NO_UPPER"} if input.tool == "cmd.upper"

else := {"verdict": "ALLOW", "reason_code": "RULE_REST"}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	m := harness.Compose(t, harness.Options{LLM: doc, Capture: "hashed", Power: true, Policies: []string{rego}, Env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL}})
	if name := m.Connect(t, "gateway").NC.ConnectedServerName(); name != bus.GroupCommitServer {
		t.Errorf("the NATS server is named %s", name)
	}
	if out, err := m.CLI("chat", "--model", "fixture/good", "--session", "s-conf", "a phrase of this test alone"); err != nil || !strings.Contains(out, "You said: a phrase of this test alone") {
		t.Errorf("chat with a provider of the llm document: %q, %v", out, err)
	}
	if out, err := m.CLI("call", "cmd.upper", `{"text":"x"}`); err == nil || !strings.Contains(err.Error(), "DENY_NO_UPPER") {
		t.Errorf("the policy of the configuration folder is not in force: %q, %v", out, err)
	}
	out, err := m.CLI("export", "--session", "s-conf", "--out", filepath.Join(t.TempDir(), "s-conf.tar"))
	if err != nil {
		t.Fatal(out, err)
	}
	events, err := m.CLI("events", "list", "--session", "s-conf", "--json")
	if err != nil || strings.Contains(events, "a phrase of this test alone") {
		t.Errorf("capture is not hashed, or the session cannot be listed: %v\n%s", err, events)
	}
	eventually(t, "a span reaches the collector", 20*time.Second, func() bool { return spans.Load() > 0 })
}
