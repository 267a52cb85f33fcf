package meshtest

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../../"

// lines returns the lines that git prints for args in the root of the repository.
func lines(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
	if err != nil {
		t.Fatalf("git %s: %v", args[0], err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// packagesOf maps the name of each test and fuzz test of the repository to the base
// names of the folders that contain it.
func packagesOf(t *testing.T) map[string][]string {
	out := map[string][]string{}
	for _, l := range lines(t, "grep", "--untracked", "-oE", `^func (Test|Fuzz)[A-Za-z0-9]+`, "--", "*_test.go") {
		file, name, _ := strings.Cut(l, ":func ")
		out[name] = append(out[name], path.Base(path.Dir(file)))
	}
	return out
}

var (
	testName  = regexp.MustCompile("`(?:([a-z0-9]+)\\.)?((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)`")
	makeVerb  = regexp.MustCompile("`make ([a-z-]+)")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	unslugged = regexp.MustCompile(`[^\pL\pN_ -]`)
	treePath  = regexp.MustCompile("`((?:deploy|docs|e2e|examples|pkg|schemas|scripts|services)/[A-Za-z0-9_./-]+)`")
)

// reserved lists paths that need not exist: paths that ARCHITECTURE.md reserves, and a
// placeholder.
var reserved = []string{"services/lab", "services/NAME"}

// TestPages checks that docs/style-review.md has a verdict on every page that is not generated.
func TestPages(t *testing.T) {
	review, err := os.ReadFile(root + "docs/style-review.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range lines(t, "ls-files", "*.md") {
		if page == "docs/style-review.md" || strings.HasPrefix(page, "docs/reference/packages/") {
			continue
		}
		if !regexp.MustCompile(`(?m)^\| \d{4}-\d\d-\d\d \| ` + regexp.QuoteMeta(page) + `[ ,]`).Match(review) {
			t.Errorf("docs/style-review.md, Pages: no row for %s; read the page whole and record the verdict", page)
		}
	}
}

// TestDocuments checks that the tests, make targets, paths and headings to which
// documents refer exist. It recognizes names in backquotes and the targets of links. It
// reads neither docs/style-review.md nor the targets of links to other sites.
func TestDocuments(t *testing.T) {
	tests := packagesOf(t)
	makefile, err := os.ReadFile(root + "Makefile")
	if err != nil {
		t.Fatal(err)
	}
	read := func(page string) string {
		b, err := os.ReadFile(root + page)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	exists := func(p string) bool { _, err := os.Stat(root + p); return err == nil }
	anchors := func(page string) (out []string) {
		for _, m := range heading.FindAllStringSubmatch(read(page), -1) {
			out = append(out, strings.ReplaceAll(unslugged.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
		}
		return out
	}
	counted := 0
	for _, page := range lines(t, "ls-files", "*.md") {
		if page == "docs/style-review.md" {
			continue // it quotes former comments, which may name tests that no longer exist
		}
		text := read(page)
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if counted++; tests[m[2]] == nil || m[1] != "" && !slices.Contains(tests[m[2]], m[1]) {
				t.Errorf("%s: %s does not exist", page, m[0])
			}
		}
		for _, m := range makeVerb.FindAllStringSubmatch(text, -1) {
			if counted++; !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s: no target %s", page, m[1])
			}
		}
		for _, m := range treePath.FindAllStringSubmatch(text, -1) {
			if counted++; !exists(m[1]) && !slices.Contains(reserved, m[1]) {
				t.Errorf("%s: %s does not exist", page, m[1])
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			if to = path.Join(path.Dir(page), to); strings.HasPrefix(m[1], "#") {
				to = page
			}
			if counted++; !exists(to) {
				t.Errorf("%s: %s does not exist", page, m[1])
			} else if anchor != "" && !slices.Contains(anchors(to), anchor) {
				t.Errorf("%s: no heading for %s", page, m[1])
			}
		}
	}
	if counted < 500 {
		t.Errorf("only %d names are checked", counted)
	}
}

// TestMap checks that ARCHITECTURE.md has at most 120 lines and names every folder of pkg and of
// pkg/core that contains Go files, itself or in a subfolder, except cmd.
func TestMap(t *testing.T) {
	b, err := os.ReadFile(root + "ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n > 120 {
		t.Errorf("ARCHITECTURE.md has %d lines, want at most 120", n)
	}
	for _, file := range lines(t, "ls-files", "pkg/*/*.go", "pkg/core/*/*.go") {
		rest := strings.TrimPrefix(strings.TrimPrefix(file, "pkg/"), "core/")
		if name, _, _ := strings.Cut(rest, "/"); !strings.HasSuffix(name, ".go") && !strings.Contains(string(b), "`"+name) && name != "cmd" {
			t.Errorf("package %s is not in ARCHITECTURE.md", path.Dir(file))
		}
	}
}
