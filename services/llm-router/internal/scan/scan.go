// Package scan finds personal data and secrets in text by their format. It is pure. Data
// without a format of its own, such as names and addresses of people, is not found.
package scan

import (
	"bytes"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Classes maps each class of findings to its group, pii or secret.
var Classes = map[string]string{"email": "pii", "credit_card": "pii", "iban": "pii", "us_ssn": "pii", "phone": "pii",
	"aws_key": "secret", "github_token": "secret", "api_key": "secret", "jwt": "secret", "private_key": "secret", "slack_token": "secret"}

// Finding is a range of bytes in a text that has the format of a class. Only the format
// is checked, so a finding may be a false positive.
type Finding struct {
	Class      string
	Start, End int
}

// longest is an upper bound of the length, in bytes, of a finding that is neither a
// token nor a private key. The longest are email addresses.
const longest = 256

// find scans a text for findings that begin at from or later. They are in order and do
// not overlap.
func find(text []byte, from int) *finder {
	f := &finder{text: text, from: from, open: len(text)}
	for i := from; i < len(text); i++ {
		if i < f.end {
			continue
		}
		switch leads[text[i]] {
		case leadAt:
			f.email(i)
		case leadDash:
			f.privateKey(i)
		case leadNumber:
			i = f.number(i)
		case leadLetter:
			if i == 0 || !word(text[i-1]) {
				f.token(i)
			}
		}
	}
	return f
}

// leads maps each byte to the check that find makes at that byte; 0 means none.
var leads = func() (l [256]byte) {
	l['@'], l['-'], l['+'] = leadAt, leadDash, leadNumber
	for c := '0'; c <= '9'; c++ {
		l[c] = leadNumber
	}
	for c := 'a'; c <= 'z'; c++ {
		l[c], l[c-'a'+'A'] = leadLetter, leadLetter
	}
	return l
}()

const (
	leadAt = iota + 1
	leadDash
	leadNumber
	leadLetter
)

// finder scans one text. Its methods check for a finding at a position.
type finder struct {
	text  []byte
	from  int // position at which the scan began
	found []Finding
	end   int // end of the last finding
	open  int // start of the first token that may continue after the end of the text; len(text) if there is none
}

// add records a finding unless it overlaps the one before.
func (f *finder) add(class string, from, to int) {
	if from >= f.end {
		f.found = append(f.found, Finding{class, from, to})
		f.end = to
	}
}

// email checks for an email address around the at sign at a position.
func (f *finder) email(at int) {
	if from, to, ok := email(f.text, at); ok {
		f.add("email", from, to)
	}
}

// headMost is the number of bytes at the beginning of a PEM block in which privateKey
// searches for pemKey.
const headMost = 64

// privateKey checks for a private key in PEM (RFC 7468). A key without an end extends to
// the end of the text.
func (f *finder) privateKey(i int) {
	rest := f.text[i:]
	if !bytes.HasPrefix(rest, pemBegin) || bytes.Index(rest[:min(len(rest), headMost)], pemKey) <= 0 {
		return
	}
	to := len(f.text)
	if e := bytes.Index(rest, pemEnd); e > 0 {
		to = i + e + len(pemEnd)
		if x := bytes.Index(f.text[to:], pemDashes); x >= 0 {
			to += x + len(pemDashes)
		}
	}
	f.add("private_key", i, to)
}

var (
	pemBegin  = []byte("-----BEGIN ")
	pemKey    = []byte("PRIVATE KEY-----")
	pemEnd    = []byte("-----END ")
	pemDashes = []byte("-----")
)

// number checks for a number at a position, unless a dot or a byte of a word precedes
// it. It returns the index of the last byte that need not be scanned again.
func (f *finder) number(i int) int {
	if i > 0 && (word(f.text[i-1]) || f.text[i-1] == '.') {
		return i
	}
	class, n := number(f.text[i:])
	if class != "" {
		f.add(class, i, i+n)
		return i
	}
	return i + max(n-1, 0)
}

// token checks for a token or an IBAN at the beginning of a word.
func (f *finder) token(i int) {
	class, n, open := token(f.text[i:])
	if n > 0 {
		f.add(class, i, i+n)
	}
	if open {
		f.open = min(f.open, i)
	}
}

// word reports whether a byte can be part of a word.
func word(c byte) bool { return leads[c] == leadLetter || digit(c) || c == '_' }

// email returns the bounds of the address around an at sign (RFC 5321, without quoted
// local parts): a local part of at most 64 bytes, and a domain that contains a dot.
func email(t []byte, at int) (from, to int, ok bool) {
	for from = at; from > 0 && at-from < 64 && local(t[from-1]); from-- {
	}
	for from < at && t[from] == '.' {
		from++
	}
	dot := false
	for to = at + 1; to < len(t) && to-at < 190 && domain(t, to); to++ {
		dot = dot || t[to] == '.'
	}
	return from, to, from < at && dot && to-at > 3
}

// local reports whether a byte can be part of the local part of an address.
func local(c byte) bool { return word(c) || strings.IndexByte(".%+-", c) >= 0 }

// domain reports whether the byte at i can be part of a domain name. A dot must be
// followed by a label.
func domain(t []byte, i int) bool {
	switch c := t[i]; c {
	case '_':
		return false
	case '-':
		return true
	case '.':
		return i+1 < len(t) && word(t[i+1])
	default:
		return word(c)
	}
}

// numeral is a sequence of digits and the separators between them.
type numeral struct {
	plus   bool
	digits []byte
	groups []uint8 // number of digits in each group
	n      int     // length in bytes, up to the last digit
	store  [numeralMost]byte
	counts [numeralMost]uint8
}

// numeralMost is the maximum length of a numeral, in bytes.
const numeralMost = 40

// read parses the numeral at the beginning of t. x.digits and x.groups use arrays inside
// x, so that scanning allocates nothing.
func (x *numeral) read(t []byte) {
	x.plus = t[0] == '+'
	x.digits, x.groups = x.store[:0], append(x.counts[:0], 0)
	i := 0
	if x.plus {
		i = 1
	}
	for ; i < len(t) && i < numeralMost; i++ {
		c := t[i]
		switch {
		case digit(c):
			x.digits = append(x.digits, c)
			x.groups[len(x.groups)-1]++
			x.n = i + 1
		case x.between(c) && i+1 < len(t) && (digit(t[i+1]) || x.plus):
			x.groups = append(x.groups, 0)
		default:
			return
		}
	}
}

// between reports whether a byte may separate two digits.
func (x *numeral) between(c byte) bool {
	return c == ' ' || c == '-' || x.plus && (c == '(' || c == ')' || c == '.')
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// socialSecurity is the grouping of the digits of a US social security number.
var socialSecurity = []uint8{3, 2, 4}

// number returns the class and the length of the number at the beginning of t: a phone
// number if it has a plus sign and 8 to 15 digits (E.164), a credit card number if it
// has 13 to 19 digits and its check digit is valid (ISO/IEC 7812), or a US social
// security number if its digits are grouped as socialSecurity specifies, with a hyphen
// after the first group. Digits that are all equal are no credit card number. If class
// is "", because there is no such number or a byte of a word follows it, the next n
// bytes need not be scanned again.
func number(t []byte) (class string, n int) {
	var x numeral
	x.read(t)
	if x.n < len(t) && word(t[x.n]) {
		return "", x.n
	}
	d := len(x.digits)
	switch {
	case x.plus && d >= 8 && d <= 15:
		return "phone", x.n
	case d >= 13 && d <= 19 && luhn(x.digits) && !same(x.digits):
		return "credit_card", x.n
	case d == 9 && t[3] == '-' && slices.Equal(x.groups, socialSecurity):
		return "us_ssn", x.n
	}
	return "", x.n
}

// luhn reports whether the last digit is the check digit of the digits before it
// (ISO/IEC 7812-1, Annex B).
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

// same reports whether all digits are equal, as in placeholders.
func same(d []byte) bool { return bytes.Count(d, d[:1]) == len(d) }

// form describes credentials that start with a fixed prefix, such as AWS access keys.
type form struct {
	prefix, class string
	least, most   int    // minimum and maximum number of bytes after the prefix
	also          string // characters that the credential may contain in addition to those of a word
}

var forms = []form{
	{"AKIA", "aws_key", 16, 16, ""}, {"ASIA", "aws_key", 16, 16, ""},
	{"ghp_", "github_token", 36, 255, ""}, {"gho_", "github_token", 36, 255, ""}, {"ghs_", "github_token", 36, 255, ""}, {"github_pat_", "github_token", 22, 255, ""},
	{"sk-", "api_key", 20, 250, "-_"}, {"sk_live_", "api_key", 16, 250, ""}, {"rk_live_", "api_key", 16, 250, ""}, {"AIza", "api_key", 35, 35, "-_"}, {contract.IDVirtualKey, "api_key", 40, 64, ""},
	{"glpat-", "api_key", 20, 64, "-_"}, {"npm_", "api_key", 36, 36, ""}, {"hvs.", "api_key", 24, 250, "-_"},
	{"xoxb-", "slack_token", 20, 250, "-"}, {"xoxp-", "slack_token", 20, 250, "-"}, {"xoxa-", "slack_token", 20, 250, "-"},
}

// token returns the class and the length of the secret or IBAN at the beginning of t;
// the length is 0 if there is none. open reports whether bytes after t may complete,
// lengthen or rule out a secret whose prefix t has.
func token(t []byte) (class string, n int, open bool) {
	for i := range forms {
		if f := &forms[i]; t[0] == f.prefix[0] && bytes.HasPrefix(t, []byte(f.prefix)) {
			if n, open := f.match(t); n > 0 || open {
				return f.class, n, open
			}
		}
	}
	if n, open := webToken(t); n > 0 || open {
		return "jwt", n, open
	}
	if n := iban(t); n > 0 {
		return "iban", n, false
	}
	return "", 0, false
}

// run returns the index after the bytes of t, from index from on, that are part of a
// word or in also. The maximum number of bytes that it passes over is most.
func run(t []byte, from, most int, also string) int {
	k := from
	for k < len(t) && k-from < most && (word(t[k]) || strings.IndexByte(also, t[k]) >= 0) {
		k++
	}
	return k
}

// match returns the length of the token at the beginning of t, or 0 if there is none. t
// must begin with the prefix of the form. open is as for token.
func (f *form) match(t []byte) (n int, open bool) {
	k := run(t, len(f.prefix), f.most, f.also)
	if k-len(f.prefix) < f.least || k < len(t) && word(t[k]) {
		return 0, k == len(t)
	}
	return k, k == len(t)
}

// webToken returns the length of the JSON Web Token (RFC 7519) at the beginning of t, or
// 0 if there is none. A token has three parts: the first begins as the base64url of a
// JSON object, and the second and third have at least 10 bytes. open is as for token.
func webToken(t []byte) (n int, open bool) {
	const least = 10
	if !bytes.HasPrefix(t, []byte("eyJ")) {
		return 0, false
	}
	a := run(t, 3, 4096, "-")
	if a == len(t) || t[a] != '.' {
		return 0, a == len(t)
	}
	b := run(t, a+1, 8192, "-")
	if b == len(t) || t[b] != '.' || b-a <= least {
		return 0, b == len(t)
	}
	c := run(t, b+1, 4096, "-")
	if c-b <= least {
		return 0, c == len(t)
	}
	return c, c == len(t)
}

// ibanLeast and ibanMost are the minimum and maximum number of letters and digits of an
// IBAN.
const (
	ibanLeast = 15
	ibanMost  = 34
)

// iban returns the length of the IBAN (ISO 13616) at the beginning of t, or 0 if there
// is none. It checks the check digits, but only the form of the country code. An IBAN
// may contain single blanks.
func iban(t []byte) int {
	if len(t) < ibanLeast || !capital(t[0]) || !capital(t[1]) || !digit(t[2]) || !digit(t[3]) {
		return 0
	}
	var store [ibanMost]byte
	s, n := account(store[:0], t)
	if len(s) < ibanLeast || n < len(t) && word(t[n]) || mod97(mod97(0, s[4:]), s[:4]) != 1 {
		return 0
	}
	return n
}

// account appends the capital letters and digits at the beginning of t, which single
// blanks may separate, to s, up to its capacity. n is the number of bytes of t that they
// occupy.
func account(s, t []byte) (_ []byte, n int) {
	for i, c := range t {
		switch {
		case len(s) == cap(s):
			return s, n
		case digit(c) || capital(c):
			s = append(s, c)
			n = i + 1
		case c != ' ' || i+1 >= len(t) || !word(t[i+1]):
			return s, n
		}
	}
	return s, n
}

func capital(c byte) bool { return c >= 'A' && c <= 'Z' }

// mod97 returns the remainder modulo 97 (ISO 7064) of a number that ends with the digits
// s; rest is the remainder of the digits before them. The letters A to Z represent 10 to
// 35.
func mod97(rest int, s []byte) int {
	for _, c := range s {
		if c >= 'A' {
			rest = (rest*100 + int(c-'A') + 10) % 97
		} else {
			rest = (rest*10 + int(c-'0')) % 97
		}
	}
	return rest
}
