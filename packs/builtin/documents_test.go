package main

import (
	"archive/zip"
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/png"
	"strings"
	"testing"

	"github.com/xuri/excelize/v2"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

func picture(t *testing.T, w, h int) string {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewRGBA(image.Rect(0, 0, w, h))); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// bomb returns a PNG file with few bytes whose header states many pixels.
func bomb(w, h uint32) string {
	var b bytes.Buffer
	b.WriteString("\x89PNG\r\n\x1a\n")
	chunk := func(kind string, data []byte) {
		_ = binary.Write(&b, binary.BigEndian, uint32(len(data)))
		b.WriteString(kind)
		b.Write(data)
		_ = binary.Write(&b, binary.BigEndian, crc32.ChecksumIEEE(append([]byte(kind), data...)))
	}
	head := binary.BigEndian.AppendUint32(nil, w)
	chunk("IHDR", append(binary.BigEndian.AppendUint32(head, h), 8, 2, 0, 0, 0))
	var z bytes.Buffer
	zw := zlib.NewWriter(&z)
	_, _ = zw.Write(make([]byte, 1<<20))
	_ = zw.Close()
	chunk("IDAT", z.Bytes())
	chunk("IEND", nil)
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// archive returns a ZIP archive in base64.
func archive(t *testing.T, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, body := range files {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// TestBombs shows that small files which unpack to much data are refused, and so is a
// picture whose requested size is too large.
func TestBombs(t *testing.T) {
	zeros := strings.Repeat("0", 65<<20)
	for name, c := range map[string]struct{ pack, input string }{
		"PNG":  {"image.convert", `{"format":"png","image_b64":"` + bomb(60000, 60000) + `"}`},
		"DOCX": {"doc.parse", `{"source_b64":"` + archive(t, map[string]string{"word/document.xml": zeros}) + `"}`},
		"XLSX": {"doc.parse", `{"source_b64":"` + archive(t, map[string]string{"xl/workbook.xml": "<workbook/>", "xl/a.xml": zeros}) + `"}`},
	} {
		if out, failure := run(t, c.pack, c.input); failure == nil || failure.Code != pack.ResourceExhausted {
			t.Errorf("%s: %v %+v", name, out, failure)
		}
	}
	if out, failure := run(t, "image.convert", `{"format":"png","width":16384,"height":16384,"image_b64":"`+picture(t, 1, 1)+`"}`); failure == nil || failure.Code != pack.InvalidInput {
		t.Errorf("a large result: %v %+v", out, failure)
	}
}

// TestDocuments parses documents of several formats, among them a PDF that slides.render has
// made. It checks that slides.render warns of a slide that is too long, and that its HTML
// has no scripts.
func TestDocuments(t *testing.T) {
	const word = `<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>
<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Tides</w:t></w:r></w:p>
<w:p><w:r><w:t>High at </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>noon</w:t></w:r><w:r><w:t>.</w:t></w:r></w:p>
<w:p><w:pPr><w:numPr/></w:pPr><w:r><w:t>first</w:t></w:r></w:p>
<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b|c</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:body></w:document>`
	book := excelize.NewFile()
	for cell, v := range map[string]any{"A1": "day", "B1": "height", "A2": "Monday", "B2": 3.5} {
		if err := book.SetCellValue("Sheet1", cell, v); err != nil {
			t.Fatal(err)
		}
	}
	var xlsx bytes.Buffer
	if err := book.Write(&xlsx); err != nil {
		t.Fatal(err)
	}
	slides, failure := run(t, "slides.render", `{"markdown":"# Tides\n\n1. high at noon\n2. łódź\n\n---\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n`+"```\\ncode\\n```"+`","format":"pdf","title":"Tides"}`)
	if failure != nil || slides["slides"].(float64) != 2 || len(slides["warnings"].([]any)) != 0 {
		t.Fatal(failure, slides)
	}
	for name, c := range map[string]struct{ source, format, want string }{
		"docx": {archive(t, map[string]string{"word/document.xml": word}), "docx", "# Tides\n\nHigh at **noon**.\n\n- first\n| a | b\\|c |\n| --- | --- |"},
		"xlsx": {base64.StdEncoding.EncodeToString(xlsx.Bytes()), "xlsx", "## Sheet1\n\n| day | height |\n| --- | --- |\n| Monday | 3.5 |"},
		"pdf":  {slides["content_b64"].(string), "pdf", "high at noon"},
		"text": {b64("plain"), "text", "plain"},
	} {
		out, failure := run(t, "doc.parse", `{"source_b64":"`+c.source+`"}`)
		if failure != nil || out["format"] != c.format || !strings.Contains(out["markdown"].(string), c.want) {
			t.Errorf("%s: %+v %v", name, failure, out)
		}
	}
	long, failure := run(t, "slides.render", `{"markdown":"`+strings.Repeat("line\\n\\n", 60)+`","format":"pdf"}`)
	if failure != nil || len(long["warnings"].([]any)) != 1 {
		t.Error(failure, long["warnings"])
	}
	page, _ := run(t, "slides.render", `{"markdown":"# A\n\n<script>alert(1)</script>\n\n[x](javascript:alert(1))","format":"html","title":"<b>"}`)
	html, _ := base64.StdEncoding.DecodeString(page["content_b64"].(string))
	if strings.Contains(string(html), "<script") || strings.Contains(string(html), "javascript:") || strings.Contains(string(html), "<b>") {
		t.Errorf("%s", html)
	}
}
