// Package spell encodes a text in the ways that programs commonly do, for tests of
// redaction.
package spell

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Hows lists the names of the encodings that In accepts.
var Hows = []string{"plain", "escapes", "slash", "quoted twice", "go", "base64", "base64 1", "base64 2", "hex", "HEX", "percent", "PERCENT", "query", "html"}

// In returns v in the named encoding, escaped so that it can be placed between the
// quotes of a JSON string; with "html", this holds only if v consists of printable
// characters other than quotes. "base64 1" and "base64 2" encode v with other bytes
// around it, one or two of them before v. An unknown name means plain.
func In(how, v string) string {
	each := func(format string) string {
		var b strings.Builder
		for _, c := range []byte(v) {
			fmt.Fprintf(&b, format, c)
		}
		return b.String()
	}
	switch how {
	case "escapes":
		var b strings.Builder
		for _, u := range utf16.Encode([]rune(v)) {
			fmt.Fprintf(&b, `\u%04x`, u)
		}
		return b.String()
	case "slash":
		b, _ := json.Marshal(v)
		return strings.ReplaceAll(string(b[1:len(b)-1]), "/", `\/`)
	case "quoted twice":
		b, _ := json.Marshal(v)
		b, _ = json.Marshal(string(b))
		return string(b[1 : len(b)-1])
	case "go":
		q := strconv.Quote(strconv.QuoteToASCII(v))
		return q[1 : len(q)-1]
	case "base64":
		return base64.StdEncoding.EncodeToString([]byte(v))
	case "base64 1":
		return base64.RawStdEncoding.EncodeToString([]byte("x" + v + "yz"))
	case "base64 2":
		return base64.URLEncoding.EncodeToString([]byte("xx" + v + "y"))
	case "hex":
		return hex.EncodeToString([]byte(v))
	case "HEX":
		return strings.ToUpper(hex.EncodeToString([]byte(v)))
	case "percent":
		return each("%%%02x")
	case "PERCENT":
		return each("%%%02X")
	case "query":
		return url.QueryEscape(v)
	case "html":
		return html.EscapeString(strings.Trim(strconv.Quote(v), `"`))
	}
	b, _ := json.Marshal(v)
	return string(b[1 : len(b)-1])
}
