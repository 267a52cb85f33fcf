package output

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Column is a column of a table.
type Column struct {
	Heading string
	Min     int // minimum width in characters; the last column is not padded
}

// Grid is a table: rows of text under headings. The widths of columns depend on all
// rows, so nothing is written before Write.
type Grid struct {
	Columns []Column
	rows    []row
}

// row is a row of a table: its cells, and lines that are written unchanged after it.
type row struct {
	cells []string
	note  string
}

// Add adds a row with a cell for each column.
func (g *Grid) Add(cells ...string) { g.rows = append(g.rows, row{cells: cells}) }

// Note adds lines that follow the last row. The table must have a row.
func (g *Grid) Note(text string) { g.rows[len(g.rows)-1].note += text + "\n" }

// Write writes the rows, with two spaces between columns. With headings it also writes
// the heading line, even if the table has no rows.
func (g *Grid) Write(w io.Writer, headings bool, style Style) error {
	width := make([]int, len(g.Columns))
	names := make([]string, len(g.Columns))
	for i, c := range g.Columns {
		width[i], names[i] = c.Min, c.Heading
		if headings {
			width[i] = max(width[i], utf8.RuneCountInString(c.Heading))
		}
	}
	for _, r := range g.rows {
		for i, cell := range r.cells {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	if headings {
		b.WriteString(style.Bold(line(names, width)) + "\n")
	}
	for _, r := range g.rows {
		b.WriteString(line(r.cells, width) + "\n" + r.note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// line joins a row's cells, padded to their widths, with two spaces, and removes trailing
// spaces.
func line(cells []string, width []int) string {
	var b strings.Builder
	for i, cell := range cells {
		b.WriteString(cell + strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2))
	}
	return strings.TrimRight(b.String(), " ")
}
