package attest

import (
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// maxText is the maximum size in bytes of a content that is divided into hunks.
const maxText = 4 << 20

// Hunk is a part of the difference between a file's content in the base and in the commit:
// lines of the base that are absent from the commit, lines of the commit that are absent from
// the base, or both. Line numbers begin with 1; the number of an empty part is 0.
type Hunk struct {
	BaseLine int   `json:"base_line"` // number of the first removed line in the base
	Removed  int   `json:"removed"`   // number of removed lines
	Line     int   `json:"line"`      // number of the first added line in the commit
	Added    int   `json:"added"`     // number of added lines
	Edit     *Edit `json:"edit"`      // the edit that removed and added them; nil if the hunk is unattributed
}

// line is a line of a content between the base and the commit.
type line struct {
	text string
	base int   // index of the same line in the base; -1 if an edit or something else added it
	edit *Edit // the edit that added it; nil if something else did
}

// history follows the lines of a file from the base on. An edit with known contents adds and
// removes lines. Differences between the content after an edit and the content before the next
// edit are attributed to no edit.
type history struct {
	lines   []line
	removed []*Edit // by index in the base, the edit that removed the line
}

// hunks returns the hunks between the base and the commit, each with the edit that made it
// according to the reported contents, or without one. The result is not nil; it is empty if
// the base or the commit is not text.
func (f *File) hunks(edits []Edit) []Hunk {
	if f.base == nil || f.commit == nil {
		return []Hunk{}
	}
	base, commit := *f.base, *f.commit
	convert := !strings.Contains(base+commit, "\r") // git may have converted the line ends
	normal := func(s string) string {
		if convert {
			return strings.ReplaceAll(s, "\r\n", "\n")
		}
		return s
	}
	first := 0 // edits up to the last one that ends with the content of the base are part of the base
	for i := range edits {
		if edits[i].Path == f.Path && edits[i].After == f.Base {
			first = i + 1
		}
	}
	h := newHistory(base)
	for i := range edits[first:] {
		e := &edits[first+i]
		if e.Path != f.Path || !e.linked || e.before == nil || len(*e.before) > maxText || len(*e.after) > maxText {
			continue
		}
		h.become(normal(*e.before), nil)
		h.become(normal(*e.after), e)
	}
	h.become(commit, nil)
	return h.compare(base, commit)
}

func newHistory(base string) *history {
	h := &history{}
	for i, s := range split(base) {
		h.lines = append(h.lines, line{text: s, base: i})
	}
	h.removed = make([]*Edit, len(h.lines))
	return h
}

// split returns the lines of a text with their ends.
func split(text string) []string {
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// become makes text the current content. by is the edit that changed it, or nil if something
// else did.
func (h *history) become(text string, by *Edit) {
	var now strings.Builder
	for _, l := range h.lines {
		now.WriteString(l.text)
	}
	var out []line
	at := 0
	for _, d := range differences(now.String(), text) {
		out = append(out, h.lines[at:d.from]...)
		for _, l := range h.lines[d.from:d.to] {
			if l.base >= 0 {
				h.removed[l.base] = by
			}
		}
		for _, s := range d.added {
			out = append(out, line{text: s, base: -1, edit: by})
		}
		at = d.to
	}
	h.lines = append(out, h.lines[at:]...)
}

// difference is a range of lines of a text, and the lines that replace them.
type difference struct {
	from, to int // indexes of lines; to is exclusive
	added    []string
}

// differences returns the differences that turn before into after, in order.
func differences(before, after string) (out []difference) {
	at, index := 0, 0 // offset and line number at the end of the part of before that was read
	lineOf := func(offset int) int {
		index += len(split(before[at:offset]))
		at = offset
		return index
	}
	for _, e := range udiff.Lines(before, after) {
		d := difference{from: lineOf(e.Start)}
		d.to = lineOf(e.End)
		if e.New != "" {
			d.added = split(e.New)
		}
		out = append(out, d)
	}
	return out
}

// compare returns the hunks between the base and the commit. The current lines must be those
// of the commit.
func (h *history) compare(base, commit string) []Hunk {
	hunks := []Hunk{}
	shift := 0 // number of lines by which the commit is longer up to here
	for _, d := range differences(base, commit) {
		var own []Hunk
		for i := d.from; i < d.to; i++ {
			own = grow(own, h.removed[i], func(x *Hunk) *int { return &x.BaseLine }, func(x *Hunk) *int { return &x.Removed }, i+1)
		}
		var added []Hunk
		for i := range d.added {
			n := d.from + shift + i
			added = grow(added, h.lines[n].edit, func(x *Hunk) *int { return &x.Line }, func(x *Hunk) *int { return &x.Added }, n+1)
		}
		hunks = append(hunks, joined(own, added)...)
		shift += len(d.added) - (d.to - d.from)
	}
	return hunks
}

// grow adds the line with number n to the last hunk if its edit is by, or else to a new hunk.
// number and count select the members of a hunk to set: those of its removed or of its added
// lines.
func grow(hunks []Hunk, by *Edit, number, count func(*Hunk) *int, n int) []Hunk {
	if len(hunks) == 0 || hunks[len(hunks)-1].Edit != by {
		x := Hunk{Edit: by}
		*number(&x) = n
		hunks = append(hunks, x)
	}
	*count(&hunks[len(hunks)-1])++
	return hunks
}

// joined returns the hunks that remove lines, followed by the hunks that add lines in their
// place. It merges the last hunk that removes lines with the first one that adds lines if
// both have the same edit or none.
func joined(removed, added []Hunk) []Hunk {
	if len(removed) > 0 && len(added) > 0 && removed[len(removed)-1].Edit == added[0].Edit {
		last := removed[len(removed)-1]
		added[0].BaseLine, added[0].Removed = last.BaseLine, last.Removed
		removed = removed[:len(removed)-1]
	}
	return append(removed, added...)
}
