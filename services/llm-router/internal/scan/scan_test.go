package scan

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

var samples = map[string]string{
	"email": "ada.lovelace+x@mail.example.org", "credit_card": "4111 1111 1111 1111", "iban": "DE89 3704 0044 0532 0130 00", "us_ssn": "078-05-1120", "phone": "+49 (30) 901820-55",
	"aws_key": "AKIAIOSFODNN7EXAMPLE", "github_token": "ghp_" + strings.Repeat("a1B2", 9), "api_key": "sk-proj-" + strings.Repeat("x9", 14),
	"jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U", "slack_token": "xoxb-123456789012-abcdefghijkl",
	"private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----",
}

func TestFind(t *testing.T) {
	for class := range Classes {
		s, ok := samples[class]
		if !ok {
			t.Errorf("no sample of %s", class)
			continue
		}
		for _, around := range [][2]string{{"", ""}, {"it is ", ", yes."}, {"(", ")"}, {"x=", "\n"}} {
			text := around[0] + s + around[1]
			f := find([]byte(text), 0).found
			if len(f) != 1 || f[0].Class != class || text[f[0].Start:f[0].End] != s {
				t.Errorf("%s in %q: %v", class, text, f)
			}
		}
	}
	for _, clean := range []string{"an @ sign", "user@localhost", "4111 1111 1111 1112", "1234567890123456", "version 1.2.3-4", "2026-11-21 20:30", "AKIAshort", "sk-", "skate-board", "0000000000000000",
		"GB00 WEST 1234 5698 7654 3x", "c-ANQOXDD3G2AAWIMQQCOQKIHFX3", "eyJhbGciOiJ", "room 12-34-56", "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"} {
		if f := find([]byte(clean), 0).found; len(f) != 0 {
			t.Errorf("%q: %v", clean, f)
		}
	}
}

// TestStream shows that the result does not depend on how a text is divided into pieces.
func TestStream(t *testing.T) {
	g := Guard{}
	if err := g.Add("all", Redact); err != nil {
		t.Fatal(err)
	}
	var text string
	for _, s := range samples {
		text += "before " + s + " after, and 12 apples.\n"
	}
	whole, _ := g.Text([]byte(text), Seen{})
	for _, s := range samples {
		if strings.Contains(string(whole), s) {
			t.Fatalf("%s is still there", s)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var st Stream
		out, seen := "", Seen{}
		for i := 0; i < len(text); {
			n := min(1+r.IntN(12), len(text)-i)
			o, _ := st.Next(g, text[i:i+n], seen)
			out += o
			i += n
		}
		o, _ := st.End(g, seen)
		if out += o; out != string(whole) {
			t.Fatalf("cut up:\n%s\nwhole:\n%s", out, whole)
		}
	}
}

// TestJSON shows that escapes neither hide a finding nor invalidate the document after a
// replacement.
func TestJSON(t *testing.T) {
	g := Guard{}
	if err := g.Add("all", Redact); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		`{"a":"write to\nada@example.org\nor not","n":4111111111111111}`: `{"a":"write to\n[redacted:email]\nor not","n":4111111111111111}`,
		`{"a":"\u0041KIAIOSFODNN7EXAMPLE"}`:                              `{"a":"[redacted:aws_key]"}`,
		`{"a":"ada\u0040example.org \"q\""}`:                             `{"a":"[redacted:email] \"q\""}`,
		`{"ada@example.org":1.50}`:                                       `{"[redacted:email]":1.50}`,
		`{"a":"nothing \u00e9 here\t"}`:                                  `{"a":"nothing \u00e9 here\t"}`,
	} {
		if out, _ := g.JSON([]byte(in), Seen{}); string(out) != want {
			t.Errorf("%s\n got %s\nwant %s", in, out, want)
		}
	}
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"a":"x\nada@example.org \" y","b":[1,4111111111111111,"4111111111111111"]}`))
	g := Guard{}
	_ = g.Add("all", Redact)
	f.Fuzz(func(t *testing.T, doc []byte) {
		if out, _ := g.JSON(doc, Seen{}); json.Valid(doc) && !json.Valid(out) {
			t.Fatalf("%q became %q", doc, out)
		}
	})
}

func BenchmarkJSON(b *testing.B) {
	doc := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("The quick brown fox jumps over the lazy dog. 12 apples at 3.50, see file_name.go:123. ", 1000) + `"}]}`)
	g := Guard{}
	_ = g.Add("all", Flag)
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		g.JSON(doc, Seen{})
	}
}

