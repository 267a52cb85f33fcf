package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/binnacle-mesh/binnacle/pkg/config"
)

// TestSchemaAgrees checks for a table of documents that the published JSON Schema
// accepts a document if and only if the programs accept it.
func TestSchemaAgrees(t *testing.T) {
	raw, err := os.ReadFile("../../../../schemas/config/binnacle.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource(config.SchemaID, doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(config.SchemaID)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		`{}`: true, `{"log":null}`: true, `{"log":{"level":null}}`: true, `{"log":{"level":"debug"}}`: true, `{"log":{"level":"loud"}}`: false, `{"log":{"levels":"info"}}`: false,
		`{"surplus":1}`: false, `{"log":3}`: false, `{"admin":{"listen":"off"}}`: true, `{"admin":{"listen":"9464"}}`: false, `{"admin":{"listen":":9464"}}`: true,
		`{"reload":{"interval":"1m30s"}}`: true, `{"reload":{"interval":"30"}}`: false, `{"reload":{"interval":30}}`: false, `{"nats":{"max_store":"64MiB"}}`: true,
		`{"nats":{"max_store":"64M"}}`: false, `{"nats":{"replicas":0}}`: false, `{"nats":{"replicas":3}}`: true, `{"nats":{"mirror":"yes"}}`: false, `{"nats":{"url":"tls://a:1,tls://b:1"}}`: true,
		`{"nats":{"url":"http://a"}}`: false, `{"gateway":{"expect":["audit"]}}`: true, `{"gateway":{"expect":"audit"}}`: false, `{"gateway":{"approval_webhook":"https://h/x"}}`: true,
		`{"gateway":{"approval_webhook":"ftp://h"}}`: false, `{"vault-broker":{"kek":{"file":"k"}}}`: true, `{"vault-broker":{"kek":"00"}}`: false, `{"vault-broker":{"kek":{"file":"k","variable":"V"}}}`: false,
		`{"llm-router":{"document":"llm.json"}}`: true, `{"llm-router":{"document":{"providers":[]}}}`: true, `{"llm-router":{"document":3}}`: false, `{"policy":{"bundles":["a.rego"]}}`: true, `{"tenant":""}`: false,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, checked := config.Check(file)
		if got := schema.Validate(v) == nil; got != want || (checked == nil) != want {
			t.Errorf("%s: the schema accepts it: %v, the programs: %v; want %v", text, got, checked == nil, want)
		}
	}
}
