package scan

import (
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestBytes checks how each byte is classified.
func TestBytes(t *testing.T) {
	const digits, upper, small = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
	for i := range 256 {
		c := byte(i)
		in := func(set string) bool { return strings.IndexByte(set, c) >= 0 }
		if digit(c) != in(digits) || capital(c) != in(upper) || word(c) != in(digits+upper+small+"_") || local(c) != in(digits+upper+small+"_.%+-") {
			t.Errorf("byte %q: %t %t %t %t", c, digit(c), capital(c), word(c), local(c))
		}
		if number := leads[c] == leadNumber; number != in(digits+"+") || (leads[c] == leadLetter) != in(upper+small) {
			t.Errorf("byte %q leads to %d", c, leads[c])
		}
	}
}

// TestForms checks the minimum and maximum length of each credential that has a prefix,
// and what may follow it.
func TestForms(t *testing.T) {
	for _, f := range forms {
		for n, want := range map[int]bool{f.least - 1: false, f.least: true, f.most: true, f.most + 1: false} {
			s := f.prefix + strings.Repeat("x", n)
			class, length, open := token([]byte(s))
			if (length > 0) != want || want && (class != f.class || length != len(s)) || open != (n <= f.most) {
				t.Errorf("%s and %d bytes: %q, length %d, open %t", f.prefix, n, class, length, open)
			}
			if class, length, open := token([]byte(s + ".")); (length > 0) != want || want && (class != f.class || length != len(s)) || open {
				t.Errorf("%s and %d bytes before a dot: %q, length %d, open %t", f.prefix, n, class, length, open)
			}
		}
		s := f.prefix + strings.Repeat("x", f.least-1) + "-"
		if n, _ := f.match([]byte(s + " ")); (n == len(s)) != strings.Contains(f.also, "-") || n != 0 && n != len(s) {
			t.Errorf("%s with a hyphen: length %d", f.prefix, n)
		}
	}
	if class, n, _ := token([]byte(contract.IDVirtualKey + strings.Repeat("x", 40))); class != "api_key" || n == 0 {
		t.Errorf("virtual key: %q, length %d", class, n)
	}
}

// TestWebToken checks the minimum and maximum lengths of the parts of a JSON Web Token,
// and whether bytes after it could complete it.
func TestWebToken(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		text string
		n    int
		open bool
	}{
		{"eyJ", 0, true}, {"eyK.", 0, false}, {"eyJ.", 0, true}, {"eyJ-", 0, true}, {"eyJ!", 0, false},
		{"eyJ" + x(4096) + ".", 0, true}, {"eyJ" + x(4097) + ".", 0, false}, {"eyJ." + x(9) + "." + x(10), 0, false},
		{"eyJ." + x(10), 0, true}, {"eyJ." + x(10) + " ", 0, false}, {"eyJ." + x(10) + ".", 0, true}, {"eyJ." + x(10) + "." + x(9) + " ", 0, false},
		{"eyJ." + x(10) + "." + x(9), 0, true}, {"eyJ." + x(10) + "." + x(10), 25, true}, {"eyJ." + x(10) + "." + x(10) + " ", 25, false},
		{"eyJ." + x(8192) + "." + x(4097) + " ", 4 + 8192 + 1 + 4096, false}, {"eyJ." + x(8193) + "." + x(10), 0, false},
	} {
		if n, open := webToken([]byte(c.text)); n != c.n || open != c.open {
			t.Errorf("%.40q of %d bytes: length %d, open %t", c.text, len(c.text), n, open)
		}
	}
}

// TestNumber checks the bounds of numbers, and how many bytes need no second scan.
func TestNumber(t *testing.T) {
	for _, c := range []struct {
		text, class string
		n           int
	}{
		{"+12345678", "phone", 9}, {"+1234567", "", 8}, {"+123456789012345", "phone", 16}, {"+1234567890123456", "", 17}, {"+1.2(3)4-5678.", "phone", 13},
		{"+12345678x", "", 9}, {"+", "", 0}, {"12345678", "", 8},
		{"4222222222222", "credit_card", 13}, {"422222222226", "", 12}, {"6304000000000000000", "credit_card", 19}, {"6304000000000000001", "", 19}, {"6304000000000000000 0", "", 21}, {"6304000000000000000x", "", 19},
		{"079927398713", "", 12}, {"0079927398713", "credit_card", 13}, {"0000000079927398713", "credit_card", 19}, {"00000000079927398713", "", 20},
		{"4222-2222 2222 2;", "credit_card", 16}, {"4222.222222222", "", 4}, {"0000000000000", "", 13}, {"4222222222222  1", "credit_card", 13},
		{"078-05-1120", "us_ssn", 11}, {"078 05-1120", "", 11}, {"0780-5-1120", "", 11}, {"078-05-112", "", 10}, {"078-05-11201", "", 12},
		{strings.Repeat("1", 41), "", 40}, {"1-", "", 1}, {"1 x", "", 1}, {"1--2", "", 1},
	} {
		class, n := number([]byte(c.text))
		if class != c.class || n != c.n {
			t.Errorf("%q: %q of %d bytes, want %q of %d", c.text, class, n, c.class, c.n)
		}
	}
	for text, want := range map[string]bool{"x4222222222222": false, "_4222222222222": false, ".4222222222222": false, ":4222222222222": true, "4222222222222 4222222222222": false, "12 +12345678": true, "12+12345678": false} {
		if f := find([]byte(text), 0).found; (len(f) == 1) != want {
			t.Errorf("%q: %v", text, f)
		}
	}
}

