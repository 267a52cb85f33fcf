package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// spellings are the encodings in which a text may contain a value. The result may be
// invalid UTF-8, which a JSON string cannot hold; TestSpellings skips it then.
var spellings = map[string]func(*rand.Rand, string) string{
	"plain": func(_ *rand.Rand, v string) string { return v },
	"json":  func(_ *rand.Rand, v string) string { b, _ := json.Marshal(v); return string(b) },
	"json x2": func(_ *rand.Rand, v string) string {
		b, _ := json.Marshal(v)
		b, _ = json.Marshal(string(b))
		return string(b)
	},
	"go":     func(_ *rand.Rand, v string) string { return strconv.QuoteToASCII(v) },
	"\\u":    func(r *rand.Rand, v string) string { return partly(r, v, escapeU) },
	"\\u x2": func(r *rand.Rand, v string) string { return strings.ReplaceAll(partly(r, v, escapeU), `\`, `\\`) },
	"\\x": func(r *rand.Rand, v string) string {
		return partly(r, v, func(r *rand.Rand, s string) string { return eachByte(s, `\x%02x`) })
	},
	"octal": func(r *rand.Rand, v string) string {
		return partly(r, v, func(r *rand.Rand, s string) string { return eachByte(s, `\%03o`) })
	},
	"percent": func(r *rand.Rand, v string) string {
		return partly(r, v, func(r *rand.Rand, s string) string { return eachByte(s, []string{"%%%02x", "%%%02X"}[r.IntN(2)]) })
	},
	"percent x2": func(r *rand.Rand, v string) string {
		return url.PathEscape(partly(r, v, func(r *rand.Rand, s string) string { return eachByte(s, "%%%02X") }))
	},
	"query": func(_ *rand.Rand, v string) string { return url.QueryEscape(v) },
	"html":  func(_ *rand.Rand, v string) string { return html.EscapeString(v) },
	"entities": func(r *rand.Rand, v string) string {
		return partly(r, v, func(_ *rand.Rand, s string) string { return fmt.Sprintf("&#x%x;", []rune(s)[0]) })
	},
	"\\/": func(_ *rand.Rand, v string) string { return strings.ReplaceAll(v, "/", `\/`) },
	"hex": func(_ *rand.Rand, v string) string { return hex.EncodeToString([]byte(v)) },
	"HEX": func(_ *rand.Rand, v string) string { return strings.ToUpper(hex.EncodeToString([]byte(v))) },
	"hex x%": func(r *rand.Rand, v string) string {
		return partly(r, hex.EncodeToString([]byte(v)), func(_ *rand.Rand, s string) string { return eachByte(s, "%%%02X") })
	},
	"base64":     func(_ *rand.Rand, v string) string { return base64.StdEncoding.EncodeToString([]byte(v)) },
	"base64 raw": func(_ *rand.Rand, v string) string { return base64.RawStdEncoding.EncodeToString([]byte(v)) },
	"base64url":  func(_ *rand.Rand, v string) string { return base64.URLEncoding.EncodeToString([]byte(v)) },
	"base64 %": func(_ *rand.Rand, v string) string {
		return url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(v)))
	},
	"base64 \\n": func(_ *rand.Rand, v string) string { return base64.StdEncoding.EncodeToString([]byte(v + "\n")) },
	"base64 around": func(r *rand.Rand, v string) string {
		return base64.StdEncoding.EncodeToString([]byte("user:x"[:r.IntN(6)] + v + "tail"[:r.IntN(4)]))
	},
	"base64 lines": func(r *rand.Rand, v string) string {
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("p", r.IntN(90)) + v))
		var out strings.Builder
		for len(b) > 64 {
			out.WriteString(b[:64] + "\r\n")
			b = b[64:]
		}
		return out.String() + b
	},
}

func escapeU(r *rand.Rand, s string) string {
	var out strings.Builder
	for _, u := range utf16.Encode([]rune(s)) {
		fmt.Fprintf(&out, []string{`\u%04x`, `\u%04X`}[r.IntN(2)], u)
	}
	return out.String()
}

func eachByte(s, format string) string {
	var out strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&out, format, c)
	}
	return out.String()
}

// partly returns v with some characters escaped by f, always including the first.
func partly(r *rand.Rand, v string, f func(*rand.Rand, string) string) string {
	var out strings.Builder
	for i, c := range v {
		if s := string(c); i == 0 || r.IntN(3) == 0 || strings.ContainsAny(s, `\%&"`) || c < ' ' {
			out.WriteString(f(r, s))
		} else {
			out.WriteString(s)
		}
	}
	return out.String()
}

