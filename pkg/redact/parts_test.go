package redact

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// TestClasses checks, for each byte, whether it counts as alphanumeric, as a character of
// base64 and as a hexadecimal digit. It also checks lower.
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
		`0123456789abcdef\u{41}.`: "0123456789abcdefA.", `0123456789abcdef&#65;.`: "0123456789abcdefA.", `\ud800\udc00\udbff\udfff`: "\U00010000\U0010ffff", "\ud55c" + `\ude42`: "\ud55c\xed\xb9\x82", "\ufa20" + `\ude42`: "\ufa20\xed\xb9\x82",
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
		"%%%%": {true, true}, "%%": {false, false}, `%\u`: {true, true}, `%\n`: {true, true}, "%&": {false, false}, "%&a": {true, true}, "&": {false, false}, "&amp;": {true, true}, "&;": {true, true},
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

// TestLiterals checks that JSON does not replace true, false and null, but replaces a string
// or member name with the same letters, also next to such a literal.
func TestLiterals(t *testing.T) {
	for _, v := range []string{"true", "false", "null"} {
		in := `[` + v + `,"` + v + `",{"` + v + `":` + v + `}]`
		want := `[` + v + `,"[secret:k]",{"[secret:k]":` + v + `}]`
		if out, err := New(map[string]string{"k": v}).JSON([]byte(in)); err != nil || string(out) != want {
			t.Errorf("%s: %s, %v", in, out, err)
		}
	}
}

// TestTrimEscape checks what counts as an incomplete escape at the end of a text.
func TestTrimEscape(t *testing.T) {
	for in, want := range map[string]string{
		"abc": "abc", "%4": "", "ab%": "ab", "ab%4": "ab", "ab%41": "ab%41", `\u00`: "", `ab\`: "ab", `ab\U0000004`: "ab", `ab\U00000041`: `ab\U00000041`, "&am": "", "ab&#x41": "ab", "ab&2345678901": "ab", "ab&23456789012": "ab&23456789012", "": "",
	} {
		if got := string(trimEscape([]byte(in))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestPack checks which characters pack leaves out and replaces.
func TestPack(t *testing.T) {
	for in, want := range map[string][2]string{ // without and with keep
		"a b\tc\r\nd": {"abcd", "a b\tc\r\nd"}, `a\nb\rc\td`: {"abcd", `a\nb\rc\td`}, `a\\nb`: {"ab", `a\nb`}, `a\xb`: {`a\xb`, `a\xb`}, `a\`: {`a\`, `a\`}, "a-b_c": {"a+b/c", "a+b/c"},
	} {
		for i, keep := range []bool{false, true} {
			if got := string(pack([]byte(in), nil, keep).text); got != want[i] {
				t.Errorf("%q, keep %t: %q, want %q", in, keep, got, want[i])
			}
		}
	}
}

// TestReplaced checks the exact text that replaces secrets in several places and encodings. It
// also checks the minimum length of a line that is found by itself.
func TestReplaced(t *testing.T) {
	r := New(map[string]string{"k": "pass word1"})
	b64, hexa := base64.StdEncoding.EncodeToString([]byte("pass word1")), hex.EncodeToString([]byte("pass word1"))
	for in, want := range map[string]string{
		"pass word1pass word1": "[secret:k][secret:k]", "pass+word%31.": "[secret:k].", hexa + " end": "[secret:k] end", hexa + "\nend": "[secret:k]\nend", b64 + " \nend": "[secret:k] \nend", "pass word": "pass word",
	} {
		if got := r.String(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	for line, found := range map[string]bool{strings.Repeat("x", lineLen): true, strings.Repeat("x", lineLen-1): false} {
		r := New(map[string]string{"k": "first line of the value\n" + line})
		if got := r.String("a " + line); strings.Contains(got, "[secret:k]") != found {
			t.Errorf("a line of %d bytes: %q", len(line), got)
		}
	}
}

// TestStructure checks that JSON returns an error if a secret includes a quote of the
// document, or begins in one value and ends in another, that a document without a
// secret is returned unchanged, and that a number whose digits include a secret is
// replaced by a string.
func TestStructure(t *testing.T) {
	for value, doc := range map[string]string{`abc","n`: `{"x":"abc","n":1}`, `"abcdefg`: `["abcdefgh"]`, `abcdefg"`: `["xabcdefg"]`, `12,"n`: `[12,"n"]`, `x":1234`: `{"x":1234}`} {
		if out, err := New(map[string]string{"k": value}).JSON([]byte(doc)); !errors.Is(err, ErrStructure) {
			t.Errorf("%s in %s: %s, %v", value, doc, out, err)
		}
	}
	const doc = `{"b": "x", "a": 1}`
	if out, err := New(map[string]string{"k": "12345678"}).JSON([]byte(doc)); err != nil || string(out) != doc {
		t.Errorf("%s, %v", out, err)
	}
	if out, err := New(map[string]string{"k": "12345678"}).JSON([]byte(`[9123.45678]`)); err != nil || string(out) != `["[secret:k]"]` {
		t.Errorf("%s, %v", out, err)
	}
}
