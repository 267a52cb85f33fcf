package gateway

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOpenAPI checks that the document lists exactly the routes of the gateway.
func TestOpenAPI(t *testing.T) {
	var doc struct {
		OpenAPI string                    `json:"openapi"`
		Paths   map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(openapiDoc, &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatal(doc.OpenAPI, err)
	}
	s, _, _ := edge(t, BodyLimits{})
	var have, want []string
	for path, ops := range doc.Paths {
		for method := range ops {
			have = append(have, strings.ToUpper(method)+" "+path)
		}
	}
	param := regexp.MustCompile(`:([a-z]+)`)
	for _, r := range s.routes().Routes() {
		want = append(want, r.Method+" "+param.ReplaceAllString(r.Path, "{$1}"))
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Fatalf("document and routes differ\ndocument %v\nroutes   %v", have, want)
	}
}
