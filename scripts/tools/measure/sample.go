package main

import (
	"fmt"
	"go/ast"
	"io"
	"math/rand/v2"
	"strings"
)

// sample writes n comments of the tree, or all if there are fewer, including those of
// tests, drawn at random without replacement. The same tree and seed give the same
// comments. A comment is a comment group of go/ast; directives and comments of fewer
// than three words are left out. The output is a Markdown table with an empty column for
// verdicts.
func (t *tree) sample(w io.Writer, n int, seed uint64) {
	type comment struct{ at, text string }
	var all []comment
	for _, f := range t.files {
		for _, g := range f.ast.Comments {
			if text := prose(g); len(strings.Fields(text)) >= 3 {
				all = append(all, comment{f.at(g.Pos()), text})
			}
		}
	}
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fmt.Fprintf(w, "Drawn with seed %d from %d comments.\n\n| # | where | comment | verdict |\n|---|---|---|---|\n", seed, len(all))
	for i, c := range all[:min(n, len(all))] {
		fmt.Fprintf(w, "| %d | %s | %s | |\n", i+1, c.at, strings.ReplaceAll(c.text, "|", `\|`))
	}
}

// prose returns the text of a comment group on one line, without directives.
func prose(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }
