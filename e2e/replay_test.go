package e2e

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

var unstartedLines = regexp.MustCompile(`view policy\.starts\s+at \d+\s+(\d+) lines  equal`)

// TestReplayUnstarted shows that replay agrees with the live view of allowed, unstarted
// calls: while the view has one, after the call has expired, and after a restart of
// policy.
func TestReplayUnstarted(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	m.Kill("session-runner")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _ = m.DoHeader(ctx, "POST", "/api/v1/packs/noop", "{}", map[string]string{"X-Binnacle-Timeout": "8", "X-Binnacle-Session": "s-unstarted", "Idempotency-Key": "unstarted"})
	lines := func() string {
		t.Helper()
		out, err := m.CLI("replay")
		found := unstartedLines.FindStringSubmatch(out)
		if err != nil || found == nil || !strings.Contains(out, "view keys.vault-broker") {
			t.Fatalf("%v\n%s", err, out)
		}
		return found[1]
	}
	if n := lines(); n != "1" {
		t.Fatalf("%s calls are unstarted, want 1", n)
	}
	for end := time.Now().Add(40 * time.Second); lines() != "0"; time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatal("the call does not expire")
		}
	}
	m.Kill("policy") // restart policy, so that it rebuilds the view
	m.Restart("policy")
	m.Restart("session-runner")
	m.WaitReady()
	if n := lines(); n != "0" {
		t.Fatalf("%s calls are unstarted after a restart, want 0", n)
	}
}
