package canon

import (
	"fmt"
	"strings"
	"testing"
)

// errorCases maps an input, after the letter of the function that reads it (see
// TestErrorTexts), to the expected error text: the reason and, except for integers, its
// byte offset. "<nil>" stands for no error.
var errorCases = map[string]string{
	`T `:                                 `json: unexpected end at byte 0`,
	`T  `:                                `json: unexpected end at byte 1`,
	`T x`:                                `json: unexpected character at byte 0`,
	`T tru`:                              `json: unexpected character at byte 0`,
	`T truefalse`:                        `json: data after the value at byte 4`,
	`T nul`:                              `json: unexpected character at byte 0`,
	`T {`:                                `json: expected a member name at byte 1`,
	`T { `:                               `json: expected a member name at byte 2`,
	`T {1`:                               `json: expected a member name at byte 1`,
	`T {"a"`:                             `json: expected ':' at byte 4`,
	`T {"a" 1`:                           `json: expected ':' at byte 5`,
	`T {"a":`:                            `json: unexpected end at byte 5`,
	`T {"a":1`:                           `json: unexpected end in object at byte 6`,
	`T {"a":1 `:                          `json: unexpected end in object at byte 7`,
	`T {"a":1 2`:                         `json: expected ',' or '}' at byte 7`,
	`T {"a":1,`:                          `json: expected a member name at byte 7`,
	`T {"a":1,}`:                         `json: expected a member name at byte 7`,
	`T {"a":1,"a":2}`:                    `json: duplicate member name "a" at byte 13`,
	`T {"b":1,"a":1,"b":2}`:              `json: duplicate member name "b" at byte 19`,
	`T [`:                                `json: unexpected end at byte 1`,
	`T [1`:                               `json: unexpected end in array at byte 2`,
	`T [1 2`:                             `json: expected ',' or ']' at byte 3`,
	`T [1,`:                              `json: unexpected end at byte 3`,
	`T [1,]`:                             `json: unexpected character at byte 3`,
	`T "abc`:                             `json: unterminated string at byte 4`,
	"T \"a\x1f\"":                        `json: control character in string at byte 2`,
	"T \"\xff\"":                         `json: invalid UTF-8 at byte 2`,
	`T "a\`:                              `json: unterminated escape at byte 2`,
	`T "a\n`:                             `json: unterminated string at byte 4`,
	`T "\x"`:                             `json: unknown escape at byte 3`,
	`T "\u12`:                            `json: short \u escape at byte 3`,
	`T "\u123`:                           `json: short \u escape at byte 3`,
	`T "\u123g"`:                         `json: bad \u escape at byte 3`,
	`T "\u1234`:                          `json: unterminated string at byte 7`,
	`T "\ud800"`:                         `json: lone surrogate at byte 7`,
	`T "\ud800\n"`:                       `json: lone surrogate at byte 7`,
	`T "\ud800\u0041"`:                   `json: lone surrogate at byte 13`,
	`T "\udc00\udc00"`:                   `json: lone surrogate at byte 13`,
	`T "\ud800\u12`:                      `json: short \u escape at byte 9`,
	"T \"\\n\x00\"":                      `json: control character in string at byte 3`,
	"T \"\\n\xff\"":                      `json: invalid UTF-8 at byte 4`,
	`T -`:                                `json: bad number at byte 1`,
	`T -x`:                               `json: bad number at byte 1`,
	`T 01`:                               `json: data after the value at byte 1`,
	`T 1.`:                               `json: bad number at byte 2`,
	`T 1.x`:                              `json: bad number at byte 2`,
	`T 1e`:                               `json: bad number at byte 2`,
	`T 1e+`:                              `json: bad number at byte 3`,
	`T 1e-x`:                             `json: bad number at byte 3`,
	`T 1E400`:                            `json: number outside IEEE 754 double at byte 0`,
	`T [1E400]`:                          `json: number outside IEEE 754 double at byte 1`,
	`T 1 1`:                              `json: data after the value at byte 2`,
	`T {"a":x}`:                          `json: unexpected character at byte 5`,
	`T [x]`:                              `json: unexpected character at byte 1`,
	`R `:                                 `json: not in canonical form: expected '{' at byte 0`,
	`R [`:                                `json: not in canonical form: expected '{' at byte 0`,
	`R {`:                                `json: not in canonical form: expected member "actor" at byte 1`,
	`R {"actor":"a"`:                     `json: not in canonical form: expected member "count" at byte 12`,
	`R {"actor":"a"}`:                    `json: not in canonical form: expected member "count" at byte 12`,
	`R {"actor":"a","count":1}`:          `json: not in canonical form: expected member "raw" at byte 22`,
	`R {"actor":"a","count":1,"raw":1`:   `json: not in canonical form: expected '}' at byte 30`,
	`R {"actor":"a","count":1,"raw":1} `: `json: data after the document at byte 31`,
	`R {"count":1,"actor":"a","raw":1}`:  `json: not in canonical form: expected member "actor" at byte 1`,
	`R {"actor":"a","count":1,"labels":[],"raw":1}`:         `json: empty optional member labels at byte 34`,
	`R {"actor":"a","count":1,"labels":["x",],"raw":1}`:     `json: not in canonical form: expected '"' at byte 37`,
	`R {"actor":"a","count":1,"labels":["x" ,"y"],"raw":1}`: `json: not in canonical form: expected ']' at byte 36`,
	`R {"actor":"a","count":1,"labels":["x","y","raw":1}`:   `json: not in canonical form: expected ']' at byte 46`,
	`R {"actor":"a","count":01,"raw":1}`:                    `json: integer outside ±(2^53 − 1) or not in canonical form`,
	`R {"actor":"a","count":-0,"raw":1}`:                    `json: integer outside ±(2^53 − 1) or not in canonical form`,
	`R {"actor":"a","count":9007199254740992,"raw":1}`:      `json: integer outside ±(2^53 − 1) or not in canonical form`,
	`R {"actor":"a","count":-9007199254740992,"raw":1}`:     `json: integer outside ±(2^53 − 1) or not in canonical form`,
	`R {"actor":"a","count":,"raw":1}`:                      `json: integer outside ±(2^53 − 1) or not in canonical form`,
	`R {"actor":"a","count":1.0,"raw":1}`:                   `json: not in canonical form: expected member "raw" at byte 22`,
	`R {"actor":"a","count":1,"raw":01}`:                    `json: member raw is not in canonical form at byte 31`,
	`R {"actor":"a","count":1,"raw":{"b":1,"a":1}}`:         `json: member raw is not in canonical form at byte 42`,
	`R {"actor":"a","count":1,"raw":1,"text":""}`:           `json: empty optional member text at byte 40`,
	`R {"actor":"a","count":1,"raw":1,"yes":false}`:         `json: expected true at byte 37`,
	`R {"actor":"a","count":1,"raw":1,"yes":tru`:            `json: expected true at byte 37`,
	`R {"actor":"a","count":1,"raw":1,"yes":true`:           `json: not in canonical form: expected '}' at byte 41`,
	`R {"actor":"a","count":1,"raw":1,"zzz":1}`:             `json: not in canonical form: expected '}' at byte 30`,
	`R {"actor":"a","count":1,"raw":1,}`:                    `json: not in canonical form: expected '}' at byte 30`,
	`R {"actor":"a\x"}`:                                     `json: string is not in canonical form at byte 11`,
	`R {"actor":"a\/"}`:                                     `json: string is not in canonical form at byte 11`,
	`R {"actor":"a\u0020"}`:                                 `json: string is not in canonical form at byte 11`,
	`R {"actor":"a\u001F"}`:                                 `json: string is not in canonical form at byte 11`,
	`R {"actor":"a\u001g"}`:                                 `json: string is not in canonical form at byte 11`,
	`R {"actor":"a\u000a"}`:                                 `json: string is not in canonical form at byte 11`,
	`R {"actor":"a\u0`:                                      `json: unterminated string at byte 10`,
	`R {"actor":"a\u000"}`:                                  `json: string is not in canonical form at byte 11`,
	`R {"actor":"a\u1000"}`:                                 `json: string is not in canonical form at byte 11`,
	`R {"actor":"a\u0100"}`:                                 `json: string is not in canonical form at byte 11`,
	`R {"actor":"a\u002f"}`:                                 `json: string is not in canonical form at byte 11`,
	"R {\"actor\":\"a\x1f\"}":                               `json: control character in string at byte 11`,
	"R {\"actor\":\"\\n\x1f\"}":                             `json: control character in string at byte 12`,
	"R {\"actor\":\"\xff\"}":                                `json: invalid UTF-8 at byte 12`,
	"R {\"actor\":\"\\n\xff\"}":                             `json: invalid UTF-8 at byte 14`,
	`R {"actor":"abc`:                                       `json: unterminated string at byte 10`,
	`R {"actor":"a\"`:                                       `json: unterminated string at byte 10`,
	`R {"actor":"a\\`:                                       `json: unterminated string at byte 10`,
	`R {"actor":"a","count":1,"raw":[1,2`:                   `json: unterminated value at byte 33`,
	`R {"actor":"a","count":1,"raw":"x`:                     `json: unterminated value at byte 31`,
	`R {"actor":"a","count":1,"raw":"x\`:                    `json: unterminated value at byte 32`,
	`R {"actor":"a","count":1,"inner":{"actor":"b","count":1,"raw":1},"raw":1,"text":1}`: `json: not in canonical form: expected '"' at byte 78`,
	`R {"actor":"a","count":1,"inner":{},"raw":1}`:                                       `json: not in canonical form: expected member "actor" at byte 32`,
	`M `:                                  `json: not in canonical form: expected '{' at byte 0`,
	`M []`:                                `json: not in canonical form: expected '{' at byte 0`,
	`M {`:                                 `json: not in canonical form: expected '}' at byte 1`,
	`M {"a"`:                              `json: not in canonical form: expected ':' at byte 4`,
	`M {"a":`:                             `json: not in canonical form: expected '}' at byte 5`,
	`M {"a":}`:                            `<nil>`,
	`M {"a":1`:                            `json: not in canonical form: expected '}' at byte 6`,
	`M {"a":1,`:                           `json: not in canonical form: expected ':' at byte 7`,
	`M {"a":1,}`:                          `json: not in canonical form: expected ':' at byte 7`,
	`M {"a":1 }`:                          `<nil>`,
	`M {"a":1}x`:                          `json: data after the document at byte 7`,
	`M {"a" :1}`:                          `json: not in canonical form: expected ':' at byte 4`,
	`M {a:1}`:                             `json: not in canonical form: expected ':' at byte 4`,
	`M {"a":[}`:                           `json: not in canonical form: expected '}' at byte 7`,
	`M {"a":"x`:                           `json: unterminated value at byte 7`,
	`M {"a":1 "b":2}`:                     `json: not in canonical form: expected ',' at byte 10`,
	`M {"a":[1,2}`:                        `json: not in canonical form: expected '}' at byte 10`,
	`M {"a":{"b":1}`:                      `json: not in canonical form: expected '}' at byte 12`,
	`S `:                                  `json: not in canonical form: expected '{' at byte 0`,
	`S {}`:                                `json: data: expected member "a" at byte 1`,
	`S {"a":1,"d":[]}`:                    `json: not in canonical form: expected '"' at byte 5`,
	`S {"a":"","b":-1,"d":[]}`:            `json: b: out of range, or an empty optional member at byte 14`,
	`S {"a":"","b":0,"d":[]}`:             `json: b: out of range, or an empty optional member at byte 13`,
	`S {"a":"","c":false,"d":[]}`:         `json: c: want a boolean, which is absent if optional and false at byte 12`,
	`S {"a":"","c":tru`:                   `json: c: want a boolean, which is absent if optional and false at byte 12`,
	`S {"a":"","d":[{"x":1,"y":2}]}`:      `json: d: a member that the schema does not name, or not in its place at byte 19`,
	`S {"a":"","d":[],"zz":1}`:            `json: data: a member that the schema does not name, or not in its place at byte 14`,
	`S {"a":"","d":[],"e":"three"}`:       `json: e: not one of the values that the schema lists at byte 26`,
	`S {"a":"","d":[],"e":""}`:            `json: empty optional member e at byte 21`,
	`S {"a":"","d":[],"f":[]}`:            `json: f: want an object in canonical form at byte 19`,
	`S {"a":"","d":[],"f":{"b":1,"a":1}}`: `json: f: want an object in canonical form at byte 19`,
	`S {"a":"","d":[],"f":`:               `json: f: want an object in canonical form at byte 19`,
	`S {"a":"","d":[],"g":"sha256:"}`:     `json: g: not a digest at byte 28`,
	`S {"a":"","d":[],"h":"2026"}`:        `json: h: not a time at byte 25`,
	`S {"a":"","d":[]`:                    `json: not in canonical form: expected '}' at byte 14`,
	`S {"a":"","d":[]}x`:                  `json: data after the value at byte 15`,
	`S {"a":"","d":[{"x":1}`:              `json: not in canonical form: expected ']' at byte 20`,
	`S {"a":"\`:                           `json: unterminated string at byte 6`,
	`S {"a":"\n`:                          `json: unterminated string at byte 6`,
	`S {"a":"\x"`:                         `json: string is not in canonical form at byte 6`,
	"S {\"a\":\"\\n\x01\"":                `json: control character in string at byte 8`,
	`S {"d":[]}`:                          `json: data: expected member "a" at byte 1`,
}

// TestErrorTexts checks the error of every case. The first letter of a case names the
// function: T for Transform, R for Read of a row, M for Members, S for Check of
// someShape.
func TestErrorTexts(t *testing.T) {
	for in, want := range errorCases {
		if got := fmt.Sprint(errorOf(in)); got != want {
			t.Errorf("%q: %s\nwant %s", in, got, want)
		}
	}
}

func errorOf(c string) error {
	in := []byte(c[2:])
	switch c[0] {
	case 'T':
		_, err := Transform(nil, in)
		return err
	case 'R':
		return Read(in, &row{})
	case 'M':
		return Members(in, func(_, _ []byte) {})
	}
	return someShape.Check(in)
}

// TestDepth shows that Transform, IsCanonical, Read, Members and CheckDepth accept 128
// levels of nesting and reject 129; except for Members, this is checked also with an
// empty object or array as the innermost value. CheckDepth ignores brackets within a
// string, but not those after it. Read rejects a string with a lone byte 0x80, and
// counts a document in an array as one level.
func TestDepth(t *testing.T) {
	nest := func(n int, open, middle, closing string) string {
		return strings.Repeat(open, n) + middle + strings.Repeat(closing, n)
	}
	for _, c := range []struct {
		name string
		n    int
		read func(n int) error
		at   int // byte offset of the bracket that opens the level that is too deep
	}{
		{"arrays", 128, func(n int) error { _, err := Transform(nil, []byte(nest(n, "[", "1", "]"))); return err }, 128},
		{"objects", 128, func(n int) error { _, err := Transform(nil, []byte(nest(n, `{"a":`, "1", "}"))); return err }, 128 * 5},
		{"raw member", 127, func(n int) error {
			return Read([]byte(`{"actor":"a","count":1,"raw":`+nest(n, "[", "1", "]")+"}"), &row{})
		}, 29 + 127},
		{"raw member of an inner document", 126, func(n int) error {
			return Read([]byte(`{"actor":"a","count":1,"inner":{"actor":"a","count":1,"raw":`+nest(n, "[", "1", "]")+`},"raw":1}`), &row{})
		}, 60 + 126},
		{"members", 127, func(n int) error { return Members([]byte(`{"a":`+nest(n, "[", "1", "]")+"}"), func(_, _ []byte) {}) }, 5 + 127},
		{"the second of two values", 127, func(n int) error {
			return Members([]byte(`{"a":[[1]],"b":`+nest(n, "[", "1", "]")+"}"), func(_, _ []byte) {})
		}, 15 + 127},
	} {
		if err := c.read(c.n); err != nil {
			t.Errorf("%s: %d levels: %v", c.name, c.n, err)
		}
		want := fmt.Sprintf("json: nesting deeper than 128 at byte %d", c.at)
		if err := c.read(c.n + 1); err == nil || err.Error() != want {
			t.Errorf("%s: %d levels: %v, want %s", c.name, c.n+1, err, want)
		}
	}
	for open, closing := range map[string]string{"[": "]", `{"a":`: "}"} {
		for middle, inner := range map[string]int{"1": 0, "[]": 1, "{}": 1, `{"a":[]}`: 2, "[{}]": 2} {
			for levels, ok := range map[int]bool{127: true, 128: true, 129: false, 130: false} {
				text := []byte(nest(levels-inner, open, middle, closing))
				_, transformed := Transform(nil, text)
				canonical, checked := IsCanonical(text), CheckDepth(text)
				// The document around the raw member is one level.
				read := Read([]byte(`{"data":`+nest(levels-inner-1, open, middle, closing)+"}"), &nested{})
				if (transformed == nil) != ok || canonical != ok || (checked == nil) != ok || (read == nil) != ok {
					t.Errorf("%d levels of %s around %s: Transform %v, IsCanonical %v, CheckDepth %v, Read %v", levels, open, middle, transformed, canonical, checked, read)
				}
			}
		}
	}
	if err := CheckDepth([]byte(`["",` + nest(128, "[", "", ""))); err == nil {
		t.Error("129 levels after an empty string are accepted")
	}
	if err := CheckDepth([]byte(`["` + nest(200, "[", "", ""))); err != nil {
		t.Error("brackets in a string that never ends are nested:", err)
	}
	for _, s := range []string{"\x80", "a\x80b"} {
		if Read([]byte(`{"v":"`+s+`"}`), &one{}) == nil {
			t.Errorf("%q is accepted", s)
		}
	}
	// A document in an array counts as one level until its closing brace.
	list := &listed{Rows: make([]row, 3)}
	for i := range list.Rows {
		list.Rows[i].Raw = []byte(nest(125, "[", "1", "]"))
	}
	if err := Read(Append(nil, list), &listed{}); err != nil {
		t.Error(err)
	}
	list.Rows[2].Raw = []byte(nest(126, "[", "1", "]"))
	if err := Read(Append(nil, list), &listed{}); err == nil {
		t.Error("126 levels below a document in an array of a document are accepted")
	}
}
