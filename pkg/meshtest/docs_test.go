package meshtest

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestKnownFailures checks that every test that docs/reference/known-failures.md names
// exists.
func TestKnownFailures(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/known-failures.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("git", "-C", "../..", "grep", "--untracked", "-hoE", `^func (Test|Fuzz)[A-Za-z0-9]+`, "--", "*_test.go").Output()
	if err != nil {
		t.Fatalf("git grep: %v", err)
	}
	have := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		have[strings.TrimPrefix(strings.TrimSpace(line), "func ")] = true
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 50 {
		t.Fatalf("only %d tests are named", len(named))
	}
	for _, m := range named {
		if !have[m[1]] {
			t.Errorf("%s does not exist", m[1])
		}
	}
}
