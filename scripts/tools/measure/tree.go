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

	prefixes map[string]bool // prefixes of ids, from schemas/ids.json
	session  string          // prefix of the ids of sessions
	codes    map[string]bool // error codes, from schemas/errors.json
	reasons  map[string]bool // reason codes, from schemas/reasons.json
	heads    []string        // what subjects begin with, from schemas/subjects.json
}

// generated matches the line that marks generated files; see go help generate.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// readTree parses the Go files under root, and reads the names of events and the
// registries of ids, subjects and codes. It skips generated files, the folders testdata, bin, data
// and node_modules, and folders whose names begin with a dot.
func readTree(root string) (*tree, error) {
	t := &tree{root: root, events: map[string]bool{}, prefixes: map[string]bool{}, codes: map[string]bool{}, reasons: map[string]bool{}}
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
	return t, t.readRegistries()
}

// readRegistries reads the registries of schemas.
func (t *tree) readRegistries() error {
	type code struct{ Code string }
	var errorCodes struct{ Errors []code }
	var reasons struct{ Reasons []code }
	var ids struct {
		IDs []struct{ Name, Prefix string }
	}
	var subjects struct{ Subjects []struct{ Head string } }
	for name, doc := range map[string]any{"errors": &errorCodes, "reasons": &reasons, "ids": &ids, "subjects": &subjects} {
		raw, err := os.ReadFile(filepath.Join(t.root, "schemas", name+".json"))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, doc); err != nil {
			return err
		}
	}
	for _, e := range errorCodes.Errors {
		t.codes[e.Code] = true
	}
	for _, r := range reasons.Reasons {
		t.reasons[r.Code] = true
	}
	for _, x := range ids.IDs {
		t.prefixes[x.Prefix] = true
		if x.Name == "Session" {
			t.session = x.Prefix
		}
	}
	for _, x := range subjects.Subjects {
		t.heads = append(t.heads, x.Head)
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
		if !f.test && f.under("pkg", "services", "schemas", "deploy", "packs", "sdk/go") && !f.under("pkg/meshtest", "pkg/eventlog/logtest", "pkg/execute/executetest", "services/gateway/internal/edgetest", "schemas/gen", "packs/gen") && !yield(f) {
			return
		}
	}
}
