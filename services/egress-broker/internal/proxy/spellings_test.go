package proxy

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// spellings returns the secret in the encodings in which a server may return it.
func spellings() map[string]string {
	b := []byte(secret)
	each := func(format string) string {
		var out strings.Builder
		for _, c := range b {
			fmt.Fprintf(&out, format, c)
		}
		return out.String()
	}
	return map[string]string{
		"plain": secret, "hex": hex.EncodeToString(b), "HEX": strings.ToUpper(hex.EncodeToString(b)),
		"base64": base64.StdEncoding.EncodeToString(b), "base64url": base64.RawURLEncoding.EncodeToString(b),
		"base64 after a name": base64.StdEncoding.EncodeToString([]byte("user:" + secret)), "base64 in text": base64.StdEncoding.EncodeToString([]byte("a" + secret + "tail")),
		"base64 in a query": url.QueryEscape(base64.StdEncoding.EncodeToString(b)), "query": url.QueryEscape(secret), "query twice": url.QueryEscape(url.QueryEscape(secret)),
		"percent": each("%%%02x"), "JSON": strings.ReplaceAll(secret, "/", `\/`), "JSON escapes": each(`\u%04x`), "JSON in JSON": each(`\\u%04x`), "quoted": strconv.Quote(secret),
		"hexadecimal escapes": each(`\x%02x`), "octal escapes": each(`\%03o`), "HTML": each("&#x%x;"),
	}
}

// TestSpellings requires that a credential is removed from a response in every encoding of spellings:
// from a field, a trailer, and a body whose two parts arrive at different times, in HTTP/1 and HTTP/2
// under the authority of the call.
func TestSpellings(t *testing.T) {
	forms := spellings()
	s, roots := secure(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		form := forms[r.URL.Query().Get("form")]
		w.Header().Set("X-Echo", form)
		w.Header().Set("Trailer", "X-End")
		_, _ = io.WriteString(w, "before: "+form[:len(form)/2])
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, form[len(form)/2:]+" after, and more text than the end of the encoding needs")
		w.Header().Set("X-End", form)
	}), true)
	n := port(t, s.URL)
	cfg := withCredential(netrule.Rule{Host: "api.example.org", Port: int64(n), Mode: netrule.Terminate})
	cfg.Roots = roots
	r := start(t, cfg)
	for _, h2 := range []bool{false, true} {
		c := r.client(t)
		c.Transport.(*http.Transport).ForceAttemptHTTP2 = h2
		for name, form := range forms {
			res, body := get(t, c, fmt.Sprintf("https://api.example.org:%d/?form=%s", n, url.QueryEscape(name)))
			var fields, trailers bytes.Buffer
			_ = res.Header.Write(&fields)
			_ = res.Trailer.Write(&trailers)
			for where, text := range map[string]string{"body": body, "fields": fields.String(), "trailers": trailers.String()} {
				if strings.Contains(text, form) || strings.Contains(text, form[len(form)/2:]) || !strings.Contains(text, "[secret:token]") {
					t.Errorf("%s, h2 %v, %s: %q", name, h2, where, text)
				}
			}
			if res.StatusCode != 200 || (res.ProtoMajor == 2) != h2 || !strings.HasSuffix(body, " after, and more text than the end of the encoding needs") {
				t.Errorf("%s, h2 %v: %s %s %q", name, h2, res.Proto, res.Status, body)
			}
		}
	}
}