// TestStreamLong shows that a stream redacts long findings as a scan of the whole text
// does, also after a long text without blanks.
func TestStreamLong(t *testing.T) {
	g := Guard{}
	if err := g.Add("all", Redact); err != nil {
		t.Fatal(err)
	}
	part := func(n int) string { return strings.Repeat("aZ0_", n/4) }
	tokens := map[string]string{
		"github_token": "github_pat_" + part(252), "api_key": "sk-" + part(248), "slack_token": "xoxb-" + part(248),
		"jwt": "eyJ" + part(4096) + "." + part(8192) + "." + part(4096), "jwt 600": "eyJ" + part(40) + "." + part(500) + "." + part(60),
		"email": strings.Repeat("l", 64) + "@" + strings.Repeat("d.", 90) + "org", "iban": "DE89 3 7 0 4 0 0 4 4 0 5 3 2 0 1 3 0 0 0",
	}
	for name, token := range tokens {
		for _, text := range []string{token, "it is " + token + " indeed", strings.Repeat("ab,", 80) + token + ".", strings.Repeat("x", 1000) + "AKIAIOSFODNN7EXAMPLE," + token} {
			whole, _ := g.Text([]byte(text), Seen{})
			if strings.Contains(string(whole), token) {
				t.Fatalf("%s: not found as a whole in %.60q", name, text)
			}
			for _, size := range []int{1, 7, 64, 300} {
				if size == 1 && len(token) > 4096 {
					continue // too slow: Next scans the buffered text again for each byte
				}
				var st Stream
				out, seen := "", Seen{}
				for at := 0; at < len(text); at += size {
					o, _ := st.Next(g, text[at:min(at+size, len(text))], seen)
					out += o
				}
				o, _ := st.End(g, seen)
				if out += o; out != string(whole) {
					t.Errorf("%s in pieces of %d bytes:\n%s\nwhole:\n%s", name, size, out[max(0, len(out)-400):], whole[max(0, len(whole)-400):])
				}
			}
		}
	}
}

// TestShortest shows that the shortest findings of several classes are found at the end
// of a text, whole and in pieces, and that for some of the classes a text that is one
// character shorter is not.
func TestShortest(t *testing.T) {
	g := Guard{}
	if err := g.Add("all", Redact); err != nil {
		t.Fatal(err)
	}
	for s, class := range map[string]string{"NO9386011117947": "iban", "NO93 8601 1117 947": "iban", "NO938601111794": "", "BE68539007547034": "iban", "AKIAIOSFODNN7EXAMPLE": "aws_key", "sk-" + strings.Repeat("x9", 10): "api_key", "sk-" + strings.Repeat("x", 19): "",
		"eyJ0123456789.0123456789.0123456789": "jwt", "eyJ0123456789.0123456789.012345678": "", "+12345678": "phone", "+1234567": "", "4222222222222": "credit_card", "078-05-1120": "us_ssn", "a@b.co": "email"} {
		for _, before := range []string{"", "it is ", "("} {
			want := before + s
			if class != "" {
				want = before + "[redacted:" + class + "]"
			}
			if out, _ := g.Text([]byte(before+s), Seen{}); string(out) != want {
				t.Errorf("%q: %q, want %q", before+s, out, want)
			}
			for size := 1; size < 20; size++ {
				var st Stream
				var out string
				for text := before + s; text != ""; text = text[min(size, len(text)):] {
					o, _ := st.Next(g, text[:min(size, len(text))], Seen{})
					out += o
				}
				o, _ := st.End(g, Seen{})
				if out += o; out != want {
					t.Errorf("%q in pieces of %d bytes: %q, want %q", before+s, size, out, want)
				}
			}
		}
	}
}
