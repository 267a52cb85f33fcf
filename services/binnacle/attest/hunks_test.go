package attest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// content returns the words of names as lines, each of which ends with a newline.
func content(names string) string {
	return strings.Join(strings.Fields(names), "\n") + strings.Repeat("\n", min(1, len(names)))
}

// edit returns an edit of the file f. Its hooks reported the contents if texts is true, or
// else only their digests.
func edit(id, before, after string, texts bool) Edit {
	e := Edit{Path: "f", Receipt: id, Before: digestOf([]byte(before)), After: digestOf([]byte(after))}
	if texts {
		e.before, e.after, e.linked = &before, &after, true
	}
	return e
}

// show returns hunks as -line,count+line,count=receipt.
func show(hunks []Hunk) string {
	var out []string
	for _, h := range hunks {
		by := "?"
		if h.Edit != nil {
			by = h.Edit.Receipt
		}
		s := ""
		if h.Removed > 0 {
			s += fmt.Sprintf("-%d,%d", h.BaseLine, h.Removed)
		}
		if h.Added > 0 {
			s += fmt.Sprintf("+%d,%d", h.Line, h.Added)
		}
		out = append(out, s+"="+by)
	}
	return strings.Join(out, " ")
}

// TestHunks shows which hunks of a file that people and agents changed are attributed: only
// those that an edit with known contents made.
func TestHunks(t *testing.T) {
	type step struct{ before, after string } // lines
	for _, c := range []struct {
		name, base string
		steps      []step
		digests    bool // the hooks reported no contents
		commit     string
		want       string
		explained  bool
	}{
		{"a person after the agent", "a b c", []step{{"a b c", "a X c"}}, false, "a X c Y", "-2,1+2,1=0 +4,1=?", false},
		{"a person before the agent", "a b c", []step{{"P a b c", "P a X c"}}, false, "P a X c", "+1,1=? -2,1+3,1=0", false},
		{"a person before and after", "a b c d", []step{{"P a b c d", "P a X c d"}}, false, "P a X c Y", "+1,1=? -2,1+3,1=0 -4,1+5,1=?", false},
		{"a person between two edits", "a b c d", []step{{"a b c d", "1 a b c d"}, {"1 a P c d", "1 a P c 2 d"}}, false, "1 a P c 2 d", "+1,1=0 -2,1+3,1=? +5,1=1", false},
		{"without contents", "a b c", []step{{"a b c", "a X c"}}, true, "a X c Y", "-2,1+2,1=? +4,1=?", false},
		{"a person replaced the agent's line", "a b c", []step{{"a b c", "a X c"}}, false, "a Y c", "-2,1=0 +2,1=?", false},
		{"a person deleted what the agent added", "a b", []step{{"a b", "a X b"}}, false, "a b", "", false},
		{"a person moved the agent's lines", "a b c d e", []step{{"a b c d e", "X a b c d e"}}, false, "a b c d e X", "+6,1=?", false},
		{"a person moved lines of the base below the agent's", "a b c", []step{{"a b c", "a b c X"}}, false, "b c X a", "-1,1=? +3,1=0 +4,1=?", false},
		{"a person wrote the agent's line again", "a b", []step{{"a b", "a X b"}, {"a b", "a b Y"}}, false, "a X b Y", "+2,1=? +4,1=1", false},
		{"the agent deletes", "a b c", []step{{"a b c", "a c"}}, false, "a c P", "-2,1=0 +3,1=?", false},
		{"a person deletes", "a b c d", []step{{"a b c d", "X a b c d"}}, false, "X a b d", "+1,1=0 -3,1=?", false},
		{"edits that are part of the base", "a X b", []step{{"a b", "a X b"}}, false, "a X b X", "+4,1=?", false},
		{"the base moved: a rebase", "N a b c", []step{{"a b c", "a X c"}}, false, "N a X c", "-3,1+3,1=0", true},
		{"the base moved and a person changed the file", "N a b c", []step{{"a b c", "a X c"}}, false, "N a X c Y", "-3,1+3,1=0 +5,1=?", false},
		{"created", "", []step{{"", "a b"}}, false, "a b P", "+1,2=0 +3,1=?", false},
		{"two edits", "a", []step{{"a", "a X"}, {"a X", "a X Y"}}, false, "P a X Y", "+1,1=? +3,1=0 +4,1=1", false},
		{"an edit within another", "a", []step{{"a", "a X Y Z"}, {"a X Y Z", "a X W Z"}}, false, "a X W Z P", "+2,1=0 +3,1=1 +4,1=0 +5,1=?", false},
		{"deleted by a person", "a", []step{{"a", "a X"}}, false, "", "-1,1=?", false},
	} {
		var edits []Edit
		for i, s := range c.steps {
			edits = append(edits, edit(fmt.Sprint(i), content(s.before), content(s.after), !c.digests))
		}
		base, commit := content(c.base), content(c.commit)
		f := File{Path: "f", Base: digestOf([]byte(base)), Commit: digestOf([]byte(commit)), base: &base, commit: &commit}
		f.Attribute(edits)
		if got := show(f.Hunks); f.Attributed || got != c.want || f.Explained() != c.explained {
			t.Errorf("%s: %q explained %t, want %q", c.name, got, f.Explained(), c.want)
		}
	}
}

