package canon

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestRFC8785Sample checks the sample of RFC 8785 section 3.2.2, sorted as in section
// 3.2.3.
func TestRFC8785Sample(t *testing.T) {
	in := `{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`
	want := `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`
	got, err := Transform(nil, []byte(in))
	if err != nil || string(got) != want {
		t.Fatalf("got %s (%v)\nwant %s", got, err, want)
	}
}

// TestKeyOrder checks that names are sorted by UTF-16 code units (RFC 8785
// section 3.2.3).
func TestKeyOrder(t *testing.T) {
	in := `{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`
	got, err := Transform(nil, []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	order := []string{"Carriage", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew"}
	last := -1
	for _, w := range order {
		i := strings.Index(string(got), w)
		if i <= last {
			t.Fatalf("%s out of order in %s", w, got)
		}
		last = i
	}
}

// TestNumbers checks the number samples of RFC 8785 appendix B.
func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		bits uint64
		want string
	}{
		{0x0000000000000000, "0"}, {0x8000000000000000, "0"},
		{0x0000000000000001, "5e-324"}, {0x8000000000000001, "-5e-324"},
		{0x7fefffffffffffff, "1.7976931348623157e+308"}, {0xffefffffffffffff, "-1.7976931348623157e+308"},
		{0x4340000000000000, "9007199254740992"}, {0xc340000000000000, "-9007199254740992"},
		{0x4430000000000000, "295147905179352830000"},
		{0x44b52d02c7e14af5, "9.999999999999997e+22"}, {0x44b52d02c7e14af6, "1e+23"}, {0x44b52d02c7e14af7, "1.0000000000000001e+23"},
		{0x444b1ae4d6e2ef4e, "999999999999999700000"}, {0x444b1ae4d6e2ef4f, "999999999999999900000"}, {0x444b1ae4d6e2ef50, "1e+21"},
		{0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"}, {0x3eb0c6f7a0b5ed8d, "0.000001"},
		{0x41b3de4355555553, "333333333.3333332"}, {0x41b3de4355555554, "333333333.33333325"},
		{0x41b3de4355555555, "333333333.3333333"}, {0x41b3de4355555556, "333333333.3333334"}, {0x41b3de4355555557, "333333333.33333343"},
		{0xbecbf647612f3696, "-0.0000033333333333333333"}, {0x43143ff3c1cb0959, "1424953923781206.2"},
	} {
		got, err := AppendNumber(nil, math.Float64frombits(c.bits))
		if err != nil || string(got) != c.want {
			t.Errorf("%x: got %s want %s (%v)", c.bits, got, c.want, err)
		}
	}
	for _, bits := range []uint64{0x7fffffffffffffff, 0x7ff0000000000000} {
		if _, err := AppendNumber(nil, math.Float64frombits(bits)); err == nil {
			t.Errorf("%x accepted", bits)
		}
	}
}

func TestRejects(t *testing.T) {
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for name, in := range map[string]string{
		"duplicate key": `{"a":1,"a":2}`, "duplicate by escape": `{"a":1,"\u0061":2}`, "trailing": `{} {}`,
		"lone surrogate": `"\ud800"`, "low surrogate": `"\udc00"`, "invalid utf8": "\"\xff\"", "control": "\"\x01\"",
		"huge number": `1e400`, "leading zero": `01`, "plus": `+1`, "dot": `1.`, "nan": `NaN`, "empty": ``, "deep": deep,
		"comma": `[1,]`, "single quote": `'a'`, "comment": `{}/**/`, "unterminated": `"abc`, "bom": "\ufeff{}", "bad escape": `"\x"`,
	} {
		if out, err := Transform(nil, []byte(in)); err == nil {
			t.Errorf("%s accepted as %s", name, out)
		}
	}
}

// FuzzTransform shows that Transform is idempotent, and that its result decodes
// to the same value with encoding/json as its input.
func FuzzTransform(f *testing.F) {
	for _, s := range []string{`{"b":1,"a":[1.5,"x\u00e9",null,true]}`, `"\ud83d\ude00"`, `1e21`, `{"":{}}`, `[1e-7,-0]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := Transform(nil, in)
		if err != nil {
			return
		}
		again, err := Transform(nil, out)
		if err != nil || string(again) != string(out) {
			t.Fatalf("not idempotent: %q -> %q -> %q (%v)", in, out, again, err)
		}
		var a, b any
		if json.Unmarshal(in, &a) != nil || json.Unmarshal(out, &b) != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("changed meaning: %s -> %s", in, hex.EncodeToString(out))
		}
	})
}

func BenchmarkTransform1KiB(b *testing.B) {
	doc := []byte(`{"z":"` + strings.Repeat("x", 400) + `","a":{"k":[1,2,3,4.5,{"y":true,"b":null}]},"text":"` + strings.Repeat("é", 250) + `"}`)
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	var buf []byte
	for b.Loop() {
		var err error
		if buf, err = Transform(buf[:0], doc); err != nil {
			b.Fatal(err)
		}
	}
}

// one is a document with a single member, a string.
type one struct{ v string }

func (o *one) Canonical(c *Codec) { c.Str("v", &o.v) }

// FuzzReadString shows that Read accepts the canonical form of each string and no
// other form of it.
func FuzzReadString(f *testing.F) {
	for _, s := range []string{`plain`, `a\"b`, `\\`, `\u0001`, `\u001f`, `\u001F`, `\u000a`, `\n`, `\/`, `\ud83d\ude00`, "\xff", `\`, `\u00`, "tab\there", `\u0020`, "é\\n", `\"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		raw := []byte(`{"v":"` + s + `"}`)
		var got one
		err := Read(raw, &got)
		var members map[string]any
		if want := IsCanonical(raw) && json.Unmarshal(raw, &members) == nil && len(members) == 1; (err == nil) != want {
			t.Fatalf("%s: %v, want accepted: %v", raw, err, want)
		}
		if err == nil && string(Append(nil, &got)) != string(raw) {
			t.Fatalf("%s is read as %q", raw, got.v)
		}
		var back one
		if utf8.ValidString(s) {
			if err := Read(Append(nil, &one{s}), &back); err != nil || back.v != s {
				t.Fatalf("%q comes back as %q, %v", s, back.v, err)
			}
		}
	})
}

// TestNames shows that Transform accepts a space and the other printable characters in names
// and in values, and no control character in either.
func TestNames(t *testing.T) {
	for _, c := range []string{" ", "!", "~", "\u007f", "a b"} {
		src := `{"` + c + `":"` + c + `"}`
		if got, err := Transform(nil, []byte(src)); err != nil || string(got) != src {
			t.Errorf("%q: %q, %v", src, got, err)
		}
	}
	for _, c := range []string{"\x1f", "\t", "\x00", "a\x1fb"} {
		for _, src := range []string{`{"` + c + `":1}`, `{"a":"` + c + `"}`, `{"a":"\n` + c + `"}`} {
			if got, err := Transform(nil, []byte(src)); err == nil {
				t.Errorf("%q is accepted as %q", src, got)
			}
		}
	}
}
