package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestPipelineKilled runs the scripts for pipelines and artifacts with two instances of work, and a
// run while the NATS server is stopped. It kills both while each of eight runs waits in a different
// one of its eight steps, approves the steps while no instance runs, and checks that every run then
// continues to its end: each step was called once, and the evidence of one of the runs verifies. The
// gateway is killed while the webhook of jobs refuses the notices of the runs, and then each run has
// one that is accepted. A schedule continues, too, and none of its times is recorded twice. Both
// instances of work then have the same views, which replay rebuilds.
func TestPipelineKilled(t *testing.T) {
	t.Parallel()
	hook := newNoticeReceiver(t)
	m := harness.Processes(t, harness.Options{Env: []string{"BINNACLE_JOB_WEBHOOK=" + hook.URL}})
	m.StartService("work-b", "work")
	must := func(m *harness.Mesh, args ...string) string {
		t.Helper()
		out, err := m.CLI(args...)
		if err != nil {
			t.Fatal(args, out, err)
		}
		return out
	}
	dir := t.TempDir()
	ask := filepath.Join(dir, "ask.json")
	if err := os.WriteFile(ask, []byte(`{"id":"ask","scope":"agent","subject":"admin","rules":[{"kinds":["tool.pipeline.approve"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED","approval":{"quorum":1,"timeout_ms":600000}}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	namedScripts(t, m, "pipeline", "artifact")
	pausedRun(t, m)
	must(m, "principals", "register", "bob", "person")
	must(m, "roles", "grant", "bob", "approver")
	must(m, "policy", "activate", ask)
	must(m, "artifact", "put", ask)
	bob := m.As(m.TokenFor("bob", "approvals:vote", "audit:read"))

	runs := make([]string, 8)
	var starts sync.WaitGroup
	for k := range runs {
		file := filepath.Join(dir, fmt.Sprintf("%d.json", k))
		if err := os.WriteFile(file, eightSteps(k), 0o644); err != nil {
			t.Fatal(err)
		}
		starts.Go(func() {
			out, err := m.CLI("pipeline", "run", file, "--async", "--session", fmt.Sprintf("s-killed-%d", k))
			if err != nil {
				t.Error(out, err)
			}
			runs[k] = strings.TrimSpace(strings.SplitN(out, "\n", 2)[0])
		})
	}
	starts.Wait()
	waiting := func() (ids []string) {
		var all []struct {
			CallID string `json:"call_id"`
		}
		if err := json.Unmarshal([]byte(must(bob, "approvals", "list", "--json")), &all); err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			ids = append(ids, a.CallID)
		}
		return ids
	}
	eventually(t, "each run waits in its step", time.Minute, func() bool { return len(waiting()) == len(runs) })
	tick := filepath.Join(dir, "tick.json")
	if err := os.WriteFile(tick, []byte(`{"name":"tick","steps":[{"id":"one","pack":"cmd.upper","input":{"text":"tick"}}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	schedule := strings.TrimSpace(must(m, "pipeline", "schedule", tick, "--cron", "@every 1s", "--session", "s-killed-schedule"))
	eventually(t, "a time of the schedule is recorded", time.Minute, func() bool { return len(scheduled(t, m)) > 0 })
	m.Kill("work")
	m.Kill("work-b")
	before := len(scheduled(t, m))
	for _, id := range waiting() {
		must(bob, "approvals", "grant", id, "--reason", "go on")
	}
	m.Restart("work")
	m.Restart("work-b")
	eventually(t, "the schedule goes on", time.Minute, func() bool { return len(scheduled(t, m)) > before+1 })
	must(m, "job", "cancel", schedule)
	for k, id := range runs {
		out := must(m, "job", "wait", id)
		if !strings.Contains(out, `"SEVEN"`) && !strings.Contains(out, `"approved": true`) {
			t.Errorf("run %d: %s", k, out)
		}
		session := fmt.Sprintf("s-killed-%d", k)
		if n := strings.Count(must(m, "events", "list", "--session", session, "--type", contract.EventCallProposed), "\n"); n < 9 || n > 10 { // nine, and perhaps headings
			t.Errorf("run %d: %d calls were proposed", k, n)
		}
	}
	eventually(t, "the webhook refuses a notice", time.Minute, func() bool { return hook.attempts() > 0 })
	m.Kill("gateway")
	hook.accept()
	m.Restart("gateway")
	m.WaitReady()
	for _, id := range runs {
		eventually(t, "the webhook accepts the notice of "+id, 2*time.Minute, func() bool { return hook.status(id) == contract.Succeeded })
	}
	eventually(t, "all notices are recorded", time.Minute, func() bool {
		return strings.Count(must(m, "events", "list", "--type", contract.EventJobNotified), contract.EventJobNotified) >= len(runs)
	})
	seen := map[string]bool{}
	for _, at := range scheduled(t, m) {
		if seen[at] {
			t.Errorf("the time %s of the schedule is recorded twice", at)
		}
		seen[at] = true
	}
	foldedAlike(t, m, "work", 2)
	tar := filepath.Join(dir, "killed.tar")
	must(m, "export", "--session", "s-killed-3", "--out", tar)
	if out := must(m, "verify", tar); !strings.Contains(out, "VERIFIED") {
		t.Error(out)
	}
}

// pausedRun shows that a run whose caller waits for it ends although the ledger does not respond for
// three seconds.
func pausedRun(t *testing.T, m *harness.Mesh) {
	t.Helper()
	naps := write(t, "naps.json", `{"name":"naps","steps":[{"id":"nap","pack":"cmd.spin","map":"${{ inputs.n }}","parallel":1,"input":{"how":"nap"}}],"output":"${{ steps.nap.output[5].result }}"}`)
	ended := make(chan string)
	go func() {
		out, err := m.CLI("pipeline", "run", naps, "--input", "n=[1,2,3,4,5,6]", "--session", "s-naps")
		ended <- fmt.Sprint(out, err)
	}()
	eventually(t, "the run has begun", time.Minute, func() bool {
		out, err := m.CLI("pipeline", "runs")
		return err == nil && strings.Contains(out, "naps")
	})
	m.Signal("nats", syscall.SIGSTOP)
	time.Sleep(3 * time.Second)
	m.Signal("nats", syscall.SIGCONT)
	if out := <-ended; !strings.Contains(out, "rested") {
		t.Errorf("a run during which the ledger did not respond: %s", out)
	}
}

// scheduled returns the times in the events schedule_fired.
func scheduled(t *testing.T, m *harness.Mesh) (out []string) {
	t.Helper()
	r, err := m.Do(t.Context(), "GET", "/api/v1/events?type="+contract.EventScheduleFired, "", "")
	if err != nil || r.Status != http.StatusOK {
		t.Fatal(err, r)
	}
	for line := range strings.Lines(string(r.Body)) {
		var doc struct {
			Event struct {
				Data struct {
					At string `json:"at"`
				} `json:"data"`
			} `json:"event"`
		}
		if err := json.Unmarshal([]byte(line), &doc); err != nil || doc.Event.Data.At == "" {
			t.Fatal(err, line)
		}
		out = append(out, doc.Event.Data.At)
	}
	return out
}

// eightSteps returns a pipeline of eight steps that waits for an approval in step k.
func eightSteps(k int) []byte {
	words := []string{"zero", "one", "two", "three", "four", "five", "six", "seven"}
	var steps []map[string]any
	for i, w := range words {
		if i == k {
			steps = append(steps, map[string]any{"id": w, "approval": "go on after " + w + "?"})
			continue
		}
		steps = append(steps, map[string]any{"id": w, "pack": "cmd.upper", "input": map[string]string{"text": w}})
	}
	raw, _ := json.Marshal(map[string]any{"name": fmt.Sprintf("eight-%d", k), "steps": steps})
	return raw
}
