package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Forge runs the tests of the trusted core that compare both verifiers. One forges n
// packs, and one n ledgers and exports of tenants, with the keys of insiders; the third
// one verifies archives. node is the path of the program that runs the second verifier.
// Forge returns the output of the tests, and an error if one fails.
func Forge(node string, n int) (string, error) {
	cmd := exec.Command("go", "test", "-count=1", "-v", "-timeout=1h", "-run=^Test((Cell)?Insiders|Archive)$", "./evidence")
	cmd.Dir = filepath.Join(Root(), "pkg/core")
	cmd.Env = append(os.Environ(), "BINNACLE_NODE="+node, "BINNACLE_MUTANTS="+strconv.Itoa(n))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// OnMesh runs the test that starts a mesh with several tenants and verifies its ledger and
// its tenants' exports with both verifiers. The parameter and the results are those of
// Forge, for this test.
func OnMesh(node string) (string, error) {
	cmd := exec.Command("go", "test", "-count=1", "-run=^TestTenantExport$", "./mesh")
	cmd.Dir = filepath.Join(Root(), "services/binnacle")
	cmd.Env = append(os.Environ(), "BINNACLE_NODE="+node)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
