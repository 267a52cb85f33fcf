// Package scan finds personal data and secrets in text. It is pure, goes over
// the text once, and knows only what has a form of its own: a name or an address
// it does not see.
package scan

import (
	"bytes"
	"slices"
	"strings"
)

// Classes of what is found, and the group each belongs to.
var Classes = map[string]string{"email": "pii", "credit_card": "pii", "iban": "pii", "us_ssn": "pii", "phone": "pii",
	"aws_key": "secret", "github_token": "secret", "api_key": "secret", "jwt": "secret", "private_key": "secret", "slack_token": "secret"}

// Finding is a stretch of text.
type Finding struct {
	Class      string
	Start, End int
}

// Longest is how many bytes a finding has at most, private keys excepted.
const Longest = 256

// Find returns what is in the text, in order and without overlaps.
func Find(text []byte) []Finding {
	var out []Finding
	end := 0 // of the last finding
	add := func(class string, from, to int) {
		if from >= end {
			out = append(out, Finding{class, from, to})
			end = to
		}
	}
	for i := 0; i < len(text); i++ {
		if i < end {
			continue
		}
		c := text[i]
		switch {
		case c == '@':
			if from, to, ok := email(text, i); ok && from >= end {
				add("email", from, to)
			}
		case c == '-' && bytes.HasPrefix(text[i:], []byte("-----BEGIN ")):
			head := text[i:min(len(text), i+64)]
			if k := bytes.Index(head, []byte("PRIVATE KEY-----")); k > 0 {
				to := len(text)
				if e := bytes.Index(text[i:], []byte("-----END ")); e > 0 {
					to = i + e + len("-----END ")
					if x := bytes.Index(text[to:], []byte("-----")); x >= 0 {
						to += x + 5
					}
				}
				add("private_key", i, to)
			}
		case c == '+' || c >= '0' && c <= '9':
			if i > 0 && (word(text[i-1]) || text[i-1] == '.') {
				continue
			}
			if class, to := number(text[i:]); class != "" {
				add(class, i, i+to)
			} else if to > 0 {
				i += to - 1
			}
		case i > 0 && word(text[i-1]):
		case c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z':
			if class, n := token(text[i:]); class != "" {
				add(class, i, i+n)
			}
		}
	}
	return out
}

func word(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
}

func email(t []byte, at int) (from, to int, ok bool) {
	from, to = at, at+1
	for from > 0 && at-from < 64 && (word(t[from-1]) || strings.IndexByte(".%+-", t[from-1]) >= 0) {
		from--
	}
	dot := false
	for to < len(t) && to-at < 190 && (word(t[to]) && t[to] != '_' || t[to] == '-' || t[to] == '.' && to+1 < len(t) && word(t[to+1])) {
		dot = dot || t[to] == '.'
		to++
	}
	for from < at && t[from] == '.' {
		from++
	}
	return from, to, from < at && dot && to-at > 3
}

// number looks at digits and what may stand between them. A negative answer says
// how many bytes it covers.
func number(t []byte) (class string, n int) {
	var d []byte
	plus := t[0] == '+'
	i := 0
	if plus {
		i = 1
	}
	groups := []int{0}
	for ; i < len(t) && i < 40; i++ {
		switch c := t[i]; {
		case c >= '0' && c <= '9':
			d = append(d, c)
			groups[len(groups)-1]++
			n = i + 1
			continue
		case (c == ' ' || c == '-' || plus && (c == '(' || c == ')' || c == '.')) && i+1 < len(t) && (t[i+1] >= '0' && t[i+1] <= '9' || plus):
			groups = append(groups, 0)
			continue
		}
		break
	}
	if n < len(t) && word(t[n]) {
		return "", n
	}
	switch {
	case plus && len(d) >= 8 && len(d) <= 15:
		return "phone", n
	case len(d) >= 13 && len(d) <= 19 && luhn(d) && !same(d):
		return "credit_card", n
	case len(d) == 9 && slices.Equal(groups, []int{3, 2, 4}) && t[3] == '-':
		return "us_ssn", n
	}
	return "", n
}

func luhn(d []byte) bool {
	sum := 0
	for i := range d {
		x := int(d[len(d)-1-i] - '0')
		if i%2 == 1 {
			if x *= 2; x > 9 {
				x -= 9
			}
		}
		sum += x
	}
	return sum%10 == 0
}

func same(d []byte) bool { return bytes.Count(d, d[:1]) == len(d) }

// form is a token that begins in its own way.
type form struct {
	prefix, class string
	least, most   int // bytes behind the prefix
	also          string
}

var forms = []form{
	{"AKIA", "aws_key", 16, 16, ""}, {"ASIA", "aws_key", 16, 16, ""},
	{"ghp_", "github_token", 36, 255, ""}, {"gho_", "github_token", 36, 255, ""}, {"ghs_", "github_token", 36, 255, ""}, {"github_pat_", "github_token", 22, 255, ""},
	{"sk-", "api_key", 20, 250, "-_"}, {"sk_live_", "api_key", 16, 250, ""}, {"rk_live_", "api_key", 16, 250, ""}, {"AIza", "api_key", 35, 35, "-_"}, {"bk-", "api_key", 40, 64, ""},
	{"glpat-", "api_key", 20, 64, "-_"}, {"npm_", "api_key", 36, 36, ""}, {"hvs.", "api_key", 24, 250, "-_"},
	{"xoxb-", "slack_token", 20, 250, "-"}, {"xoxp-", "slack_token", 20, 250, "-"}, {"xoxa-", "slack_token", 20, 250, "-"},
}

func token(t []byte) (class string, n int) {
	run := func(from, most int, also string) int {
		k := from
		for k < len(t) && k-from < most && (word(t[k]) || strings.IndexByte(also, t[k]) >= 0) {
			k++
		}
		return k
	}
	for _, f := range forms {
		if t[0] != f.prefix[0] || !bytes.HasPrefix(t, []byte(f.prefix)) {
			continue
		}
		k := run(len(f.prefix), f.most, f.also)
		if k-len(f.prefix) >= f.least && (k == len(t) || !word(t[k])) {
			return f.class, k
		}
	}
	if bytes.HasPrefix(t, []byte("eyJ")) {
		a := run(3, 4096, "-")
		if a < len(t) && t[a] == '.' {
			b := run(a+1, 8192, "-")
			if b < len(t) && t[b] == '.' && b-a > 10 {
				if c := run(b+1, 4096, "-"); c-b > 10 {
					return "jwt", c
				}
			}
		}
	}
	if len(t) > 15 && t[0] <= 'Z' && t[1] >= 'A' && t[1] <= 'Z' && t[2] >= '0' && t[2] <= '9' && t[3] >= '0' && t[3] <= '9' {
		if k := iban(t); k > 0 {
			return "iban", k
		}
	}
	return "", 0
}

// iban checks an account number's digits (ISO 13616, mod 97).
func iban(t []byte) int {
	var s []byte
	n := 0
	for i := 0; i < len(t) && len(s) < 34; i++ {
		c := t[i]
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' {
			s = append(s, c)
			n = i + 1
		} else if c != ' ' || i+1 >= len(t) || !word(t[i+1]) {
			break
		}
	}
	if len(s) < 15 || n < len(t) && word(t[n]) {
		return 0
	}
	mod := 0
	for _, c := range append(slices.Clone(s[4:]), s[:4]...) {
		if c >= 'A' {
			mod = (mod*100 + int(c-'A') + 10) % 97
		} else {
			mod = (mod*10 + int(c-'0')) % 97
		}
	}
	if mod != 1 {
		return 0
	}
	return n
}
