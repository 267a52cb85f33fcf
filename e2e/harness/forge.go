package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Forge runs the trusted core's test that forges n packs with insiders' keys and
// compares its verdicts with those of the second verifier, run by node. It returns the
// test's output.
func Forge(node string, n int) (string, error) {
	cmd := exec.Command("go", "test", "-count=1", "-v", "-timeout=1h", "-run=^TestInsiders$", "./evidence")
	cmd.Dir = filepath.Join(Root(), "pkg/core")
	cmd.Env = append(os.Environ(), "BINNACLE_NODE="+node, "BINNACLE_MUTANTS="+strconv.Itoa(n))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
