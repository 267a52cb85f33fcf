package canon

import (
	"strings"
	"testing"
)

var someShape = &Shape{Kind: ObjectKind, Members: []Member{
	{"a", true, &Shape{Kind: StringKind}},
	{"b", false, &Shape{Kind: IntegerKind, Bounded: true}},
	{"c", false, &Shape{Kind: BooleanKind}},
	{"d", true, &Shape{Kind: ArrayKind, Item: &Shape{Kind: ObjectKind, Members: []Member{{"x", true, &Shape{Kind: IntegerKind}}}}}},
	{"e", false, &Shape{Kind: StringKind, Enum: []string{"one", "two"}}},
	{"f", false, &Shape{Kind: FreeKind}},
	{"g", false, &Shape{Kind: StringKind, Form: DigestForm}},
	{"h", false, &Shape{Kind: StringKind, Form: TimeForm}},
}}

// TestShape checks that Check accepts values that have the shape someShape, and returns
// an error for others.
func TestShape(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	for _, ok := range []string{
		`{"a":"","d":[]}`, `{"a":"x\n\"é","b":3,"c":true,"d":[{"x":-1},{"x":0}],"e":"two","f":{"z":[1,{}]},"g":"sha256:` + hex + `","h":"2026-01-02T03:04:05.678Z"}`,
	} {
		if err := someShape.Check([]byte(ok)); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
		if !IsCanonical([]byte(ok)) {
			t.Errorf("%s is not canonical", ok)
		}
	}
	for _, bad := range []string{
		``, `{}`, `[]`, `null`, `{"a":""}`, `{"d":[]}`, `{"d":[],"a":""}`, `{"a":"","d":[]} `, `{"a":"","d":[],"zz":1}`, `{"a":"","aa":1,"d":[]}`, `{"a":1,"d":[]}`, `{"a":"","b":"1","d":[]}`,
		`{"a":"","b":0,"d":[]}`, `{"a":"","b":-1,"d":[]}`, `{"a":"","b":1.5,"d":[]}`, `{"a":"","b":1e3,"d":[]}`, `{"a":"","b":9007199254740992,"d":[]}`, `{"a":"","c":false,"d":[]}`, `{"a":"","c":1,"d":[]}`, `{"a":"","d":[1]}`, `{"a":"","d":[{"x":1,"y":2}]}`, `{"a":"","d":[{}]}`, `{"a":"","d":{}}`,
		`{"a":"","d":[],"e":"three"}`, `{"a":"","d":[],"e":""}`, `{"a":"","d":[],"f":[]}`, `{"a":"","d":[],"f":{"b":1,"a":1}}`, `{"a":"","d":[],"f":5}`, `{"a":"","d":[],"g":"sha256:` + strings.ToUpper(hex) + `"}`, `{"a":"","d":[],"g":"sha256:"}`, `{"a":"","d":[],"g":"hha256:` + hex + `"}`,
		`{"a":"","d":[],"h":"2026-01-02 03:04:05.678Z"}`, `{"a":"\u0041","d":[]}`, `{"a":"\/","d":[]}`, "{\"a\":\"\xff\",\"d\":[]}", "{\"a\":\"\n\",\"d\":[]}", `{"a":"x`, `{"a":"x\`, `{"a":"","d":[]`, `{"a":"","d":[{"x":1}`, `{"a":"","a":"","d":[]}`, `{"a":"","d":[],}`, `{"a":"","d":null}`, `{"a":"","d":[],"f":`,
	} {
		if err := someShape.Check([]byte(bad)); err == nil {
			t.Errorf("%s passes", bad)
		}
	}
}

// FuzzShape checks that every input that Check accepts is canonical.
func FuzzShape(f *testing.F) {
	f.Add([]byte(`{"a":"","d":[{"x":1}],"f":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if someShape.Check(b) == nil && !IsCanonical(b) {
			t.Fatalf("%q has the shape and is not canonical", b)
		}
	})
}
