package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const modules = "github.com/binnacle-mesh/binnacle/"

// graph maps each node to the nodes to which its arrows point.
type graph map[string]map[string]bool

// add adds an arrow, and both its nodes.
func (g graph) add(from, to string) {
	for _, n := range []string{from, to} {
		if g[n] == nil {
			g[n] = map[string]bool{}
		}
	}
	g[from][to] = true
}

// floors returns the floor of each node: 0 without arrows, else one more than the highest
// floor to which its arrows point. It returns an error that names a circle if there is one.
func (g graph) floors() (map[string]int, error) {
	floors := map[string]int{}
	var path []string
	var visit func(n string) error
	visit = func(n string) error {
		if _, ok := floors[n]; ok {
			return nil
		}
		if i := slices.Index(path, n); i >= 0 {
			return fmt.Errorf("imports form a circle: %s", strings.Join(append(path[i:], n), " -> "))
		}
		path = append(path, n)
		floor := 0
		for _, to := range slices.Sorted(maps.Keys(g[n])) {
			if err := visit(to); err != nil {
				return err
			}
			floor = max(floor, floors[to]+1)
		}
		path = path[:len(path)-1]
		floors[n] = floor
		return nil
	}
	for _, n := range slices.Sorted(maps.Keys(g)) {
		if err := visit(n); err != nil {
			return nil, err
		}
	}
	return floors, nil
}

// reaches reports whether a path of at least one arrow leads from one node to the other. The
// graph must have no circle.
func (g graph) reaches(from, to string) bool {
	for n := range g[from] {
		if n == to || g.reaches(n, to) {
			return true
		}
	}
	return false
}

// arrows returns, sorted, the nodes to which n points and which no longer path from n
// reaches. The graph must have no circle.
func (g graph) arrows(n string) []string {
	var out []string
	for _, to := range slices.Sorted(maps.Keys(g[n])) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(g[n])), func(by string) bool { return g.reaches(by, to) }) {
			out = append(out, to)
		}
	}
	return out
}

// importsOf returns the folders of this repository's packages that the files of a folder
// import, without its tests. Build constraints are not evaluated.
func importsOf(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return nil, err
		}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return nil, err
			}
			if to, ok := strings.CutPrefix(path, modules); ok {
				out = append(out, to)
			}
		}
	}
	return out, nil
}

// drawing returns the page of imports, as Markdown: a graph of the groups, and a table for
// each group of more than one package. It returns an error if the imports of groups, or of
// packages, form a circle.
func drawing(groups []group, imports map[string][]string) (string, error) {
	all, inside := graph{}, map[string]graph{}
	for _, g := range groups {
		all[g.page], inside[g.page] = map[string]bool{}, graph{}
	}
	for dir, list := range imports {
		page := pageOf(groups, dir)
		inside[page][dir] = map[string]bool{}
		for _, to := range list {
			if other := pageOf(groups, to); other != page && other != "" {
				all.add(page, other)
			}
		}
	}
	for dir, list := range imports {
		page := pageOf(groups, dir)
		for _, to := range list {
			if pageOf(groups, to) == page {
				inside[page].add(dir, to)
			}
		}
	}
	if _, err := all.floors(); err != nil {
		return "", err
	}
	text := "# Imports\n\nGenerated from the imports of all Go files except tests by `make gen`, which fails if the\nimports of packages, or of groups, form a circle.\n\nAn arrow from A to B: a package of group A imports one of group B. An arrow is omitted if\na path of other arrows leads from A to B.\n\n```mermaid\nflowchart TD\n"
	for _, g := range groups {
		text += "  " + g.page + "\n"
		for _, to := range all.arrows(g.page) {
			text += "  " + g.page + " --> " + to + "\n"
		}
	}
	text += "```\n\nThe tables list the packages of each group. A package on floor 0 imports none of its own\ngroup; another one is on the floor after the highest of those that it imports. An import\nis omitted if a path of other imports leads to the same package.\n"
	for _, g := range groups {
		table, err := tableOf(g, inside[g.page])
		if err != nil {
			return "", err
		}
		text += table
	}
	return text, nil
}

// tableOf returns the table of a group's packages by floor, with a heading, or "" for a
// group of one package.
func tableOf(g group, in graph) (string, error) {
	floors, err := in.floors()
	if err != nil || len(in) < 2 {
		return "", err
	}
	short := func(dir string) string { // without backquotes, in which TestDocuments expects paths from the root
		if dir == g.dir {
			return "."
		}
		return strings.TrimPrefix(dir, g.dir+"/")
	}
	nodes := slices.SortedFunc(maps.Keys(in), func(a, b string) int {
		if d := floors[b] - floors[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	text := "\n## " + g.dir + "\n\n| floor | package | imports of the group |\n|---|---|---|\n"
	for _, n := range nodes {
		var to []string
		for _, a := range in.arrows(n) {
			to = append(to, short(a))
		}
		text += fmt.Sprintf("| %d | %s | %s |\n", floors[n], short(n), strings.Join(to, ", "))
	}
	return text, nil
}
