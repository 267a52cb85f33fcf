package canon

import (
	"strings"
	"testing"
)

// row is a document with members of most kinds, for tests and benchmarks of the codec; listed
// and plain have the other kinds.
type row struct {
	Actor  string
	Count  int64
	Inner  *row
	Labels []string
	Raw    []byte
	Text   string
	Yes    bool
}

func (r *row) Canonical(c *Codec) {
	c.Str("actor", &r.Actor)
	c.Int("count", &r.Count)
	OptDoc(c, "inner", &r.Inner)
	c.OptStrs("labels", &r.Labels)
	c.Raw("raw", &r.Raw)
	c.OptStr("text", &r.Text)
	c.OptBool("yes", &r.Yes)
}

func benchRow() *row {
	leaf := &row{Actor: "alice", Count: 1 << 40, Raw: []byte(`{"a":[1,2,{"b":"c"}],"z":null}`), Text: strings.Repeat("plain text ", 20)}
	return &row{Actor: "bob", Count: -7, Inner: leaf, Labels: []string{"web", "pii", "a \"quoted\" label\n"}, Raw: []byte(`{"k":"` + strings.Repeat("x", 200) + `"}`), Text: "é" + strings.Repeat("y", 90), Yes: true}
}

func BenchmarkAppend(b *testing.B) {
	doc, buf := benchRow(), make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		buf = Append(buf[:0], doc)
	}
}

func BenchmarkRead(b *testing.B) {
	raw := Append(nil, benchRow())
	b.ReportAllocs()
	for b.Loop() {
		var r row
		if err := Read(raw, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMembers(b *testing.B) {
	raw := Append(nil, benchRow())
	for b.Loop() {
		n := 0
		if err := Members(raw, func(_, _ []byte) { n++ }); err != nil || n != 7 {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkShape(b *testing.B) {
	raw := []byte(`{"a":"x\n\"é","b":3,"c":true,"d":[{"x":-1},{"x":0}],"e":"two","f":{"z":[1,{}]},"g":"sha256:` + strings.Repeat("0a", 32) + `","h":"2026-01-02T03:04:05.678Z"}`)
	for b.Loop() {
		if err := someShape.Check(raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendString(b *testing.B) {
	s := strings.Repeat("some text, mostly ASCII, with \"quotes\"\n and é ", 8)
	var buf []byte
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		buf = AppendString(buf[:0], s)
	}
}
