package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// differs lists, by release, the decisions that today's code takes otherwise
// than it did, and why. It may only grow for a release whose code decided
// something that no recorded policy says.
var differs = map[string][]string{
	// Release 0.1 took schemas that do not close their objects as open. Since
	// 0.2 they are closed, and what is unknown there is denied.
	"0.1.0": {
		"recorded ALLOW RULE_SCOPED_CALL, decided again DENY ARGS_UNKNOWN_FIELD",
		"recorded DENY ARGS_UNKNOWN_FIELD, decided again DENY SCHEMA_VIOLATION",
	},
}

// TestReleases: the ledgers that earlier releases left are restored, replayed,
// verified and gone on with by today's code.
func TestReleases(t *testing.T) {
	dir := filepath.Join(harness.Root(), "e2e/testdata/releases")
	files, err := filepath.Glob(filepath.Join(dir, "*.backup"))
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		version := strings.TrimSuffix(filepath.Base(f), ".backup")
		t.Run(version, func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "data")
			if out, err := exec.Command(harness.Bin(t, "binnacle"), "restore", "--in", f, "--data", data).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			m := harness.One(t, harness.Options{Dir: data})
			out, err := m.CLI("replay")
			for _, want := range differs[version] {
				if !strings.Contains(out, want) {
					t.Errorf("no decision is %q", want)
				}
			}
			if n := strings.Count(out, "DIFFERS"); n != len(differs[version]) || (err == nil) != (n == 0) || strings.Count(out, "equal\n") < 4 {
				t.Errorf("%v\n%s", err, out)
			}
			pack := filepath.Join(t.TempDir(), "p.tar")
			if out, err := m.CLI("export", "--session", "s-release", "--out", pack); err != nil {
				t.Fatal(out, err)
			}
			was, err1 := os.ReadFile(filepath.Join(dir, version+".tar"))
			is, err2 := os.ReadFile(pack)
			if err1 != nil || err2 != nil || !bytes.Equal(was, is) {
				t.Errorf("the pack is not, byte for byte, the one that the release made (%v %v)", err1, err2)
			}
			if out, err := m.CLI("verify", pack); err != nil {
				t.Error(out, err)
			}
			// Its session goes on. What may be called follows from the policy that
			// was in force, and from tools that may have drifted; a denial is the same
			// for all.
			if out, err := m.CLI("call", "cmd.nobody", "{}", "--session", "s-release"); err == nil || !strings.Contains(err.Error(), "UNKNOWN_TOOL") {
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
