package document

import (
	"archive/zip"
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// parseOffice reads a DOCX or XLSX document, which is a ZIP archive.
func parseOffice(body []byte) (Output, error) {
	z, err := zip.NewReader(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return Output{}, pack.Invalid("/source_b64", "the archive of the document is damaged: %v", err)
	}
	var total uint64
	var word *zip.File
	sheet := false
	for _, f := range z.File {
		total += f.UncompressedSize64
		if total > maxUnpacked || f.UncompressedSize64 > maxUnpacked {
			return Output{}, pack.Fail(pack.ResourceExhausted, "the document unpacks to more than %d bytes", maxUnpacked)
		}
		switch f.Name {
		case "word/document.xml":
			word = f
		case "xl/workbook.xml":
			sheet = true
		}
	}
	switch {
	case sheet:
		return parseXLSX(body)
	case word == nil:
		return Output{}, pack.Invalid("/source_b64", "the archive is neither a DOCX nor an XLSX document")
	}
	r, err := word.Open()
	if err != nil {
		return Output{}, pack.Invalid("/source_b64", "the document cannot be read: %v", err)
	}
	defer r.Close()
	// The size in the directory of the archive may be false.
	md, err := wordMarkdown(io.LimitReader(r, maxUnpacked))
	if err != nil {
		return Output{}, pack.Invalid("/source_b64", "the document cannot be read: %v", err)
	}
	return Output{Format: "docx", Pages: 1, Markdown: md}, nil
}

// wordReader converts the body of a document in WordprocessingML (ECMA-376, part 1,
// section 17) to Markdown: headings, paragraphs, list items, bold and italic text, tables.
type wordReader struct {
	out          strings.Builder
	text         bytes.Buffer // of the current paragraph
	mark         string       // Markdown mark of the last run in text; a run with the same mark is joined
	style        string       // of the current paragraph
	list         bool
	bold, italic bool // of the current run
	inRun        bool
	rows         [][]string // of the outermost table
	cell         strings.Builder
	tables       int // nesting depth of tables
}

func wordMarkdown(r io.Reader) (string, error) {
	w := &wordReader{}
	for d := xml.NewDecoder(r); ; {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return strings.TrimSpace(w.out.String()), nil
		}
		if err != nil {
			return "", err
		}
		switch t := t.(type) {
		case xml.StartElement:
			if t.Name.Local == "t" {
				var s string
				if err := d.DecodeElement(&s, &t); err != nil {
					return "", err
				}
				w.write(s)
				continue
			}
			w.start(t)
		case xml.EndElement:
			w.end(t.Name.Local)
		}
	}
}

// write adds text of a run.
func (w *wordReader) write(s string) {
	mark := ""
	if w.bold {
		mark += "**"
	}
	if w.italic {
		mark += "*"
	}
	if strings.TrimSpace(s) == "" {
		mark = ""
	}
	switch {
	case mark == "":
		w.text.WriteString(s)
	case mark == w.mark:
		w.text.Truncate(w.text.Len() - len(mark))
		w.text.WriteString(s + mark)
	default:
		w.text.WriteString(mark + s + mark)
	}
	w.mark = mark
}

// space adds white space that is not text of a run.
func (w *wordReader) space(s string) {
	w.text.WriteString(s)
	w.mark = ""
}

func (w *wordReader) start(t xml.StartElement) {
	switch t.Name.Local {
	case "p":
		w.text.Reset()
		w.mark, w.style, w.list = "", "", false
	case "pStyle":
		w.style = value(t)
	case "numPr":
		w.list = true
	case "r":
		w.inRun, w.bold, w.italic = true, false, false
	case "b":
		w.bold = w.inRun && value(t) != "0" && value(t) != "false"
	case "i":
		w.italic = w.inRun && value(t) != "0" && value(t) != "false"
	case "tab":
		if w.inRun {
			w.space("\t")
		}
	case "br":
		w.space("\n")
	case "tbl":
		w.tables++
	case "tr":
		if w.tables == 1 {
			w.rows = append(w.rows, nil)
		}
	case "tc":
		if w.tables == 1 {
			w.cell.Reset()
		}
	}
}

func (w *wordReader) end(name string) {
	switch name {
	case "r":
		w.inRun = false
	case "p":
		w.paragraph()
	case "tc":
		if n := len(w.rows); w.tables == 1 && n > 0 {
			w.rows[n-1] = append(w.rows[n-1], strings.TrimSpace(w.cell.String()))
		}
	case "tbl":
		if w.tables--; w.tables == 0 {
			writeTable(&w.out, w.rows)
			w.rows = nil
		}
	}
}

// paragraph writes the paragraph that has ended: to the cell in a table, and
// otherwise to the output. It omits a paragraph without text.
func (w *wordReader) paragraph() {
	text := strings.TrimSpace(w.text.String())
	if text == "" {
		return
	}
	if w.tables > 0 {
		w.cell.WriteString(text + " ")
		return
	}
	switch level := strings.TrimPrefix(w.style, "Heading"); {
	case w.style == "Title":
		text = "# " + text
	case len(level) == 1 && level >= "1" && level <= "6" && level != w.style:
		text = strings.Repeat("#", int(level[0]-'0')) + " " + text
	case w.list:
		w.out.WriteString("- " + text + "\n")
		return
	}
	w.out.WriteString(text + "\n\n")
}

// value returns the attribute val of an element, or "" if the element has none.
func value(t xml.StartElement) string {
	for _, a := range t.Attr {
		if a.Name.Local == "val" {
			return a.Value
		}
	}
	return ""
}
