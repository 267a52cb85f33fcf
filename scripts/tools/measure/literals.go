package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// home lists the packages in which literals of events, subjects and ids belong: the
// contracts, the keys that they import, the topology, and the generators of both.
var home = []string{"pkg/core/contract", "pkg/core/sign", "pkg/bus", "schemas"}

func (t *tree) isEventName(s string) bool {
	return t.events[s] || strings.HasPrefix(s, "dev.binnacle.")
}

var subject = regexp.MustCompile(`^(evt|tmp|blob|log|snap)\.`)

func isSubject(s string) bool { return subject.MatchString(s) }

// isPrefix reports whether s is a prefix of ids that contract declares. A secret of
// another system may begin with one that is like it.
func (t *tree) isPrefix(s string) bool { return t.prefixes[s] }

// prefix is one declaration of pkg/core/contract/ids.go.
var prefix = regexp.MustCompile(`(?m)^\tID\w+ += "([a-z]+-)"`)

// literals counts the strings of a kind that are written outside their home.
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

// namesField reports whether a call names a field of a document, as the methods of
// canon.Codec do: its first argument is a string, its last one an address.
func namesField(c *ast.CallExpr) bool {
	if _, ok := c.Fun.(*ast.SelectorExpr); !ok || len(c.Args) != 2 {
		return false
	}
	_, name := c.Args[0].(*ast.BasicLit)
	u, addr := c.Args[1].(*ast.UnaryExpr)
	return name && addr && u.Op == token.AND
}
