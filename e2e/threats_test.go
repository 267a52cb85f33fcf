package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestThreatModel shows that each test that the threat model names exists, and that each
// boundary in it names one.
func TestThreatModel(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(harness.Root(), "docs/explanation/threat-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "grep", "-rhoE", "--include=*_test.go", `^func Test[A-Za-z0-9]+\(`, "e2e", "pkg", "services")
	cmd.Dir = harness.Root()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	names, rows := regexp.MustCompile(`\bTest[A-Z][A-Za-z0-9]+\b`), 0
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| boundary") {
			continue
		}
		rows++
		found := names.FindAllString(line, -1)
		if len(found) == 0 {
			t.Errorf("no test shows: %s", line)
		}
		for _, name := range found {
			if !strings.Contains(string(out), "func "+name+"(") {
				t.Errorf("the test %s does not exist: %s", name, line)
			}
		}
	}
	if rows < 15 {
		t.Errorf("%d boundaries", rows)
	}
}
