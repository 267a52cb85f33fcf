package redact

import (
	"strings"
	"testing"
)

// TestClasses checks the classes of bytes for each byte.
func TestClasses(t *testing.T) {
	const digits, upper, small = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
	for i := range 256 {
		c := byte(i)
		in := func(set string) bool { return strings.IndexByte(set, c) >= 0 }
		if alphanumeric(c) != in(digits+upper+small) || inBase64(c) != in(digits+upper+small+"+/") || isHex(c) != in(digits+"abcdefABCDEF") {
			t.Errorf("byte %q: %t %t %t", c, alphanumeric(c), inBase64(c), isHex(c))
		}
	}
	b := []byte("@AZ[az")
	if lower(b); string(b) != "@az[az" {
		t.Errorf("lower: %q", b)
	}
}

// TestAlignments checks the part of each base64 encoding that a value alone determines.
func TestAlignments(t *testing.T) {
	type want struct {
		text          string
		before, after int
	}
	for v, all := range map[string][]want{
		"abcdefgh": {{"YWJjZGVmZ2", 0, 1}, {"FiY2RlZmdo", 1, 0}, {"hYmNkZWZna", 1, 1}},
		"abcd":     {{"YWJjZ", 0, 1}, {"FiY2", 1, 1}, {"hYmNk", 1, 0}},
	} {
		got := alignments(v, false)
		if len(got) != len(all) {
			t.Fatalf("%s: %v", v, got)
		}
		for i, a := range got {
			if string(a.text) != all[i].text || a.before != all[i].before || a.after != all[i].after {
				t.Errorf("%s after %d bytes: %s %d %d, want %v", v, i, a.text, a.before, a.after, all[i])
			}
		}
	}
}

// TestWiden checks by which characters an occurrence of base64 text is extended.
func TestWiden(t *testing.T) {
	for _, c := range []struct {
		view          string
		before, after int
		want          string
	}{
		{"xTEXTy==z", 1, 1, "xTEXTy=="}, {"xTEXTy==z", 0, 0, "TEXT"}, {"xTEXTy", 1, 0, "xTEXT"}, {"xTEXTy", 0, 1, "TEXTy"},
		{"TEXT", 1, 1, "TEXT"}, {"-TEXT-", 1, 1, "TEXT"}, {"TEXT==", 0, 0, "TEXT=="}, {"+TEXT/", 1, 1, "+TEXT/"},
	} {
		a := aligned{text: []byte("TEXT"), before: c.before, after: c.after}
		at := strings.Index(c.view, "TEXT")
		if from, to := a.widen([]byte(c.view), at, at+4); c.view[from:to] != c.want {
			t.Errorf("%q, %d %d: %q, want %q", c.view, c.before, c.after, c.view[from:to], c.want)
		}
	}
	a := aligned{}
	if from, to := a.widen([]byte("xTEXT="), 1, 5); from != 1 || to != 5 {
		t.Errorf("not base64: %d %d", from, to)
	}
}

// TestUnfold checks the text that escapes encode, also at the limits of their syntax.
func TestUnfold(t *testing.T) {
	for in, want := range map[string]string{
		`\u{41}.`: "A.", `\u{10ffff}`: "\U0010ffff", `\u{110000}`: "u{110000}", `\u{}`: "u{}", `u{41}`: "u{41}", `.\u{4g}`: ".u{4g}",
		`\x41\101\u0041\U00000041`: "AAAA", `\x4g`: "x4g", `\400`: "400", `\u004g`: "u004g", `\U0011000`: "U0011000", `\108`: "108",
		`\ud83d\ude42`: "🙂", `\ude42`: "\xed\xb9\x82", `a\ud83dbc`: "a\xed\xa0\xbdbc",
		`&#65;&#x41;&#X41;`: "AAA", `&#;`: "&#;", `&#6;`: "\x06", `&#x;`: "&#x;", `&#1114112;`: "&#1114112;", `#65;`: "#65;", `&no;`: "&no;", `&amp;lt;`: "<",
		`%41%4a%4A`: "AJJ", `%4`: "%4", `%4g`: "%4g", `%25%34%31`: "A", `\\\\n`: "\n",
	} {
		if got := string(unfold([]byte(in)).text); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// TestEscapes checks which texts are unfolded, and which properties of a value require it.
func TestEscapes(t *testing.T) {
	for in, want := range map[string][2]bool{ // without and with a special character in the value
		"plain": {false, false}, `\`: {false, true}, `\n\t\"`: {false, true}, `\u0041`: {true, true}, `\n\u0041`: {true, true}, `\\\\`: {false, true},
		`\\\\x`: {true, true}, "100%": {false, false}, "%": {false, false}, "%4": {false, false}, "%4g": {false, false}, "%41": {true, true}, "% %41": {true, true},
		"%%%%": {true, true}, "%%": {false, false}, `%\u`: {true, true}, "%&": {false, false}, "%&a": {true, true}, "&": {false, false}, "&amp;": {true, true}, "&;": {true, true},
		"&123456789;": {true, true}, "&1234567890;": {true, true}, "&12345678901;": {false, false}, "& &lt;": {true, true},
	} {
		for i, special := range []bool{false, true} {
			if got := escapes([]byte(in), special); got != want[i] {
				t.Errorf("%q, special %t: %t", in, special, got)
			}
		}
	}
	for v, want := range map[string]bool{"abcdefgh": false, "abc defgh": false, `abc"defgh`: true, `abc\defgh`: true, `abc'defgh`: true, "abc\ndefgh": true} {
		if s := compile("k", v); s.special != want {
			t.Errorf("%q: special %t", v, s.special)
		}
	}
}

// TestLiterals checks that literals of a document are not replaced and strings that have
// the same letters are, and that a secret next to a literal is.
func TestLiterals(t *testing.T) {
	for _, v := range []string{"true", "false", "null"} {
		in := `[` + v + `,"` + v + `",{"` + v + `":` + v + `}]`
		want := `[` + v + `,"[secret:k]",{"[secret:k]":` + v + `}]`
		if out, err := New(map[string]string{"k": v}).JSON([]byte(in)); err != nil || string(out) != want {
			t.Errorf("%s: %s, %v", in, out, err)
		}
	}
}
