package document

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/xuri/excelize/v2"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// parse parses a document without a file name.
func parse(t *testing.T, body []byte) (Output, error) {
	t.Helper()
	return Parse(t.Context(), Input{Source: base64.StdEncoding.EncodeToString(body)})
}

// archive returns a ZIP archive with one file.
func archive(t *testing.T, name, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create(name)
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// declared returns a ZIP archive with empty files whose directory declares sizes.
func declared(t *testing.T, sizes ...uint64) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i, n := range sizes {
		if _, err := z.CreateRaw(&zip.FileHeader{Name: fmt.Sprintf("f%d", i), UncompressedSize64: n}); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// pages returns a PDF document with a line of text on each page.
func pages(texts ...string) []byte { return counted(len(texts), texts...) }

// counted returns a PDF document that declares a number of pages.
func counted(count int, texts ...string) []byte {
	objects := []string{"<</Type/Catalog/Pages 2 0 R>>", "", "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"}
	var kids []string
	for _, text := range texts {
		stream := fmt.Sprintf("BT /F1 12 Tf 10 10 Td (%s) Tj ET", text)
		kids = append(kids, fmt.Sprintf("%d 0 R", len(objects)+1))
		objects = append(objects, fmt.Sprintf("<</Type/Page/Parent 2 0 R/Resources<</Font<</F1 3 0 R>>>>/Contents %d 0 R>>", len(objects)+2),
			fmt.Sprintf("<</Length %d>>stream\n%s\nendstream", len(stream), stream))
	}
	objects[1] = fmt.Sprintf("<</Type/Pages/Count %d/Kids[%s]>>", count, strings.Join(kids, " "))
	var b bytes.Buffer
	b.WriteString("%PDF-1.4\n")
	var at []int
	for i, o := range objects {
		at = append(at, b.Len())
		fmt.Fprintf(&b, "%d 0 obj%s\nendobj\n", i+1, o)
	}
	start := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(objects)+1)
	for _, n := range at {
		fmt.Fprintf(&b, "%010d 00000 n \n", n)
	}
	fmt.Fprintf(&b, "trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n", len(objects)+1, start)
	return b.Bytes()
}

// TestFormats checks the output for each format but XLSX, that the file name of a PDF is not
// used, that HTML in a file with another extension is text, and that a long text is
// truncated.
func TestFormats(t *testing.T) {
	for _, c := range []struct {
		name, filename string
		body           []byte
		want           Output
	}{
		{"text", "", []byte("a\nb"), Output{Format: "text", Pages: 1, Markdown: "a\nb"}},
		{"HTML", "a.html", []byte("<h1>a</h1>"), Output{Format: "html", Pages: 1, Markdown: "# a"}},
		{"text of a name of HTML", "a.md", []byte("<h1>a</h1>"), Output{Format: "text", Pages: 1, Markdown: "<h1>a</h1>"}},
		{"a page", "a.txt", pages("one"), Output{Format: "pdf", Pages: 1, Markdown: "one"}},
		{"two pages", "", pages("one", "two"), Output{Format: "pdf", Pages: 2, Markdown: "## Page 1\n\none\n\n## Page 2\n\ntwo"}},
		{"Word", "", archive(t, "word/document.xml", "<w:p xmlns:w='w'><w:r><w:t>a</w:t></w:r></w:p>"), Output{Format: "docx", Pages: 1, Markdown: "a"}},
	} {
		got, err := Parse(t.Context(), Input{Source: base64.StdEncoding.EncodeToString(c.body), Filename: c.filename})
		if err != nil || got != c.want {
			t.Errorf("%s: %+v %v, want %+v", c.name, got, err, c.want)
		}
	}
	long, err := parse(t, bytes.Repeat([]byte("x"), maxMarkdown+1))
	if err != nil || len(long.Markdown) != maxMarkdown || !long.Truncated {
		t.Errorf("%d bytes, %v %v", len(long.Markdown), long.Truncated, err)
	}
}

// TestDamaged checks the error codes for documents that cannot be read or are too large.
func TestDamaged(t *testing.T) {
	for name, c := range map[string]struct {
		body []byte
		code string
	}{
		"bytes":                    {[]byte{0xff, 0xfe}, pack.InvalidInput},
		"a PDF without content":    {[]byte("%PDF-1.4"), pack.InvalidInput},
		"a cut PDF":                {pages("one")[:60], pack.InvalidInput},
		"an archive":               {[]byte("PK\x03\x04"), pack.InvalidInput},
		"an archive of other data": {archive(t, "a.txt", "x"), pack.InvalidInput},
		"malformed XML":            {archive(t, "word/document.xml", "<a><b></a>"), pack.InvalidInput},
		"a cut text of a run":      {archive(t, "word/document.xml", "<a><t>x"), pack.InvalidInput},
		"a damaged workbook":       {archive(t, "xl/workbook.xml", "<"), pack.InvalidInput},
		"the greatest size":        {declared(t, maxUnpacked), pack.InvalidInput},
		"a great size":             {declared(t, maxUnpacked+1), pack.ResourceExhausted},
		"a sum of sizes":           {declared(t, maxUnpacked, 1), pack.ResourceExhausted},
		"sizes that overflow":      {declared(t, 1<<63, 1<<63), pack.ResourceExhausted},
	} {
		_, err := parse(t, c.body)
		var got *pack.Error
		if !errors.As(err, &got) || got.Code != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
	if _, err := Parse(t.Context(), Input{Source: "*"}); err == nil {
		t.Error("malformed base64 is accepted")
	}
}

// TestPages checks that a PDF document may have maxPages pages, and no more, and that pages
// which do not exist are left out.
func TestPages(t *testing.T) {
	want := Output{Format: "pdf", Pages: maxPages, Markdown: "## Page 1\n\none"}
	if out, err := parse(t, counted(maxPages, "one")); err != nil || out != want {
		t.Errorf("%+v: %v", out, err)
	}
	_, err := parse(t, counted(maxPages+1, "one"))
	var got *pack.Error
	if !errors.As(err, &got) || got.Code != pack.ResourceExhausted {
		t.Error(err)
	}
}

// TestWorkbook checks that a sheet is a heading and a table, and an empty sheet only a
// heading.
func TestWorkbook(t *testing.T) {
	f := excelize.NewFile()
	defer f.Close()
	_, err := f.NewSheet("Empty")
	for cell, v := range map[string]any{"A1": "a", "B1": 1, "A2": "x|y"} {
		err = errors.Join(err, f.SetCellValue("Sheet1", cell, v))
	}
	var b bytes.Buffer
	if err := errors.Join(err, f.Write(&b)); err != nil {
		t.Fatal(err)
	}
	want := Output{Format: "xlsx", Pages: 2, Markdown: "## Sheet1\n\n| a | 1 |\n| --- | --- |\n| x\\|y |  |\n\n## Empty"}
	if got, err := parse(t, b.Bytes()); err != nil || got != want {
		t.Errorf("%+v %v", got, err)
	}
}

// TestWord checks the conversion of headings, lists, runs and tables of a Word document.
func TestWord(t *testing.T) {
	run := func(props, text string) string { return "<r><rPr>" + props + "</rPr><t>" + text + "</t></r>" }
	style := func(name, text string) string {
		return `<p><pPr><pStyle val="` + name + `"/></pPr>` + run("", text) + "</p>"
	}
	cell := func(text string) string { return "<tc><p>" + run("", text) + "</p></tc>" }
	for in, want := range map[string]string{
		"": "",
		"<p>" + run("", "a") + run("", "b") + "</p><p/><p>" + run("", "c") + "</p>":                                                                             "ab\n\nc",
		style("Title", "a") + style("Heading1", "b") + style("Heading6", "c"):                                                                                   "# a\n\n# b\n\n###### c",
		style("Heading0", "a") + style("Heading7", "b") + style("Heading12", "c"):                                                                               "a\n\nb\n\nc",
		style("3", "a") + style("Heading", "b") + style("Headings", "c"):                                                                                        "a\n\nb\n\nc",
		"<p><pPr><numPr/></pPr>" + run("", "a") + "</p><p>" + run("", "b") + "</p>":                                                                             "- a\nb",
		style("Heading2", "a") + "<p>" + run("", "b") + "</p>":                                                                                                  "## a\n\nb",
		"<p>" + run("<b/>", "a") + run("<i/>", "b") + run("<b/><i/>", "c") + "</p>":                                                                             "**a***b****c***",
		"<p>" + run("", "a****b") + run("<b/>", "c<!-- -->d") + "</p>":                                                                                          "a****b**cd**",
		"<p><r><rPr><b/></rPr><t>a</t><br/><t>b</t><tab/><t>c</t></r></p>":                                                                                      "**a**\n**b**\t**c**",
		"<p>" + run("<b/>", "a") + "</p><p>" + run("<b/>", "b") + "</p>":                                                                                        "**a**\n\n**b**",
		"<p>" + run("<b/>", "a") + run("<b/>", " ") + run("<b/>", "b") + "</p>":                                                                                 "**a** **b**",
		"<p>" + run("<b/>", "a") + run("<b/>", "b") + "</p>":                                                                                                    "**ab**",
		"<p>" + run("<b/>", "a") + run("", "b") + "</p>":                                                                                                        "**a**b",
		"<p>" + run(`<b val="0"/><i val="false"/>`, "a") + run(`<b val="1"/>`, "b") + "</p>":                                                                    "a**b**",
		"<p>" + run(`<b val="false"/><i val="0"/>`, "a") + run(`<i val="1"/>`, "b") + "</p>":                                                                    "a*b*",
		"<p><pPr><rPr><b/><i/></rPr></pPr><t>a</t></p>":                                                                                                         "a",
		"<p>" + run("", "a") + run("<b/>", " ") + run("", "b") + "</p>":                                                                                         "a b",
		"<p><r><t>a</t><tab/><t>b</t><br/><t>c</t></r></p>":                                                                                                     "a\tb\nc",
		"<p><pPr><tabs><tab/></tabs></pPr><r><t>a</t></r><tab/><r><t>b</t></r></p>":                                                                             "ab",
		"<tbl><tr>" + cell("a") + cell("b") + "</tr><tr>" + cell("c") + "</tr></tbl>":                                                                           "| a | b |\n| --- | --- |\n| c |  |",
		"<tbl><tr><tc><p>" + run("", "a") + "</p><p>" + run("", "b") + "</p></tc></tr></tbl>":                                                                   "| a b |\n| --- |",
		"<tbl><tr><tc><p>" + run("", "a") + "</p><tbl><tr>" + cell("b") + cell("c") + "</tr></tbl></tc>" + cell("d") + "</tr></tbl><p>" + run("", "e") + "</p>": "| a b c | d |\n| --- | --- |\n\ne",
		"<tbl><tr>" + cell("a") + "</tr></tbl><tbl><tr>" + cell("b") + "</tr></tbl>":                                                                            "| a |\n| --- |\n\n| b |\n| --- |",
		"<tbl>" + cell("a") + "<tr>" + cell("b") + "</tr></tbl>":                                                                                                "| b |\n| --- |",
	} {
		got, err := wordMarkdown(strings.NewReader("<doc>" + in + "</doc>"))
		if err != nil || got != want {
			t.Errorf("%s\ngot  %q %v\nwant %q", in, got, err, want)
		}
	}
}
