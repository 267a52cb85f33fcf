package action

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxEdits is the maximum number of changes in one input of which Result computes the content.
const maxEdits = 1000

// Limits on the computation of a content from the input of a tool, which a model can make large.
const (
	maxAfter = 16 << 20 // bytes of a content
	maxWork  = 64 << 20 // bytes that are searched or compared
)

// Result returns the contents that a file of a tool's input may have after the tool has run,
// if nothing else changes the file, given its content before; nil is the content of a file that
// does not exist. A tool may convert line ends, so that there can be several. known is false if
// they cannot be determined from the input.
func (a *Action) Result(path string, before []byte) (after [][]byte, known bool) {
	if a.result == nil || !utf8.Valid(before) {
		return nil, false
	}
	return a.result(path, before)
}

// written returns the function Action.result of a tool whose input has the whole content.
func written(content string) func(string, []byte) ([][]byte, bool) {
	return func(_ string, before []byte) ([][]byte, bool) {
		out := [][]byte{[]byte(content)}
		if strings.Contains(string(before), "\r\n") {
			out = append(out, []byte(crlf(content)))
		}
		return out, true
	}
}

// crlf returns a text with all line ends as CR LF.
func crlf(s string) string { return strings.ReplaceAll(lf(s), "\n", "\r\n") }

