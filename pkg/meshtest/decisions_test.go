package meshtest

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	recordTitle = regexp.MustCompile(`^# (?:\d+\. )?(.+)\n`)
	recordDate  = regexp.MustCompile(`(?m)^Date: \d{4}-\d\d-\d\d\b`)
	recordHead  = regexp.MustCompile(`(?m)^## (.+)$`)
)

// TestDecisions checks that every decision record has a title, a date before its first
// section, the four sections of a record in order, and an entry with its title in
// docs/decisions/README.md, which lists no other file.
func TestDecisions(t *testing.T) {
	index, err := os.ReadFile(root + "docs/decisions/README.md")
	if err != nil {
		t.Fatal(err)
	}
	files := lines(t, "ls-files", "docs/decisions/0*.md")
	if entries := strings.Count(string(index), "\n* ["); entries != len(files) || entries < 40 {
		t.Errorf("README.md lists %d records; there are %d files", entries, len(files))
	}
	for _, file := range files {
		b, err := os.ReadFile(root + file)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(b), "\n## ")
		if !recordDate.MatchString(head) {
			t.Errorf("%s has no line Date: YYYY-MM-DD before its sections", file)
		}
		var sections []string
		for _, m := range recordHead.FindAllStringSubmatch(string(b), -1) {
			sections = append(sections, m[1])
		}
		want := []string{"Context", "Decision", "Alternatives rejected", "Consequences"}
		if got := slices.DeleteFunc(sections, func(s string) bool { return !slices.Contains(want, s) }); !slices.Equal(got, want) {
			t.Errorf("%s has the sections %q, want %q", file, got, want)
		}
		title := recordTitle.FindStringSubmatch(string(b))
		if title == nil {
			t.Errorf("%s has no title", file)
			continue
		}
		name := path.Base(file)
		if entry := "\n* [" + name[:4] + "](" + name + "): " + title[1] + "\n"; !strings.Contains(string(index), entry) {
			t.Errorf("README.md lacks%s", entry)
		}
	}
}
