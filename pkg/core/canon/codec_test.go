package canon

import (
	"reflect"
	"strings"
	"testing"
)

// listed is a document with the kinds of members that the documents row and plain do not have.
type listed struct {
	Const string
	Data  []byte
	Doc   one
	N     int64
	Names []string
	Rows  []row
}

func (l *listed) Canonical(c *Codec) {
	c.Const("const", "1.0")
	if l.Data == nil && !c.Reading() {
		l.Data = []byte("{}")
	}
	c.Data("data", &l.Data)
	c.Doc("doc", &l.Doc)
	c.OptInt("n", &l.N)
	c.Strs("names", &l.Names)
	List(c, "rows", &l.Rows)
}

// TestCodec checks the bytes that are written for each kind of member, the value that is
// read back, and that some invalid documents are rejected.
func TestCodec(t *testing.T) {
	const least = `{"actor":"","count":0,"raw":1}`
	for _, c := range []struct {
		doc  Document
		text string
	}{
		{&row{Raw: []byte("1")}, least},
		{&row{Actor: "a", Raw: []byte(`{"a":[]}`), Text: "t"}, `{"actor":"a","count":0,"raw":{"a":[]},"text":"t"}`},
		{&row{Count: MaxInt, Labels: []string{""}, Raw: []byte("1")}, `{"actor":"","count":9007199254740991,"labels":[""],"raw":1}`},
		{&row{Count: -MaxInt, Labels: []string{"a", "b", "c"}, Raw: []byte("1"), Yes: true}, `{"actor":"","count":-9007199254740991,"labels":["a","b","c"],"raw":1,"yes":true}`},
		{&row{Inner: &row{Raw: []byte("null")}, Raw: []byte("-1")}, `{"actor":"","count":0,"inner":{"actor":"","count":0,"raw":null},"raw":-1}`},
		{&row{Actor: "é€\U0001F600", Raw: []byte("1"), Text: "a\n b\t\u0080"}, `{"actor":"é€😀","count":0,"raw":1,"text":"a\n b\t` + "\u0080" + `"}`},
		{&row{Raw: []byte(`"\u001f\\\"x"`)}, `{"actor":"","count":0,"raw":"\u001f\\\"x"}`},
		{&listed{Data: []byte("{}"), Names: []string{}}, `{"const":"1.0","data":{},"doc":{"v":""},"names":[]}`},
		{&listed{Data: []byte(`[1,{"a":"}"}]`), Doc: one{"v"}, N: -5, Names: []string{"a", ""}, Rows: []row{{Raw: []byte("1")}}}, `{"const":"1.0","data":[1,{"a":"}"}],"doc":{"v":"v"},"n":-5,"names":["a",""],"rows":[` + least + `]}`},
		{&listed{Data: []byte("1"), Names: []string{"x"}, Rows: []row{{Raw: []byte("1")}, {Raw: []byte("1")}, {Raw: []byte("1")}}}, `{"const":"1.0","data":1,"doc":{"v":""},"names":["x"],"rows":[` + least + `,` + least + `,` + least + `]}`},
	} {
		if got := string(Append([]byte("x"), c.doc)); got != "x"+c.text {
			t.Errorf("%+v is written as %s\nwant %s", c.doc, got[1:], c.text)
		}
		back := reflect.New(reflect.TypeOf(c.doc).Elem())
		if err := Read([]byte(c.text), back.Interface().(Document)); err != nil || !reflect.DeepEqual(back.Interface(), c.doc) {
			t.Errorf("%s is read as %+v, %v", c.text, back.Elem(), err)
		}
		if !IsCanonical([]byte(c.text)) {
			t.Errorf("%s is not canonical", c.text)
		}
	}
	for _, bad := range []string{
		`{"const":"1.1","data":1,"doc":{"v":""},"names":[]}`, `{"const":"1.0","data":1,"doc":{"v":""},"n":0,"names":[]}`, `{"const":"1.0","data":1,"doc":{"v":""},"names":[],"rows":[]}`,
		`{"const":"1.0","data":1,"doc":{"v":""},"names":null}`, `{"const":"1.0","data":1,"doc":null,"names":[]}`, `{"const":"1.0","data":1,"doc":{"v":"","w":1},"names":[]}`, `{"const":"1.0","data":1,"doc":{},"names":[]}`,
		`{"const":"1.0","data":,"doc":{"v":""},"names":[1]}`, `{"const":"1.0","data":1,"doc":{"v":""},"names":[],"rows":[{}]}`,
	} {
		if err := Read([]byte(bad), &listed{}); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}

// plain is a document with a single member, which it passes to Codec.Text.
type plain struct{ v []byte }

func (p *plain) Canonical(c *Codec) { c.Text("v", &p.v) }

// TestText checks that Text writes and reads the bytes between the quotes with their
// escapes, that it does not copy them when it reads, and that some invalid documents are
// rejected.
func TestText(t *testing.T) {
	for text, want := range map[string]string{`{"v":""}`: "", `{"v":"a.v1"}`: "a.v1", `{"v":"\n\""}`: `\n\"`, `{"v":"é"}`: "é"} {
		var p plain
		in := []byte(text)
		if err := Read(in, &p); err != nil || string(p.v) != want {
			t.Errorf("%s is read as %q, %v", text, p.v, err)
		}
		if got := string(Append(nil, &p)); got != text {
			t.Errorf("%q is written as %s, want %s", p.v, got, text)
		}
		if clear(in); string(p.v) == want && want != "" {
			t.Errorf("%s is copied", text)
		}
	}
	for _, bad := range []string{`{"v":1}`, `{"v":"\u0041"}`, "{\"v\":\"\xff\"}", `{"v":"a`, `{"w":"a"}`} {
		if err := Read([]byte(bad), &plain{}); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}

// TestWith checks that With passes the bytes of Append, also within another call and
// after a document of another size, and that a call of With and one of Read together
// allocate at most once.
func TestWith(t *testing.T) {
	long, short := &plain{[]byte(strings.Repeat("x", 2*maxScratch))}, &plain{[]byte("y")}
	for _, d := range []*plain{short, long, short} {
		With(d, func(b []byte) {
			With(short, func(inner []byte) {
				if string(b) != string(Append(nil, d)) || string(inner) != `{"v":"y"}` {
					t.Errorf("%.20s within %.20s", inner, b)
				}
			})
		})
	}
	doc := []byte(`{"v":"y"}`)
	var back plain
	if n := testing.AllocsPerRun(1000, func() {
		With(short, func([]byte) {})
		if err := Read(doc, &back); err != nil {
			t.Error(err)
		}
	}); n > 1 { // under the race detector, a sync.Pool drops a quarter of its values; without a pool there are more allocations
		t.Errorf("%v allocations", n)
	}
}

// TestStrings checks the canonical form of every character below 0x80 and of some strings
// with other characters or with bytes that are not UTF-8, which become U+FFFD. It shows
// that Transform produces this form from escapes, and that Read rejects the \u escape of
// a character below 0x80 unless it is the canonical form.
func TestStrings(t *testing.T) {
	for c := range 0x80 {
		s := "a" + string(rune(c)) + "z"
		want := `"a` + string(rune(c)) + `z"`
		if short := shortEscapes[c]; short != 0 {
			want = `"a\` + string(rune(short)) + `z"`
		} else if c < 0x20 {
			want = `"a\u00` + string(hexDigits[c>>4]) + string(hexDigits[c&15]) + `z"`
		}
		if got := string(AppendString(nil, s)); got != want {
			t.Errorf("%q is written as %s, want %s", s, got, want)
		}
		var back one
		if err := Read([]byte(`{"v":`+want+`}`), &back); err != nil || back.v != s {
			t.Errorf("%s is read as %q, %v", want, back.v, err)
		}
		long := `{"v":"a\u00` + string(hexDigits[c>>4]) + string(hexDigits[c&15]) + `z"}`
		if got, err := Transform(nil, []byte(long)); err != nil || string(got) != `{"v":`+want+`}` {
			t.Errorf("%s becomes %s, %v", long, got, err)
		}
		if err := Read([]byte(long), &one{}); (err == nil) != strings.Contains(want, `\u`) {
			t.Errorf("%s: %v", long, err)
		}
	}
	for s, want := range map[string]string{"": `""`, "é\u2028\U0001F600": "\"é\u2028\U0001F600\"", "\uFFFD": "\"\uFFFD\"", "a\xffb": "\"a\uFFFDb\"", "\xff\xfe": "\"\uFFFD\uFFFD\"", "\xc3": "\"\uFFFD\"", "\x80": "\"\uFFFD\"", "a\xff\n": "\"a\uFFFD\\n\"", "\u0080": "\"\u0080\""} {
		if got := string(AppendString(nil, s)); got != want {
			t.Errorf("%q is written as %s, want %s", s, got, want)
		}
	}
	for in, want := range map[string]string{`"\ud83d\ude00"`: `"😀"`, `"\uFFFF\u0041\/"`: "\"\uffffA/\"", `"\b\t\n\f\r\"\\"`: `"\b\t\n\f\r\"\\"`, `"é\u00e9"`: `"éé"`, `"\n x"`: `"\n x"`} {
		if got, err := Transform(nil, []byte(in)); err != nil || string(got) != want {
			t.Errorf("%s becomes %s, %v", in, got, err)
		}
	}
}

// TestTransform shows that white space is removed, members are sorted by UTF-16 code
// units, and numbers are written in canonical form, and that IsCanonical rejects some
// other forms.
func TestTransform(t *testing.T) {
	for in, want := range map[string]string{
		" \t\r\n{ \"b\" : [ 1 , 2 ] , \"a\" : { } } ": `{"a":{},"b":[1,2]}`,
		`{"b":2,"a":1,"c":3}`:                         `{"a":1,"b":2,"c":3}`,
		`{"aa":1,"a":2,"":3}`:                         `{"":3,"a":2,"aa":1}`,
		"{\"\U0001F600\":1,\"\uFFFD\":2,\"a\":3}":     "{\"a\":3,\"\U0001F600\":1,\"\uFFFD\":2}",
		"{\"\U0001F600\":1,\"\uFFFD\":2}":             "{\"\U0001F600\":1,\"\uFFFD\":2}", "{\"\uFFFD\":2,\"\U0001F600\":1}": "{\"\U0001F600\":1,\"\uFFFD\":2}",
		`[]`: `[]`, `[ ]`: `[]`, `[[],{},"",0,-0,true,false,null]`: `[[],{},"",0,0,true,false,null]`,
		`1E2`: `100`, `1e-7`: `1e-7`, `-0.0`: `0`, `1.50`: `1.5`, `1e21`: `1e+21`, `123456789012345678901`: `123456789012345680000`, `0e5`: `0`, `10`: `10`, `1e+2`: `100`, `5e-324`: `5e-324`, `1.5e-10`: `1.5e-10`, `1e100`: `1e+100`, `1e-100`: `1e-100`,
	} {
		if got, err := Transform([]byte("x"), []byte(in)); err != nil || string(got) != "x"+want {
			t.Errorf("%s becomes %s, %v; want x%s", in, got, err, want)
		}
	}
	if IsCanonical([]byte(`{"a":1,"b":2} `)) || IsCanonical([]byte(`{"a": 1}`)) || !IsCanonical([]byte(`{"a":1}`)) || IsCanonical(nil) {
		t.Error("IsCanonical accepts another spelling")
	}
}

// TestWriter checks the bytes that Writer produces for each kind of member.
func TestWriter(t *testing.T) {
	w := Object([]byte("x"))
	w.Int("a", -1)
	w.Raw("b", []byte("[]"))
	w.Str("c", "é\n")
	w.Strs("d", nil)
	w.Strs("e", []string{"1", "2", "3"})
	if got := string(w.End()); got != `x{"a":-1,"b":[],"c":"é\n","d":[],"e":["1","2","3"]}` {
		t.Error(got)
	}
	empty := Object(nil)
	if got := string(empty.End()); got != "{}" {
		t.Error(got)
	}
}

// TestMembers shows that Members passes names and values unchanged and in order, and
// does not pass a member that is incomplete.
func TestMembers(t *testing.T) {
	for in, want := range map[string]string{
		`{}`: "", `{"a":1}`: `"a"=1;`, `{"a":{"x":[1,2]},"b":"},\"","c":[],"d":null}`: `"a"={"x":[1,2]};"b"="},\"";"c"=[];"d"=null;`,
		`{"a\"b":"","":-1.5e3}`: `"a\"b"="";""=-1.5e3;`,
	} {
		got := ""
		if err := Members([]byte(in), func(name, value []byte) { got += string(name) + "=" + string(value) + ";" }); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{`{"a":}`, `{"a":"x`, `{"a"`, `{`} {
		_ = Members([]byte(in), func(name, value []byte) { t.Errorf("%s: a member %s of %q", in, name, value) })
	}
}

// TestShapeEdges checks values at the limits of the rules of a shape, and values just
// beyond them.
func TestShapeEdges(t *testing.T) {
	digest, time := &Shape{Kind: StringKind, Form: DigestForm}, &Shape{Kind: StringKind, Form: TimeForm}
	hex := strings.Repeat("0123456789abcdef", 4)
	for _, c := range []struct {
		s    *Shape
		in   string
		want bool
	}{
		{digest, `"sha256:` + hex + `"`, true}, {digest, `"sha256:` + hex[1:] + `"`, false}, {digest, `"sha256:` + hex + `0"`, false}, {digest, `"sha512:` + hex + `"`, false},
		{digest, `"sha256:` + hex[1:] + `g"`, false}, {digest, "\"sha256:" + hex[1:] + "`\"", false}, {digest, `"sha256:` + hex[1:] + `/"`, false}, {digest, `"sha256:` + hex[1:] + `:"`, false}, {digest, `"sha256:` + hex[1:] + `A"`, false},
		{time, `"0123-45-67T89:01:23.456Z"`, true}, {time, `"dddd-dd-ddTdd:dd:dd.dddZ"`, false}, {time, `"0123-45-67T89:01:23.45/Z"`, false}, {time, `"0123-45-67T89:01:23.45:Z"`, false}, {time, `"0123-45-67T89:01:23.456"`, false}, {time, `"0123-45-67 89:01:23.456Z"`, false},
		{&Shape{Kind: StringKind, Enum: []string{"a", "b"}}, `"b"`, true}, {&Shape{Kind: StringKind, Enum: []string{"a", "b"}}, `"c"`, false}, {&Shape{Kind: StringKind}, `"any\n"`, true},
		{&Shape{Kind: IntegerKind, Bounded: true, Min: 3}, `3`, true}, {&Shape{Kind: IntegerKind, Bounded: true, Min: 3}, `2`, false}, {&Shape{Kind: IntegerKind, Min: 3}, `2`, true}, {&Shape{Kind: IntegerKind}, `0`, true}, {&Shape{Kind: IntegerKind}, `-9007199254740991`, true}, {&Shape{Kind: IntegerKind}, `9007199254740991`, true}, {&Shape{Kind: IntegerKind}, `9007199254740992`, false}, {&Shape{Kind: IntegerKind}, `90`, true},
		{&Shape{Kind: BooleanKind}, `true`, true}, {&Shape{Kind: BooleanKind}, `false`, true}, {&Shape{Kind: BooleanKind}, `tru`, false}, {&Shape{Kind: BooleanKind}, `falsy`, false}, {&Shape{Kind: BooleanKind}, `fals`, false}, {&Shape{Kind: BooleanKind}, `null`, false}, {&Shape{Kind: BooleanKind}, ``, false},
		{&Shape{Kind: ArrayKind, Item: time}, `[]`, true}, {&Shape{Kind: ArrayKind, Item: &Shape{Kind: IntegerKind}}, `[0,1,2]`, true}, {&Shape{Kind: ArrayKind, Item: &Shape{Kind: IntegerKind}}, `[0,""]`, false},
		{&Shape{Kind: ObjectKind, Members: []Member{{"l", false, &Shape{Kind: ArrayKind, Item: &Shape{Kind: IntegerKind}}}}}, `{"l":[7]}`, true}, {&Shape{Kind: ObjectKind, Members: []Member{{"l", false, &Shape{Kind: ArrayKind, Item: &Shape{Kind: IntegerKind}}}}}, `{"l":[]}`, false},
		{&Shape{}, `{}`, true}, {&Shape{}, `{"a":[1,"x"]}`, true}, {&Shape{}, `{"a": 1}`, false}, {&Shape{}, `"x"`, false}, {&Shape{}, ``, false}, {&Shape{}, `{"a":1}}`, false},
		{&Shape{Kind: ObjectKind}, `{}`, true}, {&Shape{Kind: ObjectKind}, `{"a":1}`, false},
	} {
		if err := c.s.Check([]byte(c.in)); (err == nil) != c.want {
			t.Errorf("%+v %s: %v", *c.s, c.in, err)
		}
	}
}
