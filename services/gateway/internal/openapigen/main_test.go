package main

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// root is the folder of the repository.
const root = "../../../.."

func newSchemas() *schemas {
	return &schemas{docs: comments{root: root, read: map[string]bool{}, byName: map[string]string{}}, named: map[string]object{}, types: map[string]reflect.Type{}}
}

// TestGenerated checks that the stored files are those that the command generates.
func TestGenerated(t *testing.T) {
	for name, got := range map[string][]byte{"services/gateway/gateway/openapi.json": document(root), "docs/reference/http.md": page()} {
		want, err := os.ReadFile(root + "/" + name)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is out of date: run make gen (%v)", name, err)
		}
	}
}

// TestReferences checks that every reference of the document leads to a component, that no schema
// is unused, and that exactly the operations with the scope "" need no credential.
func TestReferences(t *testing.T) {
	var doc struct {
		Components map[string]map[string]any
		Paths      map[string]map[string]struct {
			Security    []map[string][]string
			Scope       string `json:"x-binnacle-scope"`
			OperationID string
		}
	}
	b := document(root)
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, part := range strings.Split(string(b), `"$ref": "#/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		used[name] = true
		path := strings.Split(name, "/")
		if len(path) != 3 || path[0] != "components" || doc.Components[path[1]][path[2]] == nil {
			t.Errorf("a reference to %s, which the document does not have", name)
		}
	}
	for name := range doc.Components["schemas"] {
		if !used["components/schemas/"+name] {
			t.Errorf("no operation uses the schema %s", name)
		}
	}
	for path, ops := range doc.Paths {
		for method, op := range ops {
			if (len(op.Security) == 0) != (op.Scope == "") {
				t.Errorf("%s %s: scope %q with the security %v", method, path, op.Scope, op.Security)
			}
		}
	}
	if len(doc.Paths) < 50 {
		t.Errorf("%d paths", len(doc.Paths))
	}
}

// sample is a type of a body.
type sample struct {
	part
	Status string            `json:"status"` // Status of the sample.
	Time   string            `json:"time"`
	Count  int               `json:"count,omitempty"`
	Share  float64           `json:"share"`
	Seq    uint64            `json:"seq"`
	Key    []byte            `json:"key"`
	Next   *other            `json:"next,omitempty"`
	Free   json.RawMessage   `json:"free"`
	Names  map[string]string `json:"names"`
	Any    map[string]any    `json:"any"`
	Hidden string            `json:"-"`
	Tags   []string          `json:"tags"`
}

type part struct {
	// Name of the part.
	Name string `json:"name"`
}

type other struct {
	On bool `json:"on"`
}

// TestSchema checks the schema of a type: kinds, times, members that may be omitted,
// embedded and hidden fields, references, and descriptions from comments.
func TestSchema(t *testing.T) {
	members[reflect.TypeFor[sample]()] = map[string]member{"status": {enum: []string{"b", "a", "b"}}, "share": {optional: true, nullable: true}, "tags": {enum: []string{"y", "x"}}}
	t.Cleanup(func() { delete(members, reflect.TypeFor[sample]()) })
	s := newSchemas()
	if got := s.ref(reflect.TypeFor[*sample]()); got["$ref"] != "#/components/schemas/sample" {
		t.Errorf("%v", got)
	}
	b, err := json.Marshal(s.named["sample"])
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(`{"type":"object","description":"sample is a type of a body.","required":["any","free","key","name","names","seq","status","tags","time"],"properties":{
		"name":{"type":"string","description":"Name of the part."},"status":{"type":"string","enum":["a","b"],"description":"Status of the sample."},"time":{"type":"string","format":"date-time"},
		"count":{"type":"integer","format":"int64"},"share":{"type":["number","null"]},"seq":{"type":"integer","format":"int64","minimum":0},"key":{"type":"string","contentEncoding":"base64"},
		"next":{"$ref":"#/components/schemas/other"},"free":{},"names":{"type":"object","additionalProperties":{"type":"string"}},"any":{"type":"object","additionalProperties":true},
		"tags":{"type":"array","items":{"type":"string","enum":["x","y"]}}}}`), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s", b)
	}
	if s.named["other"] == nil {
		t.Error("the schema of a member's type is missing")
	}
}

// TestFailures checks the error responses of operations: their shape, and that 404 is
// listed only where the path names something or the request becomes a call.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		op      operation
		ref     string
		missing bool
	}{
		{operation{path: "/a", scope: reader}, "Invalid", false},
		{operation{path: "/a/{id}", scope: reader}, "Invalid", true},
		{operation{path: "/a", scope: "call tool"}, "Invalid", true},
		{operation{path: "/a", scope: reader, then: anthropic}, "AnthropicInvalid", true},
		{operation{path: "/a", scope: reader, then: protocol}, "MCPInvalid", true},
	} {
		out := object{}
		c.op.failures(out)
		if out["400"].(object)["$ref"] != "#/components/responses/"+c.ref || (out["404"] != nil) != c.missing {
			t.Errorf("%+v: %v", c.op, out)
		}
	}
	all := failures(newSchemas())
	if _, ok := all["MCPFailed"].(object)["content"].(object)["text/plain"]; !ok {
		t.Error("errors of MCP's transport have no text")
	}
	if !reflect.DeepEqual(all["Unauthenticated"], all["AnthropicUnauthenticated"]) {
		t.Error("without a credential, the error has another shape in Anthropic's API")
	}
}

// TestForms checks the descriptions of bodies, and the names of their types in the
// reference.
func TestForms(t *testing.T) {
	s := newSchemas()
	for _, c := range []struct {
		forms []media
		want  string
		types string
	}{
		{doc[apierr.Body](), `{"application/json":{"schema":{"$ref":"#/components/schemas/ErrorBody"}}}`, "ErrorBody"},
		{doc[[]other](), `{"application/json":{"schema":{"items":{"$ref":"#/components/schemas/other"},"type":"array"}}}`, "list of other"},
		{lines[other](), `{"application/x-ndjson":{"schema":{"description":"JSON lines: one document on each line, of the type in x-binnacle-line","type":"string"},"x-binnacle-line":{"$ref":"#/components/schemas/other"}}}`, "lines of other"},
		{either[other, part](), `{"application/json":{"schema":{"oneOf":[{"$ref":"#/components/schemas/other"},{"$ref":"#/components/schemas/part"}]}}}`, "other or part"},
		{raw("text/plain", octets), `{"application/octet-stream":{"schema":{"format":"binary","type":"string"}},"text/plain":{"schema":{"type":"string"}}}`, "text/plain or application/octet-stream"},
		{raw(form), `{"multipart/form-data":{"schema":{"properties":{"bundle":{"format":"binary","type":"string"}},"required":["bundle"],"type":"object"}}}`, form},
	} {
		b, err := json.Marshal(content(s, c.forms))
		if err != nil || string(b) != c.want || typesOf(c.forms) != c.types {
			t.Errorf("%s %s: %v", b, typesOf(c.forms), err)
		}
	}
}
