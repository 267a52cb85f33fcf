// Package document has the pack doc.parse, which converts documents to Markdown.
package document

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	htmltomarkdown "github.com/JohannesKaufmann/html-to-markdown/v2"
	"github.com/ledongthuc/pdf"
	"github.com/xuri/excelize/v2"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// Maximum sizes in bytes of a document, of its unpacked content and of the Markdown, and
// maximum number of pages of a PDF.
const (
	maxBytes    = 12 << 20
	maxUnpacked = 64 << 20
	maxMarkdown = 4 << 20
	maxPages    = 2000
)

// Input is the input of doc.parse.
type Input struct {
	Source   string `json:"source_b64"`
	Filename string `json:"filename"`
}

// Output is the output of doc.parse.
type Output struct {
	Markdown  string `json:"markdown"`
	Format    string `json:"format"`
	Pages     int    `json:"pages"` // pages of a PDF, sheets of a workbook, otherwise 1
	Truncated bool   `json:"truncated"`
}

// Parse converts a PDF, DOCX, XLSX, HTML, Markdown or text document to Markdown. The bytes
// determine the format, except that text is HTML only if the file name has an extension of
// HTML, or if it has no extension and the text begins as HTML does.
func Parse(_ context.Context, in Input) (out Output, err error) {
	body, err := pack.Bytes("/source_b64", in.Source, maxBytes)
	if err != nil {
		return Output{}, err
	}
	defer func() {
		if r := recover(); r != nil { // the library for PDF panics on damaged documents
			out, err = Output{}, pack.Invalid("/source_b64", "the document is damaged: %v", r)
		}
	}()
	switch {
	case bytes.HasPrefix(body, []byte("%PDF-")):
		out, err = parsePDF(body)
	case bytes.HasPrefix(body, []byte("PK")):
		out, err = parseOffice(body)
	case !utf8.Valid(body):
		return Output{}, pack.Invalid("/source_b64", "not a PDF, DOCX, XLSX, HTML or text document")
	case isHTML(in.Filename, body):
		out = Output{Format: "html", Pages: 1}
		out.Markdown, err = htmltomarkdown.ConvertString(string(body))
	default:
		out = Output{Format: "text", Pages: 1, Markdown: string(body)}
	}
	if err != nil {
		return Output{}, err
	}
	out.Markdown, out.Truncated = Cut(out.Markdown, maxMarkdown)
	return out, nil
}

// Cut returns the longest prefix of s with at most max bytes that does not end within a
// character, and whether s is longer.
func Cut(s string, max int) (string, bool) {
	if len(s) <= max {
		return s, false
	}
	for max > 0 && !utf8.RuneStart(s[max]) {
		max--
	}
	return s[:max], true
}

func isHTML(name string, body []byte) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".html", ".htm", ".xhtml":
		return true
	case "":
		head := bytes.ToLower(bytes.TrimSpace(body[:min(len(body), 1024)]))
		return bytes.HasPrefix(head, []byte("<!doctype html")) || bytes.HasPrefix(head, []byte("<html"))
	}
	return false
}

// parsePDF returns the text of a PDF document, with a heading for each page if there are
// several. Pages that are pictures have no text. It reads no further page once the text has
// more than maxMarkdown bytes.
func parsePDF(body []byte) (Output, error) {
	r, err := pdf.NewReader(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return Output{}, pack.Invalid("/source_b64", "the PDF document cannot be read: %v", err)
	}
	n := r.NumPage()
	if n > maxPages {
		return Output{}, pack.Fail(pack.ResourceExhausted, "the document has %d pages, more than %d", n, maxPages)
	}
	var out strings.Builder
	for i := 1; i <= n && out.Len() <= maxMarkdown; i++ {
		p := r.Page(i)
		if p.V.IsNull() {
			continue
		}
		rows, err := p.GetTextByRow()
		if err != nil {
			return Output{}, pack.Invalid("/source_b64", "page %d cannot be read: %v", i, err)
		}
		if n > 1 {
			fmt.Fprintf(&out, "## Page %d\n\n", i)
		}
		for _, row := range rows {
			for _, w := range row.Content {
				out.WriteString(w.S)
			}
			out.WriteString("\n")
		}
		out.WriteString("\n")
	}
	return Output{Format: "pdf", Pages: n, Markdown: strings.TrimSpace(out.String())}, nil
}

// parseXLSX returns each sheet of a workbook as a heading and a table.
func parseXLSX(body []byte) (Output, error) {
	f, err := excelize.OpenReader(bytes.NewReader(body), excelize.Options{UnzipSizeLimit: maxUnpacked, UnzipXMLSizeLimit: maxUnpacked})
	if err != nil {
		return Output{}, pack.Invalid("/source_b64", "the workbook cannot be read: %v", err)
	}
	defer f.Close()
	var out strings.Builder
	sheets := f.GetSheetList()
	for _, sheet := range sheets {
		rows, err := f.GetRows(sheet)
		if err != nil {
			return Output{}, pack.Invalid("/source_b64", "sheet %q cannot be read: %v", sheet, err)
		}
		fmt.Fprintf(&out, "## %s\n\n", sheet)
		writeTable(&out, rows)
	}
	return Output{Format: "xlsx", Pages: len(sheets), Markdown: strings.TrimSpace(out.String())}, nil
}

// writeTable writes a Markdown table, whose first row is the heading. It writes
// nothing for a table without cells.
func writeTable(out *strings.Builder, rows [][]string) {
	width := 0
	for _, r := range rows {
		width = max(width, len(r))
	}
	if width == 0 {
		return
	}
	for i, r := range rows {
		for c := range width {
			cell := ""
			if c < len(r) {
				cell = strings.NewReplacer("|", "\\|", "\r", "", "\n", " ").Replace(r[c])
			}
			out.WriteString("| " + cell + " ")
		}
		out.WriteString("|\n")
		if i == 0 {
			out.WriteString(strings.Repeat("| --- ", width) + "|\n")
		}
	}
	out.WriteString("\n")
}
