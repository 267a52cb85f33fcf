package document

import (
	"strings"
	"testing"
)

// TestCut checks that a text is cut at the end of a character.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		s    string
		max  int
		want string
		cut  bool
	}{{"abc", 3, "abc", false}, {"abcd", 3, "abc", true}, {"aé", 2, "a", true}, {"aé", 3, "aé", false}, {"日本", 5, "日", true}, {"日", 0, "", true}, {"", 0, "", false}} {
		if got, cut := Cut(c.s, c.max); got != c.want || cut != c.cut {
			t.Errorf("%q, %d: %q %t", c.s, c.max, got, cut)
		}
	}
}

// TestIsHTML checks which documents are HTML, by the extension of their name or, if
// there is none, by their beginning.
func TestIsHTML(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       bool
	}{{"a.html", "x", true}, {"a.HTM", "x", true}, {"a.xhtml", "x", true}, {"a.txt", "<html>", false}, {"", " <HTML>", true}, {"", "<!DOCTYPE html>", true}, {"", "<p>", false}, {"", "", false}, {"a", "\n<html lang=en>", true}} {
		if isHTML(c.name, []byte(c.body)) != c.want {
			t.Errorf("%q, %q: %t", c.name, c.body, !c.want)
		}
	}
}

// TestTable checks that every row of a table has the same number of cells, that line
// breaks and vertical bars in cells end neither a row nor a cell, and that nothing is
// written for a table without cells.
func TestTable(t *testing.T) {
	var out strings.Builder
	writeTable(&out, [][]string{{"a", "b|c"}, {"1"}, {"2", "3\r\n4"}})
	if want := "| a | b\\|c |\n| --- | --- |\n| 1 |  |\n| 2 | 3 4 |\n\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	if writeTable(&out, [][]string{{}, {}}); out.Len() != 0 {
		t.Errorf("an empty table: %q", out.String())
	}
}
