package report

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"
	text "text/template"
	"unicode"
)

// Formats lists the formats of Write.
var Formats = []string{"markdown", "html", "json"}

//go:embed report.html.tmpl
var pageText string

//go:embed report.md.tmpl
var markdownText string

var functions = map[string]any{
	"usd":   usd,
	"join":  func(l []string) string { return strings.Join(l, ", ") },
	"title": func(c Class) string { return titles[c] },
}

var titles = map[Class]string{
	Denied: "Denied", Escalated: "Escalated to people", Failed: "Failed or unknown", Undecided: "Not decided, because the mesh was away", Succeeded: "Succeeded",
}

var (
	page     = template.Must(template.New("page").Funcs(functions).Parse(pageText))
	markdown = text.Must(text.New("markdown").Funcs(functions).Funcs(text.FuncMap{"md": escaped}).Parse(markdownText))
)

// Write writes the report in one of Formats.
func (r *Report) Write(w io.Writer, format string) error {
	switch format {
	case "json":
		return json.NewEncoder(w).Encode(r)
	case "html":
		return page.Execute(w, r)
	case "markdown":
		return markdown.Execute(w, r)
	}
	return fmt.Errorf("format %q: want %s", format, strings.Join(Formats, ", "))
}

// usd returns an amount in US dollars, or "" for none.
func usd(micros int64) string {
	if micros == 0 {
		return ""
	}
	return fmt.Sprintf("$%d.%06d", micros/1_000_000, micros%1_000_000)
}

// escaped returns a text that Markdown shows as s, on one line and without markup. A space replaces
// each control character and line separator; the code point replaces each character that changes
// the direction of text. The names of tools, principals and folders are not trusted.
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsControl(r) || r == '\u2028' || r == '\u2029':
			b.WriteByte(' ')
		case strings.ContainsRune("\\`*_{}[]()<>#|!~&$", r):
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.Is(unicode.Bidi_Control, r):
			fmt.Fprintf(&b, "U+%04X", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