// lf returns a text with all line ends as LF.
func lf(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// replacement is one of the changes that the input of an edit tool requests: text to replace
// and its new text. all is set if every occurrence is replaced.
type replacement struct {
	from, to string
	all      bool
}

// replacements returns the changes that the input of a tool requests. It returns nil if there are
// none, if one is malformed, or if there are more than maxEdits.
func replacements(in map[string]any) (out []replacement) {
	list, ok := in["edits"].([]any)
	if !ok {
		list = []any{in}
	}
	for _, x := range list {
		m, _ := x.(map[string]any)
		from, hasFrom := first(m, "old_string", "oldString")
		to, hasTo := first(m, "new_string", "newString")
		if !hasFrom || !hasTo || len(out) == maxEdits {
			return nil
		}
		all, _ := m["replace_all"].(bool)
		other, _ := m["replaceAll"].(bool)
		multiple, _ := m["allow_multiple"].(bool)
		out = append(out, replacement{from, to, all || other || multiple})
	}
	return out
}

// first returns the first of the members that is a text.
func first(m map[string]any, names ...string) (string, bool) {
	for _, n := range names {
		if s, ok := m[n].(string); ok {
			return s, true
		}
	}
	return "", false
}

// replaced returns the function Action.result of a tool that replaces text.
func replaced(changes []replacement) func(string, []byte) ([][]byte, bool) {
	return func(_ string, before []byte) ([][]byte, bool) {
		var out [][]byte
		if s, ok := apply(string(before), changes); ok {
			out = append(out, []byte(s))
		}
		if strings.Contains(string(before), "\r\n") {
			normal := slices.Clone(changes)
			for i := range normal {
				normal[i].from, normal[i].to = lf(normal[i].from), lf(normal[i].to)
			}
			if s, ok := apply(lf(string(before)), normal); ok {
				out = append(out, []byte(crlf(s)), []byte(s))
			}
		}
		return out, len(out) > 0
	}
}

// apply makes changes one after the other. ok is false if a text to replace is absent, if it is
// empty and s is not, if a content is longer than maxAfter, or if the contents have more than
// maxWork bytes in all.
func apply(s string, changes []replacement) (out string, ok bool) {
	work := 0
	for _, c := range changes {
		if work += len(s); work > maxWork {
			return "", false
		}
		switch {
		case c.from == "" && s != "" || !strings.Contains(s, c.from):
			return "", false
		case c.from == "":
			s = c.to
			continue
		case c.to == "" && !strings.HasSuffix(c.from, "\n") && strings.Contains(s, c.from+"\n"):
			c.from += "\n" // removing a line removes its end
		}
		n := 1
		if c.all {
			n = strings.Count(s, c.from)
		}
		if len(s)+n*(len(c.to)-len(c.from)) > maxAfter {
			return "", false
		}
		s = strings.Replace(s, c.from, c.to, n)
	}
	return s, true
}

// section is the part of a patch in Codex's format that is about one file.
type section struct {
	verb  string // Add, Update or Delete
	lines []string
}

var sectionLine = regexp.MustCompile(`^\*\*\* (Add|Update|Delete) File: (.+?)\s*$`)

// patched returns the function Action.result of a patch in Codex's format. locate resolves the
// paths in the patch. The result is unknown for a file that the patch does not name, that it moves,
// or that has several sections, and if update fails.
func patched(patch string, locate func(string) string) func(string, []byte) ([][]byte, bool) {
	sections := map[string]*section{}
	var at *section
	for line := range strings.SplitSeq(lf(patch), "\n") {
		switch m := sectionLine.FindStringSubmatch(line); {
		case m != nil:
			at = &section{verb: m[1]}
			if path := locate(m[2]); sections[path] == nil {
				sections[path] = at
			} else {
				sections[path] = &section{} // two sections for one file
			}
		case strings.HasPrefix(line, "*** Move to:") && at != nil:
			at.verb = ""
		case strings.HasPrefix(line, "*** End Patch"):
			at = nil
		case at != nil && line != "*** End of File":
			at.lines = append(at.lines, line)
		}
	}
	return func(path string, before []byte) ([][]byte, bool) {
		s := sections[path]
		if s == nil {
			return nil, false
		}
		switch s.verb {
		case "Delete":
			return [][]byte{nil}, true
		case "Add":
			return [][]byte{[]byte(s.added())}, true
		case "Update":
			if after, ok := s.update(string(before)); ok {
				return [][]byte{[]byte(after)}, true
			}
		}
		return nil, false
	}
}

// added returns the content of a new file.
func (s *section) added() string {
	var out strings.Builder
	for _, l := range s.lines {
		if text, ok := strings.CutPrefix(l, "+"); ok {
			out.WriteString(text + "\n")
		}
	}
	return out.String()
}

// update applies the chunks of a section, each after the one before it. ok is false if the lines of
// a chunk are not found exactly, or not within maxWork bytes that are compared, if its header is not
// found, or if it only adds lines.
func (s *section) update(before string) (after string, ok bool) {
	have := strings.Split(strings.TrimSuffix(before, "\n"), "\n")
	var out, from, to []string
	work := maxWork
	flush := func() bool {
		if len(from) == 0 && len(to) == 0 {
			return true
		}
		i := index(have, from, &work)
		if len(from) == 0 || i < 0 {
			return false
		}
		out, have = append(append(out, have[:i]...), to...), have[i+len(from):]
		from, to = nil, nil
		return true
	}
	for _, l := range s.lines {
		switch {
		case strings.HasPrefix(l, "@@"):
			if !flush() {
				return "", false
			}
			header := strings.TrimSpace(strings.TrimPrefix(l, "@@"))
			if header == "" {
				continue
			}
			i := slices.IndexFunc(have, func(h string) bool { return strings.TrimSpace(h) == header })
			if i < 0 {
				return "", false
			}
			out, have = append(out, have[:i+1]...), have[i+1:]
		case strings.HasPrefix(l, "+"):
			to = append(to, l[1:])
		case strings.HasPrefix(l, "-"):
			from = append(from, l[1:])
		default:
			l = strings.TrimPrefix(l, " ")
			from, to = append(from, l), append(to, l)
		}
	}
	if !flush() {
		return "", false
	}
	return strings.Join(append(out, have...), "\n") + "\n", true
}

// index returns the index of the first occurrence of some lines in others, or -1. It takes the
// number of bytes that it compares, and one for each line, from work, and returns -1 if none is left.
func index(lines, some []string, work *int) int {
	for i := 0; i+len(some) <= len(lines); i++ {
		n := 0
		for n < len(some) && lines[i+n] == some[n] && *work > 0 {
			*work -= 1 + len(some[n])
			n++
		}
		if *work--; *work <= 0 {
			return -1
		}
		if n == len(some) {
			return i
		}
	}
	return -1
}

// resultOf returns the function Action.result of a tool that writes or edits one file, or nil if
// the result is unknown.
func resultOf(in map[string]any) func(string, []byte) ([][]byte, bool) {
	if content, ok := in["content"].(string); ok {
		return written(content)
	}
	if r := replacements(in); r != nil {
		return replaced(r)
	}
	return nil
}

// resultOfPatch returns the function Action.result of a patch whose paths are relative to the
// current folder.
func (p *Place) resultOfPatch(patch string) func(string, []byte) ([][]byte, bool) {
	return patched(patch, func(name string) string { return p.locate(p.CWD, name).Path })
}
