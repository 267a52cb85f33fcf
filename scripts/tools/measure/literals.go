package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// home lists the folders that may contain literals of event names, subjects and id
// prefixes: the contracts, the packages for keys and topology, and the schemas with
// their generators.
var home = []string{"pkg/core/contract", "pkg/core/sign", "pkg/bus", "schemas"}

func (t *tree) isEventName(s string) bool {
	return t.events[s] || strings.HasPrefix(s, "dev.binnacle.")
}

var subject = regexp.MustCompile(`^(evt|tmp|blob|log|snap)\.`)

func isSubject(s string) bool { return subject.MatchString(s) }

// isPrefix reports whether s equals a prefix of ids that package contract declares. A
// longer string that begins with one, such as another system's secret, does not count.
func (t *tree) isPrefix(s string) bool { return t.prefixes[s] }

// prefix matches a declaration of an id prefix in pkg/core/contract/ids.go.
var prefix = regexp.MustCompile(`(?m)^\tID\w+ += "([a-z]+-)"`)

// literals counts the string literals for which is returns true in code outside home.
// Import paths, struct tags and names of document fields do not count.
func (t *tree) literals(kind string, is func(string) bool) figure {
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
			if s, err := strconv.Unquote(l.Value); err == nil && is(s) {
				out.detail = append(out.detail, f.at(l.Pos())+" "+l.Value)
			}
			return true
		})
	}
	out.n = float64(len(out.detail))
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
