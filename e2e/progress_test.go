package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// progressPacks returns a folder with a pack that reports its progress, one that reports without
// end, and one that reports without a manifest that declares it.
func progressPacks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{
		"flood.sh":        "#!/bin/busybox sh\nwhile :; do echo '{\"_progress\":{\"percent\":50,\"message\":\"without end\"}}' >&2; done\n",
		"flood.pack.yaml": "progress: true\ntimeout_s: 4\n",
		"plain.sh":        "#!/bin/busybox sh\necho '{\"_progress\":{\"percent\":50}}' >&2\nexit 3\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{"bin/packs/steps": "steps", "examples/packs/steps/steps.pack.yaml": "steps.pack.yaml"} {
		body, err := os.ReadFile(filepath.Join(harness.Root(), from))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), body, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestProgress shows, on one process and with one process per service, two gateways and two
// session-runners, that the progress which a pack reports reaches clients of MCP in rising
// percentages, and the state of a job at each gateway, also after a gateway was killed and started
// again, and as a stream that ends with the outcome; and that the reports of a pack that reports without end cause no events on the ledger and
// only one event of the response's stream. Reports that no manifest declares remain part of
// standard error.
func TestProgress(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Packs: progressPacks(t)})
			second := m.As(m.Token)
			if name == "processes" {
				m.StartService("session-runner-b", "session-runner")
				second.Addr = m.StartGateway("gateway-b")
			}
			progressOverMCP(t, second)
			var job struct {
				CallID string `json:"call_id"`
			}
			r, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/cmd.steps", `{"steps":40,"pause_ms":300}`, map[string]string{"Prefer": "respond-async", "X-Binnacle-Session": "s-steps"})
			if err != nil || r.Status != 202 {
				t.Fatal(err, r)
			}
			r.JSON(t, &job)
			jobProgress(t, second, job.CallID)
			if name == "processes" {
				m.Restart("gateway")
				m.WaitReady()
			}
			jobProgress(t, m, job.CallID)
			states, err := second.DoHeader(t.Context(), "GET", "/api/v1/calls/"+job.CallID, "", map[string]string{"Accept": "text/event-stream"})
			if all := strings.Split(strings.TrimSpace(string(states.Body)), "\n\n"); err != nil || len(all) < 2 || !strings.Contains(all[0], `"progress":{`) || !strings.Contains(all[len(all)-1], `"status":"succeeded"`) {
				t.Errorf("a stream of the states, at the gateway that did not propose the job: %v %q", err, all)
			}
			if out := cli(t, m, "job", "wait", job.CallID); strings.Contains(out, "progress") {
				t.Error(out)
			}
			r, err = m.DoHeader(t.Context(), "POST", "/api/v1/packs/cmd.flood", `{}`, map[string]string{"Accept": "text/event-stream", "X-Binnacle-Session": "s-flood"})
			if err != nil || strings.Count(string(r.Body), "event: state") != 1 || !strings.Contains(string(r.Body), `"percent":50,"message":"without end"`) || !strings.Contains(string(r.Body), "stopped after 4000 ms") {
				t.Errorf("a flood: %v %s", err, r.Body)
			}
			if out := cli(t, m, "events", "list", "--session", "s-flood", "--json"); strings.Count(out, "\n") > 12 || strings.Contains(out, "without end") {
				t.Errorf("events of a flood: %s", out)
			}
			r, err = m.Do(t.Context(), "POST", "/api/v1/packs/cmd.plain", "s-plain", `{}`)
			if err != nil || !strings.Contains(string(r.Body), `_progress`) {
				t.Errorf("reports that the manifest does not declare are standard error: %v %s", err, r.Body)
			}
			proves(t, m)
		})
	}
}

// jobProgress waits until the state of a call has progress.
func jobProgress(t *testing.T, m *harness.Mesh, id string) {
	t.Helper()
	eventually(t, "the state has the progress", 30*time.Second, func() bool {
		r, err := m.Do(t.Context(), "GET", "/api/v1/calls/"+id, "", "")
		if err != nil {
			t.Fatal(err)
		}
		var s struct {
			Status   string
			Progress *struct {
				Percent int
				Message string
			}
		}
		if err := json.Unmarshal(r.Body, &s); err != nil || s.Status == "succeeded" {
			t.Fatalf("%v %s", err, r.Body)
		}
		return s.Progress != nil && s.Progress.Percent > 0 && strings.HasPrefix(s.Progress.Message, "step ")
	})
}

// progressOverMCP calls cmd.steps over MCP and checks the notifications of its progress.
func progressOverMCP(t *testing.T, m *harness.Mesh) {
	t.Helper()
	var mu sync.Mutex
	var got []mcp.ProgressNotificationParams
	cs := mcpClient(t, m, "s-mcp", "2025-11-25", &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, *r.Params)
	}})
	params := &mcp.CallToolParams{Name: "cmd.steps", Arguments: map[string]int{"steps": 20, "pause_ms": 250}}
	params.SetProgressToken("steps")
	if res, err := cs.CallTool(t.Context(), params); err != nil || res.IsError {
		t.Fatal(res, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) < 2 || len(got) > 12 {
		t.Errorf("%d notifications: %+v", len(got), got)
	}
	last := 0.0
	for _, p := range got {
		if p.ProgressToken != "steps" || p.Total != 100 || p.Progress <= last || p.Progress > 100 || p.Progress >= 1 && !strings.HasPrefix(p.Message, "step ") {
			t.Errorf("after %v: %+v", last, p)
		}
		last = p.Progress
	}
}
