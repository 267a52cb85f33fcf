package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
)

// openapiDocument holds the members of the OpenAPI document that these tests read.
type openapiDocument struct {
	OpenAPI    string                          `json:"openapi"`
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Schemas map[string]any `json:"schemas"`
	} `json:"components"`
}

type operation struct {
	ID string `json:"operationId"`
}

func readDocument(t *testing.T) *openapiDocument {
	t.Helper()
	d := &openapiDocument{}
	if err := json.Unmarshal(openapiDoc, d); err != nil || d.OpenAPI != "3.1.0" {
		t.Fatal(d.OpenAPI, err)
	}
	return d
}

// TestOpenAPI checks that the document lists exactly the routes of the gateway, each
// with an operationId in camel case that no other route has.
func TestOpenAPI(t *testing.T) {
	s, _, _ := edge(t, body.Limits{})
	var have, want []string
	ids := map[string]string{}
	for path, ops := range readDocument(t).Paths {
		for method, op := range ops {
			have = append(have, strings.ToUpper(method)+" "+path)
			if !regexp.MustCompile(`^[a-z][A-Za-z]+$`).MatchString(op.ID) || ids[op.ID] != "" {
				t.Errorf("%s %s has the operationId %q, which is not in camel case or that of %s", method, path, op.ID, ids[op.ID])
			}
			ids[op.ID] = method + " " + path
		}
	}
	for _, r := range s.routes().Routes() {
		want = append(want, r.Method+" "+documentPath(r.Path))
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Fatalf("document and routes differ\ndocument %v\nroutes   %v", have, want)
	}
}

// freeForm lists the schemas whose members the document cannot list, with the reason.
var freeForm = map[string]string{
	"Args":             "the tool's input schema has the members",
	"Document":         "the OpenAPI Initiative specifies the document itself",
	"EventData":        "each type of event has a schema of its own (docs/reference/events.md)",
	"Facts":            "policy bundles and kinds of calls have facts of their own",
	"InputItem":        "the members are those that the caller of the provider's API sent",
	"MCPMessage":       "the Model Context Protocol specifies them",
	"Inputs":           "the document of the pipeline has the members",
	"Output":           "the tool, or the provider of the model, made it",
	"ProviderRequest":  "the provider's API specifies it, and it passes unchanged",
	"ProviderResponse": "the provider's API specifies it, and it passes unchanged",
	"Schema":           "JSON Schema specifies it",
	"Template":         "it is any JSON value, and its strings hold references to other values",
	"ViewLine":         "views have a canonical form of their own, which is compared as bytes",
}

// TestNoBareMaps checks that bare finds no schema in the document except the schemas
// that freeForm lists, and that freeForm lists no other schemas. The description of each
// schema in freeForm must be long enough to give the reason.
func TestNoBareMaps(t *testing.T) {
	d := readDocument(t)
	found := map[string]bool{}
	for name, schema := range d.Components.Schemas {
		for _, at := range bare(schema, name) {
			if found[at] = true; freeForm[at] == "" {
				t.Errorf("the schema %s has no members; name them, or list it in freeForm with the reason", at)
			}
			if about, _ := schema.(map[string]any)["description"].(string); len(about) < 40 {
				t.Errorf("the description of %s does not say why it is free: %q", name, about)
			}
		}
	}
	for name := range freeForm {
		if !found[name] {
			t.Errorf("freeForm lists %s, which is not a free schema of the document", name)
		}
	}
	for path, ops := range mediaSchemas(t) {
		for _, at := range bare(ops, path) {
			t.Errorf("%s has a schema without members: name its type", at)
		}
	}
}

// bare returns the places of the schemas in schema, including schema itself, that
// describe nothing: schemas without a type, a reference or alternatives, and objects for
// which neither members nor the type of further members are described. at is the place
// of schema.
func bare(schema any, at string) (out []string) {
	m, ok := schema.(map[string]any)
	if !ok {
		return nil
	}
	_, refers := m["$ref"]
	_, alternatives := m["oneOf"]
	props, _ := m["properties"].(map[string]any)
	extra, typed := m["additionalProperties"].(map[string]any)
	switch {
	case refers:
	case alternatives:
		for i, x := range m["oneOf"].([]any) {
			out = append(out, bare(x, fmt.Sprint(at, "/", i))...)
		}
	case m["type"] == "array":
		out = bare(m["items"], at+"/items")
	case typed && len(extra) > 0:
		out = bare(extra, at+"/*")
	case m["type"] == nil, m["type"] == "object" && len(props) == 0:
		out = []string{at}
	}
	for _, name := range slices.Sorted(maps.Keys(props)) {
		out = append(out, bare(props[name], at+"."+name)...)
	}
	return out
}

// mediaSchemas returns the schemas of all bodies, parameters and headers, by their
// places in the document.
func mediaSchemas(t *testing.T) map[string]any {
	t.Helper()
	var doc struct{ Paths, Components any }
	if err := json.Unmarshal(openapiDoc, &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	var walk func(at string, x any)
	walk = func(at string, x any) {
		switch v := x.(type) {
		case []any:
			for i, y := range v {
				walk(fmt.Sprint(at, "/", i), y)
			}
		case map[string]any:
			for name, y := range v {
				if name == "schema" {
					out[at] = y
				} else if name != "schemas" {
					walk(at+"/"+name, y)
				}
			}
		}
	}
	walk("", []any{doc.Paths, doc.Components})
	if len(out) < 100 {
		t.Fatalf("only %d schemas of bodies and parameters", len(out))
	}
	return out
}

// TestEncodedPath checks that decoded removes the percent-encoding that generated clients
// add to path parameters.
func TestEncodedPath(t *testing.T) {
	for target, want := range map[string]string{
		"/x/sha256:ab":      "sha256:ab",
		"/x/sha256%3Aab":    "sha256:ab",
		"/x/openai%2Fm":     "openai/m",
		"/x/100%25":         "100%",
		"/x/100%2525%3Aend": "100%25:end",
	} {
		e := echo.New()
		got := ""
		e.GET("/x/:id", decoded(func(c echo.Context) error { got = c.Param("id"); return nil }))
		e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, target, nil))
		if got != want {
			t.Errorf("%s: the parameter is %q, want %q", target, got, want)
		}
	}
}
