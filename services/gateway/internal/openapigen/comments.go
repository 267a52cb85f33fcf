package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"path/filepath"
	"reflect"
	"strings"
)

// comments holds the comments of types and of their fields, by "package path.Type" and
// "package path.Type.Field".
type comments struct {
	root   string // folder of the repository
	read   map[string]bool
	byName map[string]string
}

const module = "github.com/binnacle-mesh/binnacle/"

// of returns the comment of a type or, if field is not empty, of its field, as one line.
// It returns "" if there is no comment, and ends the program if it cannot parse the
// type's package.
func (c *comments) of(t reflect.Type, field string) string {
	path := t.PkgPath()
	if !c.read[path] {
		c.read[path] = true
		c.parse(path)
	}
	name := path + "." + t.Name()
	if field != "" {
		name += "." + field
	}
	return c.byName[name]
}

// parse reads the comments of the package with the given path.
func (c *comments) parse(path string) {
	files, err := filepath.Glob(filepath.Join(c.root, strings.TrimPrefix(path, module), "*.go"))
	if err != nil || len(files) == 0 {
		log.Fatalf("no source of the package %s", path)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			log.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, spec := range g.Specs {
				c.add(path, g, spec.(*ast.TypeSpec))
			}
		}
	}
}

func (c *comments) add(path string, g *ast.GenDecl, spec *ast.TypeSpec) {
	name := path + "." + spec.Name.Name
	doc := spec.Doc
	if doc == nil {
		doc = g.Doc
	}
	c.byName[name] = line(doc)
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range st.Fields.List {
		text := line(f.Doc)
		if text == "" {
			text = line(f.Comment)
		}
		for _, n := range f.Names {
			c.byName[name+"."+n.Name] = text
		}
	}
}

// line returns a comment as one line.
func line(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }
