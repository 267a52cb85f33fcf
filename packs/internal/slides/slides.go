// Package slides has the pack slides.render, which makes slides from Markdown.
package slides

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"html"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// Input is the input of slides.render.
type Input struct {
	Markdown string `json:"markdown"`
	Format   string `json:"format"`
	Title    string `json:"title"`
}

// Output is the output of slides.render.
type Output struct {
	Format   string   `json:"format"`
	Content  string   `json:"content_b64"`
	Size     int      `json:"size"`
	Slides   int      `json:"slides"`
	Warnings []string `json:"warnings"`
}

// maxSlides is the maximum number of slides.
const maxSlides = 500

// Render makes an HTML page or a PDF document of slides, which lines of three hyphens
// separate. A head in YAML, between two such lines at the start, is left out.
func Render(_ context.Context, in Input) (Output, error) {
	parts := split(in.Markdown)
	switch {
	case len(parts) == 0:
		return Output{}, pack.Invalid("/markdown", "there is no slide")
	case len(parts) > maxSlides:
		return Output{}, pack.Fail(pack.ResourceExhausted, "%d slides, more than %d", len(parts), maxSlides)
	}
	md := goldmark.New(goldmark.WithExtensions(extension.Table, extension.Strikethrough), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	out := Output{Format: in.Format, Slides: len(parts), Warnings: []string{}}
	var body []byte
	var err error
	switch in.Format {
	case "html":
		body, err = page(md, in.Title, parts)
	case "pdf":
		d := newDeck(in.Title)
		for i, p := range parts {
			if d.slide(md.Parser().Parse(text.NewReader([]byte(p))), []byte(p)) {
				out.Warnings = append(out.Warnings, fmt.Sprintf("slide %d does not fit on its page: its end is left out", i+1))
			}
		}
		body, err = d.bytes()
	default:
		return Output{}, pack.Invalid("/format", "%q is not html or pdf", in.Format)
	}
	if err != nil {
		return Output{}, err
	}
	out.Content, out.Size = base64.StdEncoding.EncodeToString(body), len(body)
	return out, nil
}

// split returns the slides that are not empty, without the head. A line of three
// hyphens inside of a fenced block does not separate slides.
func split(markdown string) []string {
	lines := strings.Split(strings.ReplaceAll(markdown, "\r\n", "\n"), "\n")
	if strings.TrimSpace(lines[0]) == "---" {
		for i, l := range lines[1:] {
			if strings.TrimSpace(l) == "---" {
				lines = lines[i+2:]
				break
			}
		}
	}
	var out []string
	var b strings.Builder
	fence := ""
	flush := func() {
		if strings.TrimSpace(b.String()) != "" {
			out = append(out, b.String())
		}
		b.Reset()
	}
	for _, l := range lines {
		t := strings.TrimSpace(l)
		switch {
		case fence == "" && (strings.HasPrefix(t, "```") || strings.HasPrefix(t, "~~~")):
			fence = t[:3]
		case fence != "" && strings.HasPrefix(t, fence):
			fence = ""
		case fence == "" && t == "---":
			flush()
			continue
		}
		b.WriteString(l + "\n")
	}
	flush()
	return out
}

const style = `body{margin:0;background:#222;font-family:sans-serif}section{box-sizing:border-box;width:1280px;min-height:720px;margin:16px auto;padding:64px;background:#fff;color:#222;font-size:28px;line-height:1.4}h1{font-size:52px}h2{font-size:40px}pre{background:#f2f2f2;padding:16px;font-size:22px;overflow:hidden}table{border-collapse:collapse}td,th{border:1px solid #999;padding:8px 16px}@media print{body{background:none}section{margin:0;page-break-after:always}}`

// page returns one HTML page with a section for each slide. HTML in the Markdown is left
// out, and so are links that would run scripts.
func page(md goldmark.Markdown, title string, parts []string) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!doctype html>\n<html><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"><title>%s</title><style>%s</style></head><body>\n", html.EscapeString(title), style)
	for _, p := range parts {
		b.WriteString("<section>\n")
		if err := md.Convert([]byte(p), &b); err != nil {
			return nil, err
		}
		b.WriteString("</section>\n")
	}
	b.WriteString("</body></html>\n")
	return b.Bytes(), nil
}
