package main

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestFresh checks that the committed files equal the files generated from the query
// schemas, errors.json, ids.json and subjects.json.
func TestFresh(t *testing.T) {
	t.Chdir("..")
	files, err := render(os.DirFS("."))
	if err != nil || len(files) < 12 {
		t.Fatal(len(files), err)
	}
	for f, want := range files {
		if have, err := os.ReadFile(f); err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s is out of date: run `make gen` (%v)", f, err)
		}
	}
}

const codes = `{"errors":[{"code":"a_b","http_status":404,"origin":["query"],"retryable":true,"meaning":"It is gone."}]}`

const ids = `{"ids":[{"name":"Key","prefix":"k-","identifies":"a key","rest":"a digest","made_by":["x","y"]},{"name":"Shot","prefix":"k-","identifies":"the event of a shot","rest":"a number","made_by":["x"],"events_only":true}]}`

const subjects = `{"subjects":[{"name":"A","head":"a","stream":"AS","form":"a.<t>","carries":"many things"},{"name":"B","head":"b.c","form":"b.c.all","carries":"requests"}]}`

const sum = `{"$id":"urn:binnacle:query:x-y:sum_ids","title":"SumIds","description":"The sum.","x-answer":"list","x-callers":["gateway"],"x-scope":"cell","x-view":"v","x-deadline-ms":5,"x-errors":["a_b"],
"properties":{"request":{"type":"object","title":"SumRequest","description":"The request.","additionalProperties":false,"required":["ids"],"properties":{"ids":{"type":"array","items":{"type":"string"}},"n":{"type":"integer","format":"uint64","description":"how many"},"m":{"type":"object","additionalProperties":{"type":"number"}}}},
"response":{"type":"array","items":{"$ref":"urn:binnacle:types:x-y#/$defs/Sum"}}}}`

const sumTypes = `{"$defs":{"Sum":{"title":"Sum","description":"A sum.","type":"object","additionalProperties":false,"properties":{"raw":{"x-go-type":"json.RawMessage"},"b":{"type":["string","null"],"contentEncoding":"base64"}}}}}`

func tree(edit ...string) fstest.MapFS {
	text := strings.NewReplacer(edit...).Replace
	return fstest.MapFS{"errors.json": {Data: []byte(text(codes))}, "ids.json": {Data: []byte(text(ids))}, "subjects.json": {Data: []byte(text(subjects))}, "queries/x-y/sum_ids.json": {Data: []byte(text(sum))}, "queries/x-y/types.json": {Data: []byte(text(sumTypes))}}
}

// TestRender checks that the generated descriptors, types and pages contain the names,
// types and properties that the schemas define.
func TestRender(t *testing.T) {
	files, err := render(tree())
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, []string{"../docs/reference/errors.md", "../docs/reference/ids.md", "../docs/reference/queries.md", "../docs/reference/subjects.md",
		"../pkg/core/contract/zz_codes.go", "../pkg/core/contract/zz_ids.go", "../pkg/core/contract/zz_subjects.go", "../pkg/core/sign/zz_kid.go", "xy/zz_queries.go"}) {
		t.Fatal(got)
	}
	for f, want := range map[string][]string{
		"xy/zz_queries.go": {"package xy\n", `SumIdsQuery = query.List[SumRequest, Sum]{Info: query.Info{Service: "x-y", Verb: "sum_ids", Callers: []string{"gateway"}, Scope: query.OfCell, View: "v", Deadline: 5 * time.Millisecond}}`,
			"// SumRequest is the request.", "IDs []string", "N   uint64             `json:\"n,omitempty\"` // how many", "M   map[string]float64", "Raw json.RawMessage", "B   []byte"},
		"../docs/reference/queries.md":        {"| [`x-y.sum_ids`](../../schemas/queries/x-y/sum_ids.json) | gateway | cell | items, in parts | `v` | `a_b` | The sum. |"},
		"../docs/reference/errors.md":         {"| `a_b` | query | 404 | yes | It is gone. |"},
		"../docs/reference/ids.md":            {"| `k-` | a key | a digest | x, y |\n| `k-` | the event of a shot; only event ids have this meaning | a number | x |"},
		"../docs/reference/subjects.md":       {"| `a.<t>` | `AS` | many things |\n| `b.c.all` | none | requests |"},
		"../pkg/core/contract/zz_ids.go":      {"IDKey  = \"k-\" // a key\n\tIDShot = \"k-\" // the event"},
		"../pkg/core/contract/zz_subjects.go": {"SubjectA = \"a\"   // a.<t>: many things\n\tSubjectB = \"b.c\" // b.c.all: requests"},
		"../pkg/core/sign/zz_kid.go":          {`const KIDPrefix = "k-"`},
		"../pkg/core/contract/zz_codes.go":    {`CodeAB = "a_b" // It is gone.`, `CodeAB: {404, true, "It is gone."}`},
	} {
		for _, w := range want {
			if !strings.Contains(string(files[f]), w) {
				t.Errorf("%s lacks %s:\n%s", f, w, files[f])
			}
		}
	}
}

