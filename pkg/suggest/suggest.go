// Package suggest finds names that are similar to a misspelt one, for error messages.
package suggest

import (
	"cmp"
	"slices"
	"strings"
)

// Near returns at most three names that are similar to word, the nearest first: names
// within a few edits and, if word has more than one byte, names that begin with it. It
// ignores case.
func Near(word string, names []string) []string {
	type candidate struct {
		name  string
		edits int
	}
	var found []candidate
	word = strings.ToLower(word)
	for _, name := range names {
		n := distance(word, strings.ToLower(name))
		if n <= min(3, max(1, len(word)/3)) || len(word) > 1 && strings.HasPrefix(strings.ToLower(name), word) {
			found = append(found, candidate{name, n})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.edits, b.edits) })
	var out []string
	for _, f := range found[:min(len(found), 3)] {
		out = append(out, f.name)
	}
	return out
}

// distance returns the optimal string alignment distance: the smallest number of edits,
// each of which adds, removes or replaces a letter or swaps two adjacent ones, if no
// part is edited twice.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	before, last, row := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row[0] = i
		for j := 1; j <= len(y); j++ {
			replace := last[j-1]
			if x[i-1] != y[j-1] {
				replace++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replace)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(y)]
}
