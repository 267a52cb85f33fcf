//go:build bench

package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
)

// TestComposeLongStart shows that `docker compose up --wait` waits while audit rebuilds
// its view, although a single failed health check would already end the wait. The number
// of events is that of -history, but at most 200,000.
func TestComposeLongStart(t *testing.T) {
	events := min(*longest, 200_000)
	m := harness.Compose(t, harness.Options{Noop: true, Within: 10 * time.Minute})
	if _, err := post("http://"+m.Addr+"/api/v1/packs/noop", m.Token, "s-pattern", []byte(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}
	compose := func(args ...string) string {
		t.Helper()
		out, err := m.ComposeCLI(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	compose("stop")
	// dir becomes the folder of a mesh in one process, with the keys of m and the ledger
	// in m's volume.
	dir, ledger := t.TempDir(), m.Volume("ledger")
	err := errors.Join(os.Symlink(filepath.Join(m.Dir, "keys"), filepath.Join(dir, "keys")), os.Symlink(ledger, filepath.Join(dir, "nats")),
		os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := history.Write(t.Context(), dir, history.Shape{Events: events, Sessions: curveSessions}); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(ledger, func(p string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, 65532, 65532))
	})
	audit := m.Volume("audit")
	for _, f := range []string{"view.db", "tree"} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(audit, f)))
	}
	strict := "services:\n  audit: { healthcheck: { interval: 1s, retries: 1 } }\n"
	if err := errors.Join(err, os.WriteFile(filepath.Join(m.Dir, "compose.test.yaml"), []byte(strict), 0o644)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	compose("up", "-d", "--wait")
	took := time.Since(began)
	log := compose("logs", "--no-log-prefix", "audit")
	if n := strings.Count(log, "rebuilding a view"); n < 2 {
		t.Fatalf("audit reported %d times that it rebuilds its view; is the history long enough?\n%s", n, log)
	}
	m.WaitReady()
	add(row{Name: fmt.Sprintf("compose up --wait, %d events, without audit's view", events), Durability: "process", Value: fmt.Sprintf("%.1f s", took.Seconds())})
}