// TestCheckDigits compares luhn and mod97 with a computation by their definition.
func TestCheckDigits(t *testing.T) {
	for n := range 20_000 {
		d := []byte{byte('0' + n/10_000), byte('0' + n/1000%10), byte('0' + n/100%10), byte('0' + n/10%10), byte('0' + n%10)}
		sum := 0
		for i, c := range d { // with five digits, the second and the fourth are doubled
			x := int(c - '0')
			if i == 1 || i == 3 {
				x = 2*x/10 + 2*x%10
			}
			sum += x
		}
		if luhn(d) != (sum%10 == 0) {
			t.Fatalf("luhn %s: %t", d, luhn(d))
		}
		if got := mod97(n%13, d); got != (n%13*100_000+n)%97 {
			t.Fatalf("mod97 %s: %d", d, got)
		}
	}
	if got, want := mod97(1, []byte("AZ9")), (1*100_000+10*1000+35*10+9)%97; got != want {
		t.Errorf("mod97 of letters: %d, want %d", got, want)
	}
}

// TestIBAN checks the bounds of an IBAN and what may follow it.
func TestIBAN(t *testing.T) {
	for text, want := range map[string]int{
		"NO9386011117947": 15, "NO9386011117947.": 15, "NO93860111179471": 0, "NO9386011117947x": 0, "NO9386011117947_": 0, "NO93 8601 1117 947 ": 18, "NO93 8601 1117 947 .": 18,
		"NO93 8601 1117  947": 0, "NO938601111794": 0, "nO9386011117947": 0, "No9386011117947": 0, "NOA386011117947": 0, "NO9A86011117947": 0, "NO9286011117947": 0, "NO9386011117947 and": 15,
	} {
		if got := iban([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	// The check digits of a country code with 30 zeros, so that all 34 characters are used.
	rest := mod97(mod97(0, []byte(strings.Repeat("0", 30))), []byte("QQ00"))
	check := 98 - rest
	longest := "QQ" + string(rune('0'+check/10)) + string(rune('0'+check%10)) + strings.Repeat("0", 30)
	if got := iban([]byte(longest)); got != ibanMost {
		t.Errorf("%s: %d", longest, got)
	}
	if got := iban([]byte(longest + "0")); got != 0 {
		t.Errorf("%s0: %d", longest, got)
	}
}

// TestEmail checks the bounds of an address.
func TestEmail(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for text, want := range map[string]string{
		"a@b.c": "a@b.c", "a@b": "", "a@.c": "", "@b.c": "", ".a@b.c": "a@b.c", "..@b.c": "", "a@b.c.": "a@b.c", "a@b.c.d": "a@b.c.d", "a@b.c_": "a@b.c", "(a%+-_.b@b-c.d)": "a%+-_.b@b-c.d",
		x(65) + "@b.c": x(64) + "@b.c", x(64) + "@b.c": x(64) + "@b.c", "a@" + x(187) + ".c": "a@" + x(187) + ".c", "a@" + x(188) + ".c": "a@" + x(188) + ".", "a@-.b": "a@-.b", "a@b..c": "", "a@bc": "", "a@.-": "",
	} {
		at := strings.IndexByte(text, '@')
		from, to, ok := email([]byte(text), at)
		if got := text[from:to]; ok != (want != "") || ok && got != want {
			t.Errorf("%.80q: %t %q", text, ok, got)
		}
	}
	if f := find([]byte("a@b.c@d.e"), 0).found; len(f) != 1 || f[0] != (Finding{"email", 0, 5}) {
		t.Errorf("overlapping addresses: %v", f)
	}
}

// TestPrivateKey checks the beginning and the end of a private key in PEM.
func TestPrivateKey(t *testing.T) {
	const begin, end = "-----BEGIN PRIVATE KEY-----\nabc\n", "-----END PRIVATE KEY-----"
	label := strings.Repeat("X", headMost-len("-----BEGIN PRIVATE KEY-----"))
	for text, want := range map[string]int{
		begin + end + " more": len(begin + end), begin + "-----END -----x": len(begin + "-----END -----"), begin + "-----END": len(begin + "-----END"), begin + "-----END x": len(begin + "-----END "), begin + "-----END P----": len(begin + "-----END "),
		"-----BEGIN PRIVATE KEY----": -1, "-----BEGIN " + label + "PRIVATE KEY-----" + end: len("-----BEGIN " + label + "PRIVATE KEY-----" + end), "-----BEGIN X" + label + "PRIVATE KEY-----" + end: -1,
	} {
		f := find([]byte(". "+text), 0).found
		if want < 0 && len(f) == 0 {
			continue
		}
		if len(f) != 1 || f[0] != (Finding{"private_key", 2, 2 + want}) {
			t.Errorf("%q: %v", text, f)
		}
	}
}

// TestGuard checks the actions of a guard, its counts, and that a weaker action does not
// replace a stricter one.
func TestGuard(t *testing.T) {
	g := Guard{}
	for _, c := range [][2]string{{"email", "erase"}, {"email", ""}, {"names", Flag}, {"", Flag}} {
		if err := g.Add(c[0], c[1]); err == nil {
			t.Errorf("%q: %q is accepted", c[0], c[1])
		}
	}
	if len(g) != 0 {
		t.Fatal(g)
	}
	for _, c := range [][2]string{{"pii", Flag}, {"email", Redact}, {"all", Flag}, {"jwt", Block}, {"secret", Redact}} {
		if err := g.Add(c[0], c[1]); err != nil {
			t.Fatal(err)
		}
	}
	for class, want := range map[string]string{"email": Redact, "iban": Flag, "jwt": Block, "aws_key": Redact} {
		if g[class] != want {
			t.Errorf("%s: %q, want %q", class, g[class], want)
		}
	}
	text := "ada@example.org, AKIAIOSFODNN7EXAMPLE, 4222222222222, bob@example.org"
	seen := Seen{}
	out, blocked := g.Text([]byte(text), seen)
	if string(out) != "[redacted:email], [redacted:aws_key], 4222222222222, [redacted:email]" || blocked != "" {
		t.Errorf("%q, blocked %q", out, blocked)
	}
	if got := seen.List("in:"); !slices.Equal(got, []string{"in:aws_key:1", "in:credit_card:1", "in:email:2"}) {
		t.Error(got)
	}
	only := Guard{"credit_card": Block}
	if out, blocked := only.Text([]byte(text), seen); string(out) != text || blocked != "credit_card" {
		t.Errorf("%q, blocked %q", out, blocked)
	}
	if seen["email"] != 2 || seen["credit_card"] != 2 {
		t.Errorf("a class without an action is counted: %v", seen)
	}
	doc := `{"a":"4222222222222","b":"x"}`
	if out, blocked := only.JSON([]byte(doc), seen); string(out) != doc || blocked != "credit_card" {
		t.Errorf("%s, blocked %q", out, blocked)
	}
	g = Guard{"email": Redact}
	for in, want := range map[string]string{
		`"ada@example.org`: `"ada@example.org`, `"ada@example.org\`: `"ada@example.org\`, `"ada@example.org\"`: `"ada@example.org\"`, `["","ada@example.org"]x`: `["","[redacted:email]"]x`,
		`["ada@example.org","\"","bob@example.org"]`: `["[redacted:email]","\"","[redacted:email]"]`, `"\q ada@example.org"`: `"\\q [redacted:email]"`, "": "",
	} {
		if out, _ := g.JSON([]byte(in), seen); string(out) != want {
			t.Errorf("%s: %s, want %s", in, out, want)
		}
	}
}

// TestSafe checks how much of a text a stream releases: everything except the beginning
// of what may be a finding.
func TestSafe(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	key := "-----BEGIN "
	for _, c := range []struct {
		text string
		held string // the end of the text that is not released
	}{
		{"", ""}, {"one two words", "two words"}, {"two words ", "words "}, {"two\nwords", "words"}, {"two\twords", "words"}, {"call 12 34", "call 12 34"}, {"x call 12 34", "call 12 34"},
		{"it: AB 12", "it: AB 12"}, {"a\tghp_abc", "ghp_abc"}, {"a " + key + "\nb c d", key + "\nb c d"}, {"a " + key + "-----END ----", key + "-----END ----"},
		{"a " + key + "-----END ----- bcd efg", "bcd efg"}, {"a " + key + strings.Repeat(" ", maxKey-len(key)-1), key + strings.Repeat(" ", maxKey-len(key)-1)},
		{"a " + key + "y" + strings.Repeat("x ", (maxKey-len(key)-1)/2), "x "}, {key + "\nb c d", key + "\nb c d"}, {"a ada@example.org and some words", "some words"}, {"a " + x(255), x(255)}, {"a " + x(256), x(256)}, {"a " + x(257), x(256)},
	} {
		if got := c.text[safe([]byte(c.text), 0):]; got != c.held {
			t.Errorf("%.60q of %d bytes: %d bytes are held, want %d", c.text, len(c.text), len(got), len(c.held))
		}
	}
	// Of a text that consists of numbers, a stream holds at most numberMost bytes.
	digits := strings.Repeat("1 ", 200)
	if held := len(digits) - safe([]byte(digits), 0); held != numberMost {
		t.Errorf("of numbers %d bytes are held, want %d", held, numberMost)
	}
}
