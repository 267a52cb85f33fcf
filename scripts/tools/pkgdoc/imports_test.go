package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDrawing checks the page of a small tree: an arrow that other arrows imply is omitted,
// among groups and within one, and a package is on the floor after those that it imports.
func TestDrawing(t *testing.T) {
	groups := []group{{"core", "", "core"}, {"pkg", "", "pkg"}, {"audit", "", "services/audit"}}
	imports := map[string][]string{
		"core":           nil,
		"pkg":            {"pkg/a", "pkg/a/b"},
		"pkg/a":          {"pkg/a/b", "other"},
		"pkg/a/b":        {"core"},
		"services/audit": {"core", "pkg/a"},
	}
	page, err := drawing(groups, imports)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"flowchart TD\n  core\n  pkg\n  pkg --> core\n  audit\n  audit --> pkg\n```\n",
		"\n## pkg\n\n| floor | package | imports of the group |\n|---|---|---|\n| 2 | . | a |\n| 1 | a | a/b |\n| 0 | a/b |  |\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks\n%s\n%s", want, page)
		}
	}
	if n := strings.Count(page, "\n## "); n != 1 {
		t.Errorf("%d tables, want 1: groups of one package have none", n)
	}
}

// TestCircles checks that a circle of packages, and one of groups whose packages form none,
// is an error that names it.
func TestCircles(t *testing.T) {
	groups := []group{{"x", "", "x"}, {"y", "", "y"}}
	for want, imports := range map[string]map[string][]string{
		"x/a -> x/b -> x/a": {"x/a": {"x/b"}, "x/b": {"x/a"}},
		"x -> y -> x":       {"x/a": {"y/a"}, "x/b": nil, "y/a": nil, "y/b": {"x/b"}},
	} {
		if _, err := drawing(groups, imports); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want the circle %s", err, want)
		}
	}
}

// TestImportsOf checks that imports of tests and of other repositories are left out, that those of a
// file with an unmet build constraint are not, and that a file that does not parse is an error.
func TestImportsOf(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.go":      "package a\nimport (\n\"os\"\n\"example.com/b\"\n\"" + modules + "pkg/b\"\n)\n",
		"other.go":  "//go:build other\n\npackage a\nimport _ `" + modules + "pkg/c`\n",
		"a_test.go": "package a\nimport _ \"" + modules + "pkg/d\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := importsOf(dir)
	if slices.Sort(got); err != nil || !slices.Equal(got, []string{"pkg/b", "pkg/c"}) {
		t.Fatal(got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.go"), []byte("package"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := importsOf(dir); err == nil {
		t.Error("a file that does not parse is accepted")
	}
}

// TestFloors checks that every arrow leads to a lower floor, and that a node without arrows
// is on floor 0.
func TestFloors(t *testing.T) {
	g := graph{}
	for _, a := range []string{"ab", "ac", "bd", "cb", "ed"} {
		g.add(a[:1], a[1:])
	}
	got, err := g.floors()
	if want := map[string]int{"a": 3, "b": 1, "c": 2, "d": 0, "e": 1}; err != nil || !maps.Equal(got, want) {
		t.Fatal(got, err)
	}
}
