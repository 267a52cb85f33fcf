package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Forge runs the test in the trusted core that forges n packs with the keys of insiders
// and compares the verdicts of both verifiers. node is the path of the program that runs
// the second verifier. Forge returns the test's output, and an error if the test fails.
func Forge(node string, n int) (string, error) {
	cmd := exec.Command("go", "test", "-count=1", "-v", "-timeout=1h", "-run=^TestInsiders$", "./evidence")
	cmd.Dir = filepath.Join(Root(), "pkg/core")
	cmd.Env = append(os.Environ(), "BINNACLE_NODE="+node, "BINNACLE_MUTANTS="+strconv.Itoa(n))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
