package e2e

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestRunsOnce shows that only one instance each of audit, vault-broker and provision
// can run. A second instance exits within six seconds and names the first one; an
// instance that starts after the first was killed takes over.
func TestRunsOnce(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true})
	second := func(name string, start func()) {
		t.Helper()
		start()
		if code := m.Exited(name, 6*time.Second); code == 0 {
			t.Errorf("a second %s ended with code 0", name)
		}
	}
	for _, s := range []string{"audit", "vault-broker"} {
		second(s+"-again", func() { m.StartService(s+"-again", s) })
	}
	second("provision-again", func() {
		m.Start("provision-again", []string{harness.Bin(t, "binnacle"), "provision", "--keys", filepath.Join(m.Dir, "keys"), "--nats", m.NATS}, nil)
	})
	for _, s := range []string{"audit", "vault-broker", "provision"} {
		if !regexp.MustCompile(s + ` may run once, and runs already: ` + s + `-1 on \S+, process \d+`).MatchString(m.Log()) {
			t.Errorf("the second %s does not name the first", s)
		}
	}
	// The mesh still works after the rejected instances have exited.
	if out, err := m.CLI("call", "noop", "{}"); err != nil {
		t.Fatal(out, err)
	}
	before := strings.Count(m.Log(), "may run once")
	for _, s := range []string{"audit", "vault-broker", "provision"} {
		m.Kill(s)
		m.Restart(s)
	}
	m.WaitReady()
	eventually(t, "audit serves again", 30*time.Second, func() bool {
		_, err := m.CLI("events", "list")
		return err == nil
	})
	if after := strings.Count(m.Log(), "may run once"); after != before {
		t.Errorf("%d services took a dead process for one that runs", after-before)
	}
}
