package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Forge has the trusted core's own test forge n packs with insiders' keys and
// compare its verdicts with those of the second verifier, which node runs. It
// returns what the test printed.
func Forge(node string, n int) (string, error) {
	cmd := exec.Command("go", "test", "-count=1", "-v", "-timeout=1h", "-run=^TestInsiders$", "./evidence")
	cmd.Dir = filepath.Join(Root(), "pkg/core")
	cmd.Env = append(os.Environ(), "BINNACLE_NODE="+node, "BINNACLE_MUTANTS="+strconv.Itoa(n))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
