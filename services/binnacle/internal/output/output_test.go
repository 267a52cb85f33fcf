package output

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestParse(t *testing.T) {
	for _, name := range Formats {
		if f, err := Parse(name); err != nil || string(f) != name {
			t.Errorf("%s: %v %v", name, f, err)
		}
	}
	for _, name := range []string{"", "xml", "JSON", "json "} {
		if _, err := Parse(name); err == nil || !strings.Contains(err.Error(), "table, json, jsonl, yaml") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestWrite(t *testing.T) {
	type doc struct {
		B int    `json:"b"`
		A string `json:"a"`
	}
	for _, x := range []struct {
		name               string
		doc                any
		json, jsonl, yamls string
	}{
		{"object", doc{1, "x<y"}, `{"b":1,"a":"x\u003cy"}`, `{"b":1,"a":"x\u003cy"}`, "b: 1\na: x<y"},
		{"list", []doc{{1, "x"}, {2, ""}}, `[{"b":1,"a":"x"},{"b":2,"a":""}]`, `{"b":1,"a":"x"}` + "\n" + `{"b":2,"a":""}`, "- b: 1\n  a: x\n- b: 2\n  a: \"\""},
		{"nil list", []doc(nil), `[]`, ``, `[]`},
		{"nil raw list", json.RawMessage(nil), `[]`, ``, `[]`},
		{"raw", json.RawMessage(`{"z":1e6,"y":[],"x":{},"w":null}`), `{"z":1e6,"y":[],"x":{},"w":null}`, `{"z":1e6,"y":[],"x":{},"w":null}`, "z: 1e6\ny: []\nx: {}\nw: null"},
		{"big number", json.RawMessage(`12345678901234567890`), `12345678901234567890`, `12345678901234567890`, `12345678901234567890`},
		{"strings that look otherwise", []string{"1", "true", "null", "~", "1e3", "", "a: b", "- c", "0x1f", "2026-01-01"}, "", "",
			"- \"1\"\n- \"true\"\n- \"null\"\n- \"~\"\n- \"1e3\"\n- \"\"\n- 'a: b'\n- '- c'\n- \"0x1f\"\n- \"2026-01-01\""},
		{"lines", map[string]string{"rego": "a\nb\n"}, `{"rego":"a\nb\n"}`, `{"rego":"a\nb\n"}`, "rego: |\n  a\n  b"},
		{"not ASCII", "\U0001F6A2 ü", `"` + "\U0001F6A2" + ` ü"`, `"` + "\U0001F6A2" + ` ü"`, `"\U0001F6A2 ü"`},
	} {
		for f, want := range map[Format]string{JSON: x.json, JSONL: x.jsonl, YAML: x.yamls} {
			if want == "" && x.name == "strings that look otherwise" {
				continue
			}
			var b bytes.Buffer
			if err := Write(&b, f, x.doc); err != nil || strings.TrimSuffix(b.String(), "\n") != want {
				t.Errorf("%s as %s: %v\n%s\nwant\n%s", x.name, f, err, b.String(), want)
			}
		}
		sameAsYAML(t, x.name, x.doc)
	}
	for _, f := range []Format{Table, "xml"} {
		if Write(&bytes.Buffer{}, f, doc{}) == nil {
			t.Errorf("%s: a document was written", f)
		}
	}
	if Write(&bytes.Buffer{}, YAML, make(chan int)) == nil || Write(&bytes.Buffer{}, JSONL, make(chan int)) == nil {
		t.Error("what JSON cannot hold was written")
	}
}

// sameAsYAML checks that the YAML output of a document has the same value as the JSON
// output.
func sameAsYAML(t *testing.T, name string, doc any) {
	var j, y bytes.Buffer
	if err := Write(&j, JSON, doc); err != nil {
		t.Fatal(err)
	}
	if err := Write(&y, YAML, doc); err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := json.Unmarshal(j.Bytes(), &a); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(y.Bytes(), &b); err != nil {
		t.Errorf("%s: %v\n%s", name, err, y.String())
	}
	again, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	b = nil
	if err := json.Unmarshal(again, &b); err != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("%s: JSON holds %v, YAML %v", name, a, b)
	}
}

func TestGrid(t *testing.T) {
	columns := []Column{{Heading: "NAME", Min: 6}, {Heading: "LONG HEADING"}, {Heading: "REST"}}
	for _, x := range []struct {
		name     string
		rows     [][]string
		headings bool
		want     string
	}{
		{"rows", [][]string{{"a", "b", "c d"}, {"ärger-lang", "x", ""}}, false, "a           b  c d\närger-lang  x\n"},
		{"headings", [][]string{{"a", "b", "c"}}, true, "NAME    LONG HEADING  REST\na       b             c\n"},
		{"empty with headings", nil, true, "NAME    LONG HEADING  REST\n"},
		{"empty", nil, false, ""},
	} {
		g := Grid{Columns: columns}
		for _, row := range x.rows {
			g.Add(row...)
		}
		var b bytes.Buffer
		if err := g.Write(&b, x.headings, Style{}); err != nil || b.String() != x.want {
			t.Errorf("%s: %v\n%q, want\n%q", x.name, err, b.String(), x.want)
		}
	}
	var b bytes.Buffer
	g := Grid{Columns: columns[1:]}
	g.Add("a", "b")
	g.Note("below\n  it")
	g.Add("longer than the heading", "c")
	if err := g.Write(&b, false, Style{}); err != nil || b.String() != "a                        b\nbelow\n  it\nlonger than the heading  c\n" {
		t.Errorf("%v %q", err, b.String())
	}
	b.Reset()
	g = Grid{Columns: columns}
	if err := g.Write(&b, true, Style{on: true}); err != nil || b.String() != "\x1b[1mNAME    LONG HEADING  REST\x1b[0m\n" {
		t.Errorf("%v %q", err, b.String())
	}
}

func TestStyle(t *testing.T) {
	for _, x := range []struct {
		noColor, term string
		want          bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"", "dumb", false}, {"", "", true}} {
		env := func(name string) string { return map[string]string{"NO_COLOR": x.noColor, "TERM": x.term}[name] }
		if coloured(env) != x.want {
			t.Errorf("NO_COLOR=%q TERM=%q: %v", x.noColor, x.term, !x.want)
		}
	}
	f, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, w := range []any{f, &bytes.Buffer{}, nil} {
		if Terminal(w) || StyleFor(w, func(string) string { return "" }) != (Style{}) {
			t.Errorf("%T is taken for a terminal", w)
		}
	}
	on := Style{on: true}
	if on.Good("a")+on.Bad("b") != "\x1b[32ma\x1b[0m\x1b[31mb\x1b[0m" || (Style{}).Good("a") != "a" {
		t.Error("colours differ")
	}
}
