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

// TestReadmeTour runs the commands of the README's tour as they are written, and
// compares their output with the README, in which "…" matches any text.
func TestReadmeTour(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(harness.Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, tour, ok := strings.Cut(string(readme), "<!-- tour -->\n```console\n")
	tour, _, ok2 := strings.Cut(tour, "```\n<!-- /tour -->")
	if !ok || !ok2 {
		t.Fatal("README.md has no tour")
	}
	m := harness.One(t, harness.Options{})
	work := t.TempDir()
	if err := os.Symlink(filepath.Join(harness.Root(), "bin"), filepath.Join(work, "bin")); err != nil {
		t.Fatal(err)
	}
	steps := strings.Split(tour, "$ ")[1:]
	if len(steps) < 7 {
		t.Fatalf("only %d steps", len(steps))
	}
	for _, s := range steps {
		command, want, _ := strings.Cut(s, "\n")
		cmd := exec.Command("bash", "-c", command)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), m.Env()...)
		out, _ := cmd.CombinedOutput() // the exit code is not checked, because it is not 0 if the call is denied
		var pattern strings.Builder
		for i, part := range strings.Split(strings.TrimSpace(want), "…") {
			if i > 0 {
				pattern.WriteString("(?s:.*?)")
			}
			pattern.WriteString(regexp.QuoteMeta(part))
		}
		// Remove the lines about receipts and progress, which are printed to standard
		// error and are not in the README.
		got := regexp.MustCompile(`(?m)^(receipt r-c-.*|\r?\[=*.*events/s)\n?`).ReplaceAllString(string(out), "")
		if !regexp.MustCompile(`^` + pattern.String() + `$`).MatchString(strings.TrimSpace(got)) {
			t.Errorf("$ %s\nprinted\n%s\nthe README says\n%s", command, got, want)
		}
	}
}
