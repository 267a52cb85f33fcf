package slides

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ledongthuc/pdf"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// render renders Markdown and returns the output with its bytes.
func render(t *testing.T, markdown, format string) (Output, []byte) {
	t.Helper()
	out, err := Render(t.Context(), Input{Markdown: markdown, Format: format, Title: "x"})
	if err != nil {
		t.Fatal(err)
	}
	body, err := base64.StdEncoding.DecodeString(out.Content)
	if err != nil || len(body) != out.Size {
		t.Fatal(err, len(body), out.Size)
	}
	return out, body
}

// rows returns the rows of text on each page of a PDF document, with the distance from the
// left margin in millimeters before each text. A bullet is read as a quotation mark.
func rows(t *testing.T, body []byte) (pages [][]string) {
	t.Helper()
	r, err := pdf.NewReader(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.NumPage() {
		var page []string
		var last pdf.Text
		for _, x := range r.Page(i + 1).Content().Text {
			switch {
			case len(page) == 0 || x.Y != last.Y:
				page = append(page, "")
			case x.X == last.X:
				page[len(page)-1] += x.S
				continue
			default:
				page[len(page)-1] += " "
			}
			last = x
			page[len(page)-1] += fmt.Sprintf("%d:%s", int(math.Round(x.X*25.4/72))-margin-1, x.S)
		}
		pages = append(pages, page)
	}
	return pages
}

// TestPDF checks the rows of text for each kind of block, and their indentation.
func TestPDF(t *testing.T) {
	for markdown, want := range map[string][]string{
		"# a *b*\n## c":               {"0:a b", "0:c"},
		"a\nb  \nc\n\nd":              {"0:a b", "0:c", "0:d"},
		"- a\n- b\n  - c\n- d":        {`0:" 8:a`, `0:" 8:b`, `10:" 18:c`, `0:" 8:d`},
		"3. a\n4. b\n\n   c":          {"0:3. 8:a", "0:4. 8:b", "8:c"},
		"> a\n> > b\n\nc":             {"10:a", "20:b", "0:c"},
		"```\na\n\nb\n```\n\n    c":   {"4:a", "4:b", "4:c"},
		"| a | b |\n|-|-|\n| c | d |": {"0:a   |   b", "0:c   |   d"},
		"<http://x.y> `z`":            {"0:http://x.y z"},
	} {
		out, body := render(t, markdown, "pdf")
		if got := rows(t, body); len(got) != 1 || !slices.Equal(got[0], want) || len(out.Warnings) != 0 || out.Slides != 1 {
			t.Errorf("%q: %q %v, want %q", markdown, got, out.Warnings, want)
		}
	}
}

// TestWrap checks that a long line is divided into rows which use the width of the page
// between the margins, less the indentation.
func TestWrap(t *testing.T) {
	font := newDeck("").pdf
	font.SetFont("go", "", 18)
	for quotes, indent := range []int{0, 10, 20} {
		_, body := render(t, strings.Repeat("> ", quotes)+strings.Repeat("word ", 100), "pdf")
		got := rows(t, body)[0]
		for i, r := range got {
			text, ok := strings.CutPrefix(r, fmt.Sprintf("%d:", indent))
			room := pageWidth - 2*margin - float64(indent)
			if width := font.GetStringWidth(text); !ok || width > room || i < len(got)-1 && width+font.GetStringWidth(" word") < room-2 {
				t.Errorf("row %d of %d has %.0f of %.0f mm: %s", i, len(got), width, room, r)
			}
		}
	}
}

// TestFull checks how many rows fit on a page, and that a slide with more has a warning and
// does not use the next page.
func TestFull(t *testing.T) {
	for name, c := range map[string]struct {
		block string
		fit   int
	}{
		"code":       {"x\n", 24},        // 154.5 mm, rows of 13 pt
		"headings":   {"# x\n", 7},       // rows of 32 pt
		"small":      {"###### x\n", 13}, // rows of 18 pt
		"paragraphs": {"x\n\n", 13},      // rows of 18 pt
		"items":      {"- x\n", 13},      // rows of 18 pt
		"breaks":     {"x  \n", 17},      // rows of 18 pt of one paragraph
		"quotes":     {"> x\n>\n", 13},   // rows of 18 pt
	} {
		for n, warnings := range map[int]int{c.fit: 0, c.fit + 1: 1, 2 * c.fit: 1} {
			markdown := strings.Repeat(c.block, n)
			if name == "code" {
				markdown = "```\n" + markdown + "```\n"
			}
			out, body := render(t, markdown+"\n---\n# next", "pdf")
			got := rows(t, body)
			if len(got) != 2 || len(got[0]) != c.fit || len(got[1]) != 1 || len(out.Warnings) != warnings {
				t.Errorf("%s: %d of %d rows, %d pages, %q", name, len(got[0]), n, len(got), out.Warnings)
			}
			if warnings > 0 && !strings.HasPrefix(out.Warnings[0], "slide 1 does not fit") {
				t.Errorf("%s: %q", name, out.Warnings)
			}
		}
	}
}

// TestLimits checks the number of slides and the format.
func TestLimits(t *testing.T) {
	slide := "# a\n---\n"
	if out, _ := render(t, strings.Repeat(slide, maxSlides), "html"); out.Slides != maxSlides {
		t.Errorf("%d slides", out.Slides)
	}
	for _, c := range []struct{ markdown, format, code string }{
		{strings.Repeat(slide, maxSlides+1), "html", pack.ResourceExhausted},
		{"", "html", pack.InvalidInput},
		{"---\na: b\n---\n", "pdf", pack.InvalidInput},
		{"# a", "odp", pack.InvalidInput},
	} {
		_, err := Render(t.Context(), Input{Markdown: c.markdown, Format: c.format})
		var got *pack.Error
		if !errors.As(err, &got) || got.Code != c.code {
			t.Errorf("%.20q %s: %v", c.markdown, c.format, err)
		}
	}
}