func value(r *rand.Rand) string {
	alphabets := []string{"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "0123456789abcdef", "0123456789", "ab/+-_=.~", "äöü日本語é🙂Ωабв", `a"b\c/d'e%f&g;h i` + "\x01\x7f", "sk-ABCDEF123/+%25\\u0041"}
	a := []rune(alphabets[r.IntN(len(alphabets))])
	n := []int{4, 5, 6, 7, 8, 12, 16, 20, 33, 40, 64, 200}[r.IntN(12)]
	var out strings.Builder
	for out.Len() < n {
		out.WriteRune(a[r.IntN(len(a))])
	}
	return strings.TrimSpace(out.String())
}

// TestSpellings checks that Text removes the encodings in spellings of random values
// from a text, and JSON from a document's strings and member names.
func TestSpellings(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	rounds := 300
	if testing.Short() {
		rounds = 100
	}
	for round := range rounds {
		v := value(r)
		if len(v) < MinLen {
			continue
		}
		red := New(map[string]string{"k": v + "\n"[:r.IntN(2)]})
		for name, spell := range spellings {
			in := spell(r, v)
			if name == `\/` && strings.Contains(v, `\`) {
				continue // an encoder that escapes slashes also escapes backslashes
			}
			if len(v) < wholeLen && (strings.HasPrefix(name, "base64 around") || name == "base64 lines" || name == "base64 \\n") || !utf8.ValidString(in) {
				continue // too short to be found inside a word, or not valid in a JSON string
			}
			for _, sides := range [][2]string{{"", ""}, {"key=", " and more"}, {"(", ")"}, {"日", "."}} {
				text := sides[0] + in + sides[1]
				if out := red.Text([]byte(text)); bytes.Contains(out, []byte(in)) || !bytes.Contains(out, []byte("[secret:k]")) || len(out) > len(text)-len(in)+24 && len(in) > 40 && name != "base64 lines" && name != "base64 around" {
					t.Fatalf("round %d, %s of %q in %q leaves %q", round, name, v, text, out)
				}
				doc := canon.AppendString([]byte(`{"a":[1,`), text)
				doc = append(canon.AppendString(append(doc, `],`...), text), `:true}`...)
				out, err := red.JSON(doc)
				if err != nil {
					t.Fatalf("round %d, %s of %q in %s: %v", round, name, v, doc, err)
				}
				if enc := canon.AppendString(nil, in); bytes.Contains(out, enc[1:len(enc)-1]) || bytes.Count(out, []byte("[secret:k]")) < 2 || !canon.IsCanonical(out) {
					t.Fatalf("round %d, %s of %q in %s leaves %s", round, name, v, doc, out)
				}
			}
		}
	}
}

// TestNumbers checks that a secret that consists of digits is found as a number, even if
// the number lost digits when it was decoded as a float64, that a short secret is not
// found within a longer number or word, and that the literal null is not replaced.
func TestNumbers(t *testing.T) {
	for _, c := range [][3]string{
		{"12345678", `{"n":12345678}`, `{"n":"[secret:k]"}`},
		{"12345678", `[1.2345678e7,-12345678,0.12345678,912345678]`, `["[secret:k]","[secret:k]","[secret:k]","[secret:k]"]`},
		{"00712345", `[712345]`, `["[secret:k]"]`},
		{"12345678901234567890", `[12345678901234567890,12345678901234567000,1.2345678901234567e19]`, `["[secret:k]","[secret:k]","[secret:k]"]`},
		{"1234", `[1234,12345,"pin 1234.","x1234"]`, ``},
		{"null", `[null,"null"]`, `[null,"[secret:k]"]`},
		{"abc", `["abc"]`, `["abc"]`},
	} {
		want := c[2]
		if want == "" {
			want = `["[secret:k]",12345,"pin [secret:k].","x1234"]`
		}
		out, err := New(map[string]string{"k": c[0]}).JSON([]byte(c[1]))
		if err != nil || string(out) != want {
			t.Errorf("%s in %s: %s %v", c[0], c[1], out, err)
		}
	}
}

// TestNames checks that two member names with the same replacement remain
// distinct, that JSON returns an error if a secret extends over the document's
// punctuation, but not if the secret is within one string, and that a nil
// Redactor changes nothing.
func TestNames(t *testing.T) {
	r := New(map[string]string{"k": "hunter2hunter2", "j": `{"id":"abc","n":1}`})
	out, err := r.JSON([]byte(`{"hunter2hunter2":1,"\u0068unter2hunter2":2,"z":3}`))
	if err != nil || string(out) != `{"[secret:k]":1,"[secret:k]'":2,"z":3}` {
		t.Errorf("%s %v", out, err)
	}
	if out, err := r.JSON([]byte(`{"x":{"id":"abc","n":1}}`)); err == nil {
		t.Errorf("%s", out)
	}
	if out, err := r.JSON([]byte(`{"x":"{\"id\":\"abc\",\"n\":1}"}`)); err != nil || string(out) != `{"x":"[secret:j]"}` {
		t.Errorf("%s %v", out, err)
	}
	if out, err := (*Redactor)(nil).JSON([]byte(`{}`)); err != nil || string(out) != `{}` {
		t.Error(err)
	}
}

// TestLines checks that one line of a key of several lines is found without the rest of
// the key, and that a text truncated by Head does not contain the beginning of a secret.
func TestLines(t *testing.T) {
	pem := "-----BEGIN KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ\nqBzLFhVnRvHs9nGWg0aQxT\n-----END KEY-----\n"
	r := New(map[string]string{"pem": pem})
	for _, in := range []string{pem, strings.ReplaceAll(pem, "\n", "\r\n"), "MC4CAQAwBQYDK2VwBCIEIJ", fmt.Sprintf("%q", pem)} {
		if out := r.String(in); strings.Contains(out, "MC4C") || strings.Contains(out, "aQxT") {
			t.Errorf("%q leaves %q", in, out)
		}
	}
	for n := range 60 {
		text := []byte("0123456789" + "MC4CAQAwBQYDK2VwBCIEIJ" + strings.Repeat("x", 60))
		if out := r.Head(text, n); bytes.Contains(out, []byte("MC4")) || n <= 10 && string(out) != string(text[:n]) {
			t.Errorf("the first %d bytes: %q", n, out)
		}
	}
}

// TestMembers checks that a long string of a JSON object, such as the password of a login, is found
// without the rest of the object, and that public members and short strings are not.
func TestMembers(t *testing.T) {
	const password = "A1a-QzLFhVnRvHs9nGWg"
	r := New(map[string]string{"db": `{"password":"` + password + `","username":"v-token-reader-0123456789","pin":"0123456789","url":"https://db.example/harbour"}`})
	for _, in := range []string{password, "x" + password + "y", base64.StdEncoding.EncodeToString([]byte(password)), hex.EncodeToString([]byte(password))} {
		if out := r.String(in); out == in || strings.Contains(out, "QzLF") || !strings.Contains(out, "[secret:db]") {
			t.Errorf("%q leaves %q", in, out)
		}
	}
	for _, in := range []string{"v-token-reader-0123456789", "0123456789", "https://db.example/harbour"} {
		if out := r.String(in); out != in {
			t.Errorf("%q became %q", in, out)
		}
	}
	for _, value := range []string{`{"password":1}`, `{`, `["` + password + `"]`} {
		if out := New(map[string]string{"x": value}).String(password); out != password {
			t.Errorf("a value that is no object of strings: %q", out)
		}
	}
}

// TestNothing checks that a text without a secret is returned unchanged.
func TestNothing(t *testing.T) {
	r := New(map[string]string{"a": "sk-0123456789abcdefghij", "b": "x", "c": ""})
	for _, in := range []string{"", "a", `{"a":"100% & more; \\u0041 %41 \n","b":[1,2.5e3]}`, strings.Repeat(`\u0041%42&amp;`, 100)} {
		if out := r.String(in); out != in {
			t.Errorf("%q became %q", in, out)
		}
	}
}

// TestLinear checks that the time for worst-case inputs grows less than quadratically
// with their length.
func TestLinear(t *testing.T) {
	r := New(map[string]string{"a": "sk-0123456789abcdefghij", "b": strings.Repeat("ab", 30), "c": `q"\x%41&amp;`})
	size := 20_000
	if testing.Short() {
		size = 4000
	}
	for name, unit := range map[string]string{"percent": "%25", "slash": `\\`, "nested": `\u005c`, "secret": "abababab", "quote": `\"`, "entity": "&amp;", "near": "sk-0123456789abcdefghi", "base64": "YWJhYmFi"} {
		took := func(n int) time.Duration {
			in := []byte(strings.Repeat(unit, n/len(unit)))
			best := time.Hour
			for range 3 {
				began := time.Now()
				r.Text(in)
				best = min(best, time.Since(began))
			}
			return best
		}
		small, large := took(size), took(16*size)
		for range 5 { // other programs may have had the processor
			if large <= 128*small+100*time.Millisecond {
				break
			}
			large = min(large, took(16*size))
		}
		if large > 128*small+100*time.Millisecond {
			t.Errorf("%s: %v for %d bytes, %v for 16 times as many", name, small, size, large)
		}
	}
}

func FuzzJSON(f *testing.F) {
	f.Add(`{"a":"sk-\u0030123456789abcdefghij"}`, "sk-0123456789abcdefghij")
	f.Add(`{"123456":1234567}`, "123456")
	f.Fuzz(func(t *testing.T, doc, v string) {
		r := New(map[string]string{"k": v})
		r.String(doc)
		c, err := canon.Transform(nil, []byte(doc))
		if err != nil || r == nil || strings.Contains("[secret:k]'", strings.TrimSpace(v)) {
			return
		}
		for _, in := range [][]byte{[]byte(doc), c} {
			out, err := r.JSON(in)
			if err != nil {
				continue
			}
			if _, err := canon.Transform(nil, out); err != nil {
				t.Fatalf("%q in %s became %s: %v", v, in, out, err)
			}
			if again, err := r.JSON(out); err == nil && !bytes.Equal(again, out) {
				t.Fatalf("%q in %s became %s, then %s", v, in, out, again)
			}
		}
	})
}

func BenchmarkJSON(b *testing.B) {
	r := New(map[string]string{"a": "sk-0123456789abcdefghij0123456789abcdefghij"})
	for _, size := range []int{2 << 10, 80 << 10} {
		doc := canon.AppendString([]byte(`{"choices":`), strings.Repeat("Plain words of an answer, 50 % of them \"quoted\",\nand lines. ", size/60))
		doc = append(doc, '}')
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			b.SetBytes(int64(len(doc)))
			for b.Loop() {
				if _, err := r.JSON(doc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// New returns a Redactor for the given values; the keys of the map are their names.
func New(values map[string]string) *Redactor {
	var r *Redactor
	for name, v := range values {
		r = r.With(name, v)
	}
	return r
}
