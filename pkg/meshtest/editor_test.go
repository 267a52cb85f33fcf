package meshtest

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDevcontainer checks that the Dockerfile of the devcontainer installs exactly the
// Debian packages that scripts/test needs, with git and make, and that devcontainer.json and
// the files for the editor are JSON.
func TestDevcontainer(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(root + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	want := []string{"git", "make"}
	for _, m := range regexp.MustCompile(`(?m)^\s*need \S+ ([a-z0-9.+ -]+)$`).FindAllStringSubmatch(read("scripts/test"), -1) {
		want = append(want, strings.Fields(m[1])...)
	}
	_, list, _ := strings.Cut(read(".devcontainer/Dockerfile"), "--no-install-recommends")
	list, _, _ = strings.Cut(list, "&&")
	got := strings.Fields(strings.ReplaceAll(list, "\\", " "))
	slices.Sort(want)
	slices.Sort(got)
	if want = slices.Compact(want); !slices.Equal(got, want) || len(want) < 10 {
		t.Errorf("the Dockerfile installs %q, want %q", got, want)
	}
	for _, name := range []string{".devcontainer/devcontainer.json", ".vscode/settings.json", ".vscode/extensions.json"} {
		if !json.Valid([]byte(read(name))) {
			t.Errorf("%s is not JSON", name)
		}
	}
}
