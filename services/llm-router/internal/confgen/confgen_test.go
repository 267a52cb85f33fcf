package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers"
)

const source = `package p

// Config is read.
type Config struct {
	Name  string            ` + "`json:\"name\"`" + ` // its name | of two
	Inner []Part            ` + "`json:\"inner,omitempty\"`" + ` // parts
	Map   map[string]string ` + "`json:\"map\"`" + ` // texts
	// Above the field.
	On    bool     ` + "`json:\"on\"`" + `
	Raw   json.RawMessage ` + "`json:\"raw\"`" + ` // anything
	Skip  int ` + "`json:\"-\"`" + `
	inner int
	Shared
}

type Part struct {
	N int64 ` + "`json:\"n\"`" + ` // a number
}

type Shared struct {
	Limit int ` + "`json:\"limit\"`" + ` // at once
}
`

// TestWalk shows that the table has a row for each member with its path, type and
// comment, and that the members of embedded types belong to the type that embeds them.
func TestWalk(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	types = map[string]*ast.StructType{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSpec); ok {
			types[s.Name.Name] = s.Type.(*ast.StructType)
		}
		return true
	})
	var b bytes.Buffer
	walk(&b, "Config", "")
	want := "| `name` | text | its name \\| of two |\n| `inner` | list of object | parts |\n| `inner[].n` | number | a number |\n| `map` | object of text | texts |\n" +
		"| `on` | true or false | Above the field. |\n| `raw` | JSON | anything |\n| `limit` | number | at once |\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

// TestKinds shows that the table contains exactly the kinds of providers that can be
// configured.
func TestKinds(t *testing.T) {
	var b bytes.Buffer
	kinds(&b)
	rows := 0
	for _, k := range providers.All.Kinds() {
		if strings.Contains(b.String(), "| `"+k.Name+"` |") == (k.Local != nil) {
			t.Errorf("%s:\n%s", k.Name, b.String())
		}
		if k.Local == nil {
			rows++
		}
	}
	if got := strings.Count(b.String(), "\n| `"); got != rows {
		t.Errorf("%d rows, want %d", got, rows)
	}
}
