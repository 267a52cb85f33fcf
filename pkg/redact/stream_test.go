package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

const streamSecret = `tok/en"9f8&e7%d6c5b4a392Z`

// streamed returns the bytes that a Stream returns for in, given in pieces of n bytes, and
// whether it found a secret.
func streamed(r *Redactor, in string, n int) (string, bool) {
	s := r.Stream()
	var out []byte
	for b := []byte(in); len(b) > 0; {
		k := min(n, len(b))
		out = append(out, s.Next(b[:k])...)
		b = b[k:]
	}
	return string(append(out, s.End()...)), s.Found()
}

func streamForms() map[string]string {
	folded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 40) + streamSecret + "tail"))
	var lines strings.Builder
	for i := 0; i < len(folded); i += 19 {
		lines.WriteString(folded[i:min(i+19, len(folded))] + "\r\n")
	}
	unicode := ""
	for _, c := range streamSecret {
		unicode += fmt.Sprintf(`\u%04x`, c)
	}
	return map[string]string{
		"plain": streamSecret, "hex": hex.EncodeToString([]byte(streamSecret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(streamSecret))),
		"base64": base64.StdEncoding.EncodeToString([]byte(streamSecret)), "base64 after one byte": base64.URLEncoding.EncodeToString([]byte("a" + streamSecret)),
		"base64 in lines": lines.String(), "percent": url.QueryEscape(streamSecret), "percent twice": url.QueryEscape(url.QueryEscape(streamSecret)),
		"json": strings.ReplaceAll(strings.ReplaceAll(streamSecret, `"`, `\"`), "/", `\/`), "unicode": unicode, "unicode in a string in a string": strings.ReplaceAll(unicode, `\`, `\\`),
		"html": strings.ReplaceAll(strings.ReplaceAll(streamSecret, "&", "&amp;"), `"`, "&#34;"),
	}
}

// TestStreamPieces sends each encoding of a secret in two pieces, cut at every position (with
// -short, at every third), and in pieces of several lengths. The mark must replace it, and no
// more than the first three characters of the encoding may remain.
func TestStreamPieces(t *testing.T) {
	r := (*Redactor)(nil).With("name", streamSecret)
	for form, text := range streamForms() {
		in := "before: " + text + " after, and more text than the end of the encoding needs"
		check := func(n int, got string, found bool) {
			t.Helper()
			if !found || !strings.Contains(got, "[secret:name]") || !strings.HasPrefix(got, "before: ") || !strings.HasSuffix(got, "more text than the end of the encoding needs") {
				t.Fatalf("%s in pieces of %d: %q", form, n, got)
			}
			whole := r.String(in)
			if rest := len(got) - len(whole); rest > 3*6+3*1+6 {
				t.Fatalf("%s in pieces of %d: %d bytes more than Text returns: %q, want about %q", form, n, rest, got, whole)
			}
			if got2 := string(r.Text([]byte(got))); len(got2) != len(got) {
				t.Fatalf("%s in pieces of %d: the secret is in the output: %q", form, n, got)
			}
		}
		for _, n := range []int{1, 2, 3, 5, 8, 13, 21, 34} {
			got, found := streamed(r, in, n)
			check(n, got, found)
		}
		step := 1
		if testing.Short() {
			step = 3
		}
		for cut := 1; cut < len(in); cut += step {
			s := r.Stream()
			out := append(bytes.Clone(s.Next([]byte(in[:cut]))), s.Next([]byte(in[cut:]))...)
			check(-cut, string(append(out, s.End()...)), s.Found())
		}
	}
}

// TestStreamDelaysNothingElse requires that each piece of a text without a secret is
// returned at once and unchanged, also if it ends like the beginning of one.
func TestStreamDelaysNothingElse(t *testing.T) {
	r := (*Redactor)(nil).With("name", streamSecret)
	s := r.Stream()
	for _, piece := range []string{"data: {}\n\n", "a t", "ok &", "b%", `c\`, `\u00`, "tok", "\n\n", strings.Repeat("text", 1000)} {
		if got := string(s.Next([]byte(piece))); got != piece {
			t.Fatalf("piece %q: %q", piece, got)
		}
	}
	if end := s.End(); len(end) > 0 || s.Found() {
		t.Fatalf("end %q, found %v", end, s.Found())
	}
	if got := string((*Redactor)(nil).Stream().Next([]byte("x"))); got != "x" {
		t.Fatalf("without secrets: %q", got)
	}
}

// TestStreamHoldsLittle requires that a Stream holds back at most maxHeld
// bytes of a text that may be a secret whose end has not been read, and that
// it passes on the whole text by its end.
func TestStreamHoldsLittle(t *testing.T) {
	r := (*Redactor)(nil).With("name", streamSecret)
	s := r.Stream()
	in := 0
	out := 0
	for range 64 {
		piece := streamSecret[:len(streamSecret)-1]
		if in > 0 {
			piece = strings.Repeat(" ", 4<<10)
		}
		in += len(piece)
		out += len(s.Next([]byte(piece)))
		if in-out > maxHeld {
			t.Fatalf("%d bytes are held back", in-out)
		}
	}
	if out += len(s.End()); out != in {
		t.Fatalf("%d bytes of %d", out, in)
	}
}
