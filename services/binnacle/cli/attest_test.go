package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/attest"
)

// TestAttestVerifyBase shows that an attestation that names its own commit as the base, so that no
// file differs, does not satisfy --all: the base is to be that of the reader.
func TestAttestVerifyBase(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	for _, argv := range [][]string{{"init", "-q", "-b", "main"}, {"commit", "-qm", "base", "--allow-empty"}, {"switch", "-qc", "change"}, {"add", "f"}, {"commit", "-qm", "change"}} {
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"}, argv...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %v", out, err)
		}
	}
	commit, err := (&attest.Repository{Dir: dir}).Commit(t.Context(), "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := json.Marshal(attest.Bundle{Format: attest.Format, Base: commit, Commit: commit, Packs: [][]byte{}})
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(t.TempDir(), "bundle")
	if err := os.WriteFile(bundle, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	verify := []string{"attest", "verify", bundle, "--dir", dir, "--root", "k-1", "--all"}
	if code, out, errOut := invoke(t, verify...); code != exitUsage || !strings.Contains(errOut, "--base") {
		t.Errorf("without --base: exit code %d %s %s", code, out, errOut)
	}
	if code, out, errOut := invoke(t, append(verify, "--base", "main")...); code != exitFailed || !strings.Contains(errOut, "1 of 1 files are not attributed") {
		t.Errorf("with --base: exit code %d %s %s", code, out, errOut)
	}
}
