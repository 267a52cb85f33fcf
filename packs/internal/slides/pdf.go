package slides

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-pdf/fpdf"
	"github.com/yuin/goldmark/ast"
	east "github.com/yuin/goldmark/extension/ast"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/gomono"
	"golang.org/x/image/font/gofont/goregular"
)

// Size of a page and its margin, in millimeters.
const (
	pageWidth  = 338.7
	pageHeight = 190.5
	margin     = 18
)

// deck is a PDF document with a page for each slide.
type deck struct {
	pdf  *fpdf.Fpdf
	src  []byte
	full bool // the current slide has no more room
}

func newDeck(title string) *deck {
	p := fpdf.NewCustom(&fpdf.InitType{UnitStr: "mm", Size: fpdf.SizeType{Wd: pageWidth, Ht: pageHeight}})
	p.SetMargins(margin, margin, margin)
	p.SetAutoPageBreak(false, 0)
	p.SetTitle(title, true)
	p.AddUTF8FontFromBytes("go", "", goregular.TTF)
	p.AddUTF8FontFromBytes("go", "B", gobold.TTF)
	p.AddUTF8FontFromBytes("mono", "", gomono.TTF)
	return &deck{pdf: p}
}

// slide adds a page, and reports whether the slide does not fit on it.
func (d *deck) slide(doc ast.Node, src []byte) bool {
	d.pdf.AddPage()
	d.src, d.full = src, false
	d.blocks(doc, 0)
	return d.full
}

func (d *deck) bytes() ([]byte, error) {
	var b bytes.Buffer
	err := d.pdf.Output(&b)
	return b.Bytes(), err
}

// blocks writes the blocks in a node with an indentation in millimeters.
func (d *deck) blocks(parent ast.Node, indent float64) {
	for n := parent.FirstChild(); n != nil && !d.full; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Heading:
			d.write("go", "B", max(18, 38-6*float64(n.Level)), indent, d.text(n), "")
		case *ast.List:
			d.list(n, indent)
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			d.write("mono", "", 13, indent+4, strings.TrimRight(string(n.Lines().Value(d.src)), "\n"), "")
		case *east.Table:
			for row := n.FirstChild(); row != nil; row = row.NextSibling() {
				var cells []string
				for c := row.FirstChild(); c != nil; c = c.NextSibling() {
					cells = append(cells, d.text(c))
				}
				d.write("go", "", 16, indent, strings.Join(cells, "   |   "), "")
			}
		case *ast.Blockquote:
			d.blocks(n, indent+10)
		case *ast.Paragraph, *ast.TextBlock:
			d.write("go", "", 18, indent, d.text(n), "")
		}
	}
}

func (d *deck) list(l *ast.List, indent float64) {
	number := l.Start
	for item := l.FirstChild(); item != nil && !d.full; item = item.NextSibling() {
		mark := "•"
		if l.IsOrdered() {
			mark = strconv.Itoa(number) + "."
			number++
		}
		for n := item.FirstChild(); n != nil; n = n.NextSibling() {
			if inner, ok := n.(*ast.List); ok {
				d.list(inner, indent+10)
				continue
			}
			d.write("go", "", 18, indent+8, d.text(n), mark)
			mark = ""
		}
	}
}

// write writes a block of text at the current height, with a mark before its first row. If
// the page has no room for a row, write sets d.full and omits the rest.
func (d *deck) write(font, weight string, size, indent float64, text, mark string) {
	d.pdf.SetFont(font, weight, size)
	line := size * 0.48
	for _, part := range strings.Split(text, "\n") {
		rows := d.pdf.SplitText(part, pageWidth-2*margin-indent)
		if part == "" {
			rows = []string{""}
		}
		for _, row := range rows {
			if d.pdf.GetY()+line > pageHeight-margin {
				d.full = true
				return
			}
			if mark != "" {
				d.pdf.SetX(margin + indent - 8)
				d.pdf.CellFormat(8, line, mark, "", 0, "L", false, 0, "")
				mark = ""
			}
			d.pdf.SetX(margin + indent)
			d.pdf.CellFormat(0, line, row, "", 1, "L", false, 0, "")
		}
	}
	d.pdf.SetY(d.pdf.GetY() + line*0.4)
}

// text returns the text of the inline nodes in n.
func (d *deck) text(n ast.Node) string {
	var b strings.Builder
	_ = ast.Walk(n, func(c ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		switch c := c.(type) {
		case *ast.Text:
			b.Write(c.Segment.Value(d.src))
			if c.SoftLineBreak() {
				b.WriteByte(' ')
			}
			if c.HardLineBreak() {
				b.WriteByte('\n')
			}
		case *ast.String:
			b.Write(c.Value)
		case *ast.AutoLink:
			b.Write(c.URL(d.src))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}
