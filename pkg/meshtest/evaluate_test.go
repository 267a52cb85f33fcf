package meshtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOneEvaluate shows that, in the folders listed below, only policy's package stack, tests and
// package executetest call the functions of package guard that combine the results of policy
// documents, so that new, recorded, simulated and explained decisions are made by the same code.
func TestOneEvaluate(t *testing.T) {
	joins := []string{"Judge", "Decide", "Redecide", "Explain"}
	here, files := map[string]bool{}, 0
	for _, root := range []string{"../../services/policy", "../../services/binnacle", "../../services/gateway", "../execute", "../outcome", "../handout"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() && d.Name() == "executetest" {
				return filepath.SkipDir // its decisions are those of tests
			}
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok || !slices.Contains(joins, sel.Sel.Name) {
					return true
				}
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "guard" {
					if filepath.Base(filepath.Dir(path)) != "stack" {
						t.Errorf("%s calls guard.%s: evaluate by stack.Evaluate", path, sel.Sel.Name)
					}
					here[sel.Sel.Name] = true
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(here) != len(joins) || files < 100 {
		t.Errorf("%d files hold calls of %v, want all of %v", files, here, joins)
	}
}
