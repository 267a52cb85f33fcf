package main

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// file is one Go file that is not generated.
type file struct {
	path, dir string
	test      bool
	src       []byte
	fset      *token.FileSet
	ast       *ast.File
	code      int // lines with code
	comments  int // lines that contain only a comment
}

type tree struct {
	root   string
	files  []*file
	events map[string]bool // names of events, from schemas/events

	prefixes map[string]bool // prefixes of ids, from pkg/core/contract/ids.go
	codes    map[string]bool // error codes, from schemas/errors.json
}

// generated matches the line that marks generated files; see go help generate.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// readTree parses the Go files under root, and reads the names of events, the prefixes
// of ids and the error codes. It skips generated files, the folders testdata, bin, data
// and node_modules, and folders whose names begin with a dot.
func readTree(root string) (*tree, error) {
	t := &tree{root: root, events: map[string]bool{}, prefixes: map[string]bool{}, codes: map[string]bool{}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "data" || name == "testdata" || name == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil || generated.Match(src) {
			return err
		}
		f, err := parse(path, src)
		if err == nil {
			t.files = append(t.files, f)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(root, "schemas/events/*/*.json"))
	for _, n := range names {
		event, _, _ := strings.Cut(filepath.Base(n), ".")
		t.events[event] = true
	}
	if err != nil {
		return nil, err
	}
	ids, err := os.ReadFile(filepath.Join(root, "pkg/core/contract/ids.go"))
	for _, m := range prefix.FindAllSubmatch(ids, -1) {
		t.prefixes[string(m[1])] = true
	}
	if err != nil {
		return nil, err
	}
	return t, t.readCodes()
}

// readCodes reads the error codes of schemas/errors.json.
func (t *tree) readCodes() error {
	raw, err := os.ReadFile(filepath.Join(t.root, "schemas/errors.json"))
	if err != nil {
		return err
	}
	var doc struct{ Errors []struct{ Code string } }
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	for _, e := range doc.Errors {
		t.codes[e.Code] = true
	}
	return nil
}

func parse(path string, src []byte) (*file, error) {
	f := &file{path: path, dir: filepath.Dir(path), test: strings.HasSuffix(path, "_test.go"), src: src, fset: token.NewFileSet()}
	var err error
	if f.ast, err = parser.ParseFile(f.fset, path, src, parser.ParseComments); err != nil {
		return nil, err
	}
	comment := map[int]bool{}
	for _, g := range f.ast.Comments {
		for n := f.line(g.Pos()); n <= f.line(g.End()); n++ {
			comment[n] = true
		}
	}
	for n, line := range bytes.Split(src, []byte("\n")) {
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0:
		case comment[n+1] && (bytes.HasPrefix(line, []byte("//")) || bytes.HasPrefix(line, []byte("/*"))):
			f.comments++
		default:
			f.code++
		}
	}
	return f, nil
}

func (f *file) line(p token.Pos) int { return f.fset.Position(p).Line }

func (f *file) at(p token.Pos) string { return f.fset.Position(p).String() }

// under reports whether the file is in one of the folders or below it.
func (f *file) under(dirs ...string) bool {
	for _, d := range dirs {
		if f.dir == d || strings.HasPrefix(f.dir, d+"/") {
			return true
		}
	}
	return false
}

// code yields the files of the product itself, without tests, tools and examples.
func (t *tree) code(yield func(*file) bool) {
	for _, f := range t.files {
		if !f.test && f.under("pkg", "services", "schemas", "deploy") && !f.under("pkg/meshtest", "pkg/eventlog/logtest", "services/gateway/internal/edgetest", "schemas/gen") && !yield(f) {
			return
		}
	}
}