// TestHunksOfText shows that line ends converted by git are no difference, that those
// converted by a person are one, and that content that is not text has no hunks.
func TestHunksOfText(t *testing.T) {
	for _, c := range []struct{ name, base, before, after, commit, want string }{
		{"git converts", "a\nb\n", "a\r\nb\r\n", "a\r\nX\r\nb\r\n", "a\nX\nb\nP\n", "+2,1=0 +4,1=?"},
		{"the agent keeps the line ends", "a\r\nb\r\n", "a\r\nb\r\n", "a\r\nX\r\nb\r\n", "a\r\nX\r\nb\r\nP\r\n", "+2,1=0 +4,1=?"},
		{"a person converts", "a\nb\n", "a\nb\n", "a\nX\nb\n", "a\r\nX\r\nb\r\n", "-1,2+1,3=?"},
		{"the agent converts", "a\nb\n", "a\nb\n", "a\r\nb\r\n", "a\r\nb\r\nP\n", "-1,2+1,2=0 +3,1=?"},
		{"no line end", "a", "a", "a\nX", "a\nX\nP", "-1,1+1,1=0 +2,2=?"},
	} {
		f := File{Path: "f", Base: digestOf([]byte(c.base)), Commit: digestOf([]byte(c.commit)), base: &c.base, commit: &c.commit}
		f.Attribute([]Edit{edit("0", c.before, c.after, true)})
		if got := show(f.Hunks); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	f := File{Path: "f", Base: "A", Commit: "C"}
	if f.Attribute([]Edit{edit("0", "a", "b", true)}); f.Hunks == nil || len(f.Hunks) > 0 || f.Explained() {
		t.Errorf("%+v", f)
	}
}

// TestHunksNeverOverstate changes files at random, by edits whose contents are known and by
// other changes. Each line has a name of its own, so that its author is known, and no line of
// a person may be attributed.
func TestHunksNeverOverstate(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		n := 0
		var now []string
		deleted := map[string]bool{}     // lines that an agent has deleted
		vary := func(by string) string { // inserts and deletes lines; a person also moves some
			for range 1 + rnd.IntN(4) {
				i := rnd.IntN(len(now) + 1)
				switch k := rnd.IntN(3); {
				case k == 0 || i == len(now):
					n++
					now = slices.Insert(now, i, fmt.Sprint(by, n))
				case k == 1 || by == "agent":
					deleted[now[i]] = by == "agent"
					now = slices.Delete(now, i, i+1)
				default:
					l := now[i]
					now = slices.Delete(now, i, i+1)
					now = slices.Insert(now, rnd.IntN(len(now)+1), l)
				}
			}
			return content(strings.Join(now, " "))
		}
		for range 10 {
			vary("base")
		}
		base := content(strings.Join(now, " "))
		var edits []Edit
		for k := range 1 + rnd.IntN(5) {
			if rnd.IntN(2) == 0 {
				vary("person")
			}
			before := content(strings.Join(now, " "))
			edits = append(edits, edit(fmt.Sprint(k), before, vary("agent"), rnd.IntN(4) > 0))
		}
		commit := vary("person")
		f := File{Path: "f", Base: digestOf([]byte(base)), Commit: digestOf([]byte(commit)), base: &base, commit: &commit}
		f.Attribute(edits)
		old, lines := strings.Fields(base), strings.Fields(commit)
		for _, h := range f.Hunks {
			for i := range h.Added {
				if l := lines[h.Line-1+i]; h.Edit != nil && strings.HasPrefix(l, "person") {
					t.Fatalf("the added line %s is attributed to %s\nbase %q\ncommit %q", l, h.Edit.Receipt, base, commit)
				}
			}
			for i := range h.Removed {
				if l := old[h.BaseLine-1+i]; h.Edit != nil && !deleted[l] {
					t.Fatalf("the removed line %s is attributed to %s\nbase %q\ncommit %q", l, h.Edit.Receipt, base, commit)
				}
			}
		}
	}
}
