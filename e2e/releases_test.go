package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestReleases shows that the ledgers of earlier releases can be restored, replayed,
// verified and continued by the current code, and that there is a ledger of each release
// that CHANGELOG.md does not mark as unreleased.
func TestReleases(t *testing.T) {
	dir := filepath.Join(harness.Root(), "e2e/testdata/releases")
	files, err := filepath.Glob(filepath.Join(dir, "*.backup"))
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	log, err := os.ReadFile(filepath.Join(harness.Root(), "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	released := regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+)(?: \(\d{4}-\d\d-\d\d\))?:`).FindAllStringSubmatch(string(log), -1)
	if len(released) < 3 {
		t.Fatal(released)
	}
	for _, r := range released {
		if !slices.Contains(files, filepath.Join(dir, r[1]+".backup")) {
			t.Errorf("CHANGELOG.md does not mark %s as unreleased, and no ledger of it is recorded", r[1])
		}
	}
	for _, f := range files {
		version := strings.TrimSuffix(filepath.Base(f), ".backup")
		t.Run(version, func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "data")
			if out, err := exec.Command(harness.Bin(t, "binnacle"), "restore", "--in", f, "--data", data).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			m := harness.One(t, harness.Options{Dir: data})
			// Every recorded decision has the same result when it is taken again with
			// the schema rules of its release.
			out, err := m.CLI("replay", "--json")
			var rep struct {
				Decisions, Redecided int
				Differences          []string
				Equal                bool
			}
			if err != nil || json.Unmarshal([]byte(out), &rep) != nil || !rep.Equal || rep.Decisions < 8 || rep.Redecided != rep.Decisions || len(rep.Differences) > 0 {
				t.Errorf("%v\n%s", err, out)
			}
			pack := filepath.Join(t.TempDir(), "p.tar")
			if out, err := m.CLI("export", "--session", "s-release", "--out", pack); err != nil {
				t.Fatal(out, err)
			}
			// The pack that the release exported verifies. A new export has a newer
			// checkpoint and the same events, byte for byte.
			was := filepath.Join(dir, version+".tar")
			tips := map[string]string{was: "tip       bound by checkpoint", pack: "tip       bound by checkpoint"}
			if version < "0.5" {
				tips[was] = "tip       attested by audit's manifest only"
			}
			for file, tip := range tips {
				if out, err := m.CLI("verify", file); err != nil || !strings.Contains(out, tip) {
					t.Error(out, err)
				}
			}
			for _, part := range []string{"events.jsonl", "decisions.jsonl", "receipts.jsonl"} {
				if a, b := entry(t, was, part), entry(t, pack, part); len(a) == 0 || !bytes.Equal(a, b) {
					t.Errorf("%s is not, byte for byte, the one that the release exported", part)
				}
			}
			ledger := filepath.Join(t.TempDir(), "l.jsonl")
			if out, err := m.CLI("export", "--ledger", "--out", ledger); err != nil {
				t.Fatal(out, err)
			}
			if out, err := m.CLI("verify", ledger); err != nil || !strings.Contains(out, "computed again") {
				t.Error(out, err)
			}
			// The session can be continued. Whether calls are allowed depends on the
			// recorded policy and on whether tools have changed, but the form of a
			// denial is the same for every release.
			if out, err := m.CLI("call", "cmd.unknown", "{}", "--session", "s-release"); err == nil || !strings.Contains(err.Error(), "UNKNOWN_TOOL") {
				t.Error(out, err)
			}
			if out, err := m.CLI("export", "--session", "s-release", "--out", pack); err != nil {
				t.Fatal(out, err)
			}
			if out, err := m.CLI("verify", pack); err != nil {
				t.Error(out, err)
			}
		})
	}
}

// entry returns the content of one file in an evidence pack.
func entry(t *testing.T, pack, name string) []byte {
	t.Helper()
	out, err := exec.Command("tar", "-xf", pack, "--to-stdout", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}
