package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// The figures in this file are read from documents: people judge samples of comments, and
// mutation testing takes hours.

// lines returns the lines of a file of the tree that match pattern, as the groups of the
// pattern. A file that cannot be read has none.
func (t *tree) lines(path, pattern string) (out [][]string) {
	b, _ := os.ReadFile(filepath.Join(t.root, path))
	return regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(string(b), -1)
}

// sampled returns the number of comments that need rewording in the last sample that
// docs/style-review.md records.
func (t *tree) sampled() figure {
	out := figure{name: "comments that need rewording in the last sample of 110", bound: 3}
	rows := t.lines("docs/style-review.md", `^\| \d{4}-\d\d-\d\d \| \w+ \| \d+ \| (\d+) of 110\b`)
	if len(rows) == 0 {
		out.n, out.detail = out.bound+1, []string{"docs/style-review.md has no sample of 110"}
		return out
	}
	out.n, _ = strconv.ParseFloat(rows[len(rows)-1][1], 64)
	return out
}

// mutants returns the least share of mutants that the tests of a package kill, by
// docs/mutation.md. A package that must be pure, by pkg/meshtest/pure.txt, and has no row there
// counts as one without a killed mutant.
func (t *tree) mutants() figure {
	out := figure{name: "share of mutants killed, of the package with the least", bound: 80, unit: "%", least: true}
	rows := t.lines("docs/mutation.md", "^\\| `([^`]+)`[^|]* \\| [\\d,]+ \\|.*\\| ([\\d.]+) % \\|$")
	if len(rows) == 0 {
		out.detail = []string{"docs/mutation.md has no packages"}
		return out
	}
	pure := t.lines("pkg/meshtest/pure.txt", `^\S+$`)
	if len(pure) == 0 {
		out.detail = []string{"pkg/meshtest/pure.txt lists no package"}
		return out
	}
	out.n = 100
	measured := map[string]bool{}
	for _, r := range rows {
		measured[r[1]] = true
		share, _ := strconv.ParseFloat(r[2], 64)
		out.n = min(out.n, share)
		if share < out.bound {
			out.detail = append(out.detail, fmt.Sprintf("%s: %s %%", r[1], r[2]))
		}
	}
	for _, p := range pure {
		if dir := path.Dir(p[0]); !measured[dir] { // a line is a folder with a slash after it, or the beginning of a file's path
			out.n, out.detail = 0, append(out.detail, dir+" has no row in docs/mutation.md")
		}
	}
	return out
}

// executor returns the number of places that CONTRIBUTING.md lists for a new service that
// executes calls. TestNewService takes these steps.
func (t *tree) executor() figure {
	out := figure{name: "places that a new executor service touches", bound: 4}
	b, _ := os.ReadFile(filepath.Join(t.root, "CONTRIBUTING.md"))
	_, section, _ := strings.Cut(string(b), "\n## Add a service that executes calls\n")
	section, _, _ = strings.Cut(section, "\n## ")
	out.n = float64(len(regexp.MustCompile(`(?m)^\d+\. `).FindAllString(section, -1)))
	if out.n == 0 {
		out.n, out.detail = out.bound+1, []string{"CONTRIBUTING.md lists no place"}
	}
	return out
}
