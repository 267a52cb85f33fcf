package main

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
)

// TestNoDrift checks that the committed page equals the generated one.
func TestNoDrift(t *testing.T) {
	want, err := page(documents())
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../../" + reference)
	if err != nil || string(got) != string(want) {
		t.Errorf("%s is not what the code gives; run make gen (%v)", reference, err)
	}
}

// TestExamples checks that the example of each pack is valid by its input schema, which policy
// enforces, and that the packs of the page include some for artifacts, memory, files, git and
// repositories, and some that run code.
func TestExamples(t *testing.T) {
	tools, examples := documents()
	var check toolschema.Checker
	names := ""
	for _, tool := range tools {
		names += tool.Tool + " "
		if reason := check.Input(contract.Digest(&tool), &tool, []byte(examples[tool.Tool])); reason != "" {
			t.Errorf("%s: %s: %s", tool.Tool, examples[tool.Tool], reason)
		}
	}
	if len(examples) != len(tools) {
		t.Errorf("%d examples, %d packs", len(examples), len(tools))
	}
	for _, name := range strings.Fields("artifact.put artifact.get artifact.list memory.store memory.recall fs.read fs.write fs.list fs.patch fs.delete git.commit git.diff git.log repo.fetch repo.map repo.push cmd.run python.run node.run") {
		if !strings.Contains(names, name+" ") {
			t.Errorf("no pack %s: %s", name, names)
		}
	}
}

// TestRefused checks that a tool without an example, and one whose example would end the quotes of
// a shell, are refused.
func TestRefused(t *testing.T) {
	tool := contract.Tool{Tool: "a.b", Class: "E0", InputSchema: contract.Raw(`{}`), OutputSchema: contract.Raw(`{}`)}
	for example, ok := range map[string]bool{"": false, `{"a":"it's"}`: false, `{}`: true} {
		if _, err := page([]contract.Tool{tool}, map[string]string{"a.b": example}); (err == nil) != ok {
			t.Errorf("%q: %v", example, err)
		}
	}
}

// TestPipelinesNoDrift checks that the committed page of the built-in pipelines equals the
// generated one, and that it lists each pipeline once.
func TestPipelinesNoDrift(t *testing.T) {
	want, err := pipelinesPage("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../../" + pipelinesReference)
	if err != nil || string(got) != string(want) {
		t.Errorf("%s is not what the documents give; run make gen (%v)", pipelinesReference, err)
	}
	for _, name := range pipeline.BuiltIns() {
		if strings.Count(string(want), "| `"+name+"` |") != 1 {
			t.Errorf("%s is not listed once", name)
		}
	}
	if _, err := pipelinesPage(t.TempDir()); err == nil {
		t.Error("a tree without manifests")
	}
}

// TestPipelineInputs checks each step of the built-in pipelines whose pack exists: the pack has the
// arguments that the step names, and the step names those that the pack requires.
func TestPipelineInputs(t *testing.T) {
	packs, err := packInputs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, name := range pipeline.BuiltIns() {
		raw, _, _ := pipeline.BuiltIn(name)
		doc, err := pipeline.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range doc.Steps {
			if packs[s.Pack] == nil {
				continue
			}
			checked++
			var schema struct {
				Required   []string
				Properties map[string]json.RawMessage
			}
			var input map[string]json.RawMessage
			if err := errors.Join(json.Unmarshal(packs[s.Pack], &schema), json.Unmarshal(s.Input, &input)); err != nil {
				t.Fatal(err)
			}
			for member := range input {
				if schema.Properties[member] == nil {
					t.Errorf("%s: step %s: %s has no argument %s", name, s.ID, s.Pack, member)
				}
			}
			for _, member := range schema.Required {
				if input[member] == nil {
					t.Errorf("%s: step %s: %s requires %s", name, s.ID, s.Pack, member)
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("%d steps were checked", checked)
	}
}
