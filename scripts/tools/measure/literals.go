package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// home lists the folders that may contain literals of event names, subjects, id prefixes
// and error codes: the contracts, the packages for keys and topology, and the schemas
// with their generators.
var home = []string{"pkg/core/contract", "pkg/core/sign", "pkg/bus", "schemas"}

func (t *tree) isEventName(_ *file, s string) bool {
	return t.events[s] || strings.HasPrefix(s, "dev.binnacle.")
}

// notCodes lists literals, by folder, that equal an error code but have another meaning: a
// result of an append in a metric, a condition in a routing rule, and a counter in the dump
// of a view.
var notCodes = map[string]string{"pkg/metrics": "conflict", "services/llm-router/internal/route": "timeout", "services/llm-router/internal/usage": "cancelled"}

var subject = regexp.MustCompile(`^(evt|tmp|blob|log|snap)\.`)

func isSubject(_ *file, s string) bool { return subject.MatchString(s) }

// isPrefix reports whether s equals a prefix of ids that package contract declares. A
// longer string that begins with one, such as another system's secret, does not count.
func (t *tree) isPrefix(_ *file, s string) bool { return t.prefixes[s] }

// prefix matches a declaration of an id prefix in pkg/core/contract/ids.go.
var prefix = regexp.MustCompile(`(?m)^\tID\w+ += "([a-z]+-)"`)

// literals counts the string literals in code outside home for which is(file, literal)
// returns true. Import paths, struct tags and names of document fields do not count.
func (t *tree) literals(kind string, is func(*file, string) bool) figure {
	out := figure{name: "literals of " + kind + " outside their home"}
	for f := range t.code {
		if f.under(home...) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			if f, ok := n.(*ast.Field); ok && f.Tag != nil {
				return false
			}
			if c, ok := n.(*ast.CallExpr); ok && namesField(c) {
				return false
			}
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING {
				return true
			}
			if s, err := strconv.Unquote(l.Value); err == nil && is(f, s) {
				out.detail = append(out.detail, f.at(l.Pos())+" "+l.Value)
			}
			return true
		})
	}
	out.n = float64(len(out.detail))
	return out
}

// isCode returns a function that reports whether a literal of a file is an error code:
// one of schemas/errors.json, or any literal that is used as one, unless notCodes lists
// it for the folder. The second rule finds codes that are missing in errors.json.
func (t *tree) isCode() func(*file, string) bool {
	var in *file
	var used map[string]bool
	return func(f *file, s string) bool {
		if f != in {
			in, used = f, usedAsCodes(f)
		}
		return (t.codes[s] || used[s]) && notCodes[f.dir] != s
	}
}

// usedAsCodes returns the literals of a file that are the value of a field Code or
// ErrorCode, are compared with one, or are the first argument of Fail, execute.Fail or
// rpc.Errorf.
func usedAsCodes(f *file) map[string]bool {
	out := map[string]bool{}
	add := func(e ast.Expr) {
		if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, err := strconv.Unquote(l.Value); err == nil && s != "" {
				out[s] = true
			}
		}
	}
	field := func(name string) bool { return name == "Code" || name == "ErrorCode" }
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if k, ok := n.Key.(*ast.Ident); ok && field(k.Name) {
				add(n.Value)
			}
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				if s, ok := l.(*ast.SelectorExpr); ok && field(s.Sel.Name) && len(n.Rhs) == len(n.Lhs) {
					add(n.Rhs[i])
				}
			}
		case *ast.BinaryExpr:
			if s, ok := n.X.(*ast.SelectorExpr); ok && field(s.Sel.Name) {
				add(n.Y)
			}
		case *ast.CallExpr:
			id, ok := n.Fun.(*ast.Ident)
			if len(n.Args) > 1 && (ok && id.Name == "Fail" || selected(n.Fun, "execute", "Fail") || selected(n.Fun, "rpc", "Errorf")) {
				add(n.Args[0])
			}
		}
		return true
	})
	return out
}

// namesField reports whether a call has the form of a method of canon.Codec that names a
// field of a document: two arguments, a string literal and an address.
func namesField(c *ast.CallExpr) bool {
	if _, ok := c.Fun.(*ast.SelectorExpr); !ok || len(c.Args) != 2 {
		return false
	}
	_, name := c.Args[0].(*ast.BasicLit)
	u, addr := c.Args[1].(*ast.UnaryExpr)
	return name && addr && u.Op == token.AND
}
