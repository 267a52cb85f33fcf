package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/manual"
)

// TestReference checks that docs/reference/cli.md equals the generated reference.
func TestReference(t *testing.T) {
	b, err := os.ReadFile("../../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := manual.Replace(b, manual.Markdown(testRoot()))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Error("docs/reference/cli.md is not what the commands give: make gen")
	}
}

// TestManual checks that each command that is not hidden has a page with the required
// sections, its short description and its flags, and that there are no other pages.
func TestManual(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	var out, errOut bytes.Buffer
	if code := execute(t.Context(), []string{"manual", dir}, nil, &out, &errOut); code != exitOK {
		t.Fatal(errOut.String())
	}
	n := 0
	manual.Walk(testRoot(), func(cmd *cobra.Command) {
		n++
		file := filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1")
		page, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			return
		}
		plain := strings.NewReplacer(`\-`, "-", `\[u2026]`, "…").Replace(string(page))
		for _, want := range []string{".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH EXAMPLES", cmd.Short} {
			if !strings.Contains(plain, want) {
				t.Errorf("%s does not hold %q", file, want)
			}
		}
		for _, f := range manual.Flags(cmd) {
			if !strings.Contains(plain, "--"+f.Name) {
				t.Errorf("%s does not hold --%s", file, f.Name)
			}
		}
	})
	pages, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(pages) != n {
		t.Errorf("%d pages of %d commands (%v)", len(pages), n, err)
	}
}
