package slides

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
)

// TestSplit checks where slides begin: not in a fenced block, and not at the front matter.
func TestSplit(t *testing.T) {
	for in, want := range map[string][]string{
		"": nil, "# a": {"# a\n"}, "# a\n---\n# b": {"# a\n", "# b\n"}, "# a\r\n---\r\n# b": {"# a\n", "# b\n"}, "---\ntitle: x\n---\n# a": {"# a\n"}, "---\n# a": {"# a\n"},
		"```\n---\n```\n---\nb": {"```\n---\n```\n", "b\n"}, "~~~\n```\n---\n~~~\n---\nb": {"~~~\n```\n---\n~~~\n", "b\n"}, "a\n---\n\n---\nb": {"a\n", "b\n"}, "a\n ---\nb": {"a\n", "b\n"},
	} {
		if got := split(in); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestRenderRemovesScripts checks that the page has no script elements or links that would
// run scripts, that the title is escaped, and that the page has a section for each slide
// and a content security policy.
func TestRenderRemovesScripts(t *testing.T) {
	out, err := Render(t.Context(), Input{Markdown: "# a\n<script>alert(1)</script>\n[x](javascript:alert(2))\n---\n# b", Format: "html", Title: "<b>"})
	if err != nil {
		t.Fatal(err)
	}
	body, err := base64.StdEncoding.DecodeString(out.Content)
	if err != nil {
		t.Fatal(err)
	}
	page := string(body)
	if strings.Contains(page, "<script") || strings.Contains(page, "javascript:") || strings.Contains(page, "<title><b>") || strings.Count(page, "<section>") != 2 || !strings.Contains(page, "default-src 'none'") {
		t.Error(page)
	}
}
