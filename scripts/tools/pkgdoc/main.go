// Command pkgdoc writes docs/reference/packages: a page for each group of packages, with
// their package comments as Markdown, an index, and a page that draws the imports. It runs
// from the root of the repository. It fails if a package in a group has no comment, if a
// group has no packages, or if the imports of packages or of groups form a circle.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const out = "docs/reference/packages"

// group is a page: its name and title, and its folder.
type group struct{ page, title, dir string }

// before and after list the groups before and after those of services/*. A package is on the
// page of the longest folder of a group that contains it.
var before = []group{
	{"core", "The trusted core", "pkg/core"},
	{"pkg", "Shared packages", "pkg"},
	{"schemas", "Schemas", "schemas"},
}

var after = []group{
	{"packs", "Packs", "packs"},
	{"sdk", "SDK for Go", "sdk/go"},
	{"deploy", "Deployment programs", "deploy"},
	{"e2e", "End-to-end tests", "e2e"},
	{"examples", "Examples", "examples"},
}

// titles lists the titles of services whose title is not their name with a capital letter
// and spaces.
var titles = map[string]string{"binnacle": "The binary: library, command line, proxy", "llm-router": "LLM router", "mcp-router": "MCP router"}

// groups returns all groups: one for each folder in services under the folder root, in the
// order of their names, between those of before and after.
func groups(root string) ([]group, error) {
	dirs, err := os.ReadDir(filepath.Join(root, "services"))
	if err != nil {
		return nil, err
	}
	out := slices.Clone(before)
	for _, d := range dirs {
		name := d.Name()
		title := titles[name]
		if title == "" {
			title = strings.ReplaceAll(strings.ToUpper(name[:1])+name[1:], "-", " ")
		}
		if d.IsDir() {
			out = append(out, group{name, title, "services/" + name})
		}
	}
	return append(out, after...), nil
}

type pkg struct{ dir, text string }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pkgdoc:", err)
		os.Exit(1)
	}
}

func run() error {
	pages := map[string][]pkg{}
	var bare []string // folders of packages without a package comment
	imports := map[string][]string{}
	groups, err := groups(".")
	if err != nil {
		return err
	}
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case path != "." && (strings.HasPrefix(name, ".") || slices.Contains([]string{"bin", "data", "testdata", "node_modules"}, name)):
			return filepath.SkipDir
		}
		page := pageOf(groups, path)
		if page == "" {
			return nil
		}
		p, err := read(path)
		switch {
		case err != nil || p == nil:
		case p.text == "":
			bare = append(bare, path)
		default:
			pages[page] = append(pages[page], *p)
			imports[path], err = importsOf(path)
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(bare) > 0 {
		return fmt.Errorf("no package comment in %s", strings.Join(bare, ", "))
	}
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	drawn, err := drawing(groups, imports)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "imports.md"), []byte(drawn), 0o644); err != nil {
		return err
	}
	index := "# Packages\n\nGenerated from package comments by `make gen`; `go doc PACKAGE` prints the rest.\n[imports.md](imports.md) draws which packages import which.\n\n| group | folder | packages |\n|---|---|---|\n"
	for _, g := range groups {
		if len(pages[g.page]) == 0 {
			return fmt.Errorf("no package is in %s any more: remove the group", g.dir)
		}
		index += fmt.Sprintf("| [%s](%s.md) | `%s` | %d |\n", g.title, g.page, g.dir, len(pages[g.page]))
		text := "# " + g.title + "\n\nGenerated from package comments by `make gen`.\n"
		for _, p := range pages[g.page] {
			text += "\n## " + p.dir + "\n\n" + p.text
		}
		if err := os.WriteFile(filepath.Join(out, g.page+".md"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(out, "README.md"), []byte(index), 0o644)
}

// pageOf returns the name of the page for the package in a folder, or "" if none of the groups
// contains the folder.
func pageOf(groups []group, dir string) (page string) {
	longest := 0
	for _, g := range groups {
		if (dir == g.dir || strings.HasPrefix(dir, g.dir+"/")) && len(g.dir) > longest {
			page, longest = g.page, len(g.dir)
		}
	}
	return page
}

// read returns the package in a folder, or nil if the folder has no Go files. Its text
// joins the package comments of all files, tests included.
func read(dir string) (*pkg, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		return nil, err
	}
	p := pkg{dir: filepath.ToSlash(dir)}
	for _, name := range names {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return nil, err
		}
		if text := docOf(f); text != "" {
			p.text += text
		}
	}
	return &p, nil
}

// docOf returns the package comment of a file as Markdown, or "".
func docOf(f *ast.File) string {
	if f.Doc == nil || strings.TrimSpace(f.Doc.Text()) == "" {
		return ""
	}
	var parser comment.Parser
	var printer comment.Printer
	printer.HeadingLevel = 3
	return string(printer.Markdown(parser.Parse(f.Doc.Text())))
}
