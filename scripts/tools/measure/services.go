package main

import (
	"go/ast"
	"strings"
)

// namedIn lists the folders that may contain literals of the names of services: the registry, the
// trusted core, which imports no other package, the schemas, and the modules that import neither.
var namedIn = []string{"pkg/services", "pkg/core", "schemas", "packs", "sdk/go"}

// serviceNames returns the names of the services in the registry: the constants that are the Name
// of a value.
func (t *tree) serviceNames() map[string]bool {
	own, core, out := t.constantValues("pkg/services"), t.constantsOf("pkg/core/contract"), map[string]bool{}
	for f := range t.code {
		if f.dir != "pkg/services" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			kv, ok := n.(*ast.KeyValueExpr)
			if !ok || !isIdent(kv.Key, "Name") {
				return true
			}
			e := kv.Value
			if id, ok := e.(*ast.Ident); ok {
				e = own[id.Name]
			}
			name, _ := literal(e)
			if s, ok := e.(*ast.SelectorExpr); ok {
				name = core[s.Sel.Name]
			}
			if name != "" && !strings.Contains(name, ".") { // the name of a view contains a full stop
				out[name] = true
			}
			return true
		})
	}
	return out
}

// constantValues returns the values of the constants of a package, by name.
func (t *tree) constantValues(dir string) map[string]ast.Expr {
	out := map[string]ast.Expr{}
	for f := range t.code {
		if f.dir != dir {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.ValueSpec); ok && len(s.Names) == len(s.Values) {
				for i, name := range s.Names {
					out[name.Name] = s.Values[i]
				}
			}
			return true
		})
	}
	return out
}

func isIdent(e ast.Expr, names ...string) bool {
	id, ok := e.(*ast.Ident)
	for _, name := range names {
		if ok && id.Name == name {
			return true
		}
	}
	return false
}

// namesService returns the expression with which n compares a service or an executor, or which it
// assigns to a field of that name. Elsewhere, a name without a hyphen, such as work, may be another
// word.
func namesService(n ast.Node) ast.Expr {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if isIdent(n.Key, "Service", "Executor") {
			return n.Value
		}
	case *ast.BinaryExpr:
		e := n.X
		if c, ok := e.(*ast.CallExpr); ok {
			e = c.Fun
		}
		if s, ok := e.(*ast.SelectorExpr); ok && isIdent(s.Sel, "Service", "Executor") {
			return n.Y
		}
	}
	return nil
}

// serviceLiterals is the figure of the literals of the names of services.
func (t *tree) serviceLiterals() figure {
	names := t.serviceNames()
	out := t.literals("names of services", func(f *file, s string) bool {
		return names[s] && strings.Contains(s, "-") && !f.under(namedIn...)
	})
	for f := range t.code {
		if f.under(append(home, namedIn...)...) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if e := namesService(n); e != nil {
				if s, ok := literal(e); ok && names[s] && !strings.Contains(s, "-") {
					out.detail = append(out.detail, f.at(e.Pos())+" "+s)
				}
			}
			return true
		})
	}
	out.n = float64(len(out.detail))
	return out
}
