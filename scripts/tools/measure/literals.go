package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// home lists the packages in which literals of events, subjects and ids belong: the
// contracts, the topology, and the generators of both.
var home = []string{"pkg/core/contract", "pkg/bus", "schemas"}

func (t *tree) isEventName(s string) bool {
	return t.events[s] || strings.HasPrefix(s, "dev.binnacle.")
}

var subject = regexp.MustCompile(`^(evt|tmp|blob|log|snap)\.`)

func isSubject(s string) bool { return subject.MatchString(s) }

// prefix matches an id prefix: one or two letters and a hyphen.
var prefix = regexp.MustCompile(`^[a-z]{1,2}-$`)

func isPrefix(s string) bool { return prefix.MatchString(s) }

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