// TestRefused checks that the generator rejects a query schema, or a registry of error
// codes, ids or subjects, that is inconsistent or outside the supported subset, and that the error names
// the file or folder.
func TestRefused(t *testing.T) {
	for name, edit := range map[string][]string{
		"a title that is not the verb":       {`"title":"SumIds"`, `"title":"Sums"`},
		"an id of another service":           {"query:x-y:", "query:x:"},
		"a code that no registry has":        {`"x-errors":["a_b"]`, `"x-errors":["b"]`},
		"bytes with a schema":                {`"x-answer":"list"`, `"x-answer":"bytes"`},
		"an answer of no kind":               {`"x-answer":"list"`, `"x-answer":"all"`},
		"no deadline":                        {`"x-deadline-ms":5,`, ""},
		"no scope":                           {`"x-scope":"cell",`, ""},
		"another scope":                      {`"x-scope":"cell"`, `"x-scope":"mesh"`},
		"no caller":                          {`["gateway"]`, `[]`},
		"a list that is no array":            {`{"type":"array","items":{"$ref":"urn:binnacle:types:x-y#/$defs/Sum"}}`, `{"type":"string"}`},
		"a type that is not there":           {"$defs/Sum", "$defs/Product"},
		"another service's type":             {"types:x-y#", "types:z#"},
		"a type whose title is not its name": {`"title":"Sum",`, `"title":"Total",`},
		"a type without a description":       {`"description":"A sum.",`, ""},
		"an open object":                     {`"description":"A sum.","type":"object","additionalProperties":false`, `"description":"A sum.","type":"object"`},
		"no JSON":                            {`{"$defs"`, `{"$defs`},
		"a code that is doubled":             {`"errors":[`, `"errors":[{"code":"a_b","http_status":404,"origin":["query"],"meaning":"x"},`},
		"a code of no origin":                {`"origin":["query"]`, `"origin":["sky"]`},
		"an id with a prefix that is taken":  {`"events_only":true`, `"events_only":false`},
		"an id with another prefix":          {`"prefix":"k-"`, `"prefix":"K"`},
		"an id without a maker":              {`"made_by":["x","y"]`, `"made_by":[]`},
		"ids out of order":                   {`"name":"Key"`, `"name":"Z"`},
		"a family of another head":           {`"form":"a.<t>"`, `"form":"b.<t>"`},
		"a head that is taken":               {`"head":"b.c","form":"b.c.all"`, `"head":"a","form":"a.all"`},
		"a stream that is taken":             {`"head":"b.c"`, `"stream":"AS","head":"b.c"`},
		"a family without messages":          {`"carries":"requests"`, `"carries":""`},
		"a code without a meaning":           {`"meaning":"It is gone."`, `"meaning":""`},
	} {
		if _, err := render(tree(edit...)); err == nil || !strings.Contains(err.Error(), ".json") && !strings.Contains(err.Error(), "queries/x-y") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNewestVersion checks that the types of an event are generated from its newest
// version, also from version 10 on.
func TestNewestVersion(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("events/x", 0o755); err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, v := range []string{"10", "2", "9"} {
		f := "events/x/slept.v" + v + ".json"
		doc := `{"$id":"urn:binnacle:event:x:slept:v` + v + `","title":"Slept","description":"It slept.","type":"object","additionalProperties":false,"properties":{"in_v` + v + `":{"type":"string"}},"required":[]}`
		if err := os.WriteFile(f, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	src, err := generate("x", files)
	if err != nil || strings.Count(string(src), "type Slept struct") != 1 || !strings.Contains(string(src), `"in_v10,omitempty"`) {
		t.Errorf("%v\n%s", err, src)
	}
}
