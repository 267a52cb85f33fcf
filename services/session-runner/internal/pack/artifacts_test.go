package pack

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
)

// TestCheckArtifacts checks which members artifacts of manifests are valid, and that the errors
// name the member.
func TestCheckArtifacts(t *testing.T) {
	patch := Artifact{Member: "patch", Name: "change.patch", MediaType: "text/x-diff"}
	for want, all := range map[string][]Artifact{
		"":                         {patch, {Member: "page", Name: "page 1.png", MediaType: "image/png", Base64: true}},
		"artifacts: want at most":  make([]Artifact, maxArtifacts+1),
		"artifacts[1].member":      {patch, patch},
		"artifacts[0].member":      {{Name: "a", MediaType: "text/plain"}},
		"artifacts[0].name: \"a/b": {{Member: "a", Name: "a/b", MediaType: "text/plain"}},
		"artifacts[0].name: \"a\\": {{Member: "a", Name: "a\n", MediaType: "text/plain"}},
		"artifacts[0].name: \"\"":  {{Member: "a", MediaType: "text/plain"}},
		"artifacts[0].name: \"l":   {{Member: "a", Name: strings.Repeat("l", maxName), MediaType: "text/plain", List: true}},
		"artifacts[0].media_type":  {{Member: "a", Name: "a", MediaType: "text"}},
	} {
		err := checkArtifacts(all)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestCheckInputs checks which members artifact_inputs of manifests are valid, and that the errors
// name the member.
func TestCheckInputs(t *testing.T) {
	for want, all := range map[string][]Input{
		"":                             {{"a", MaxInputBytes - 1}, {"b", 1}},
		"artifact_inputs[1].member":    {{"a", 1}, {"a", 1}},
		"artifact_inputs[0].member":    {{"", 1}},
		"artifact_inputs[0].max_bytes": {{"a", 0}},
		"artifact_inputs[1].max_bytes": {{"a", MaxInputBytes}, {"b", 1}},
	} {
		err := checkInputs(all)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestNumbered checks the names of the artifacts of a list.
func TestNumbered(t *testing.T) {
	for name, want := range map[string]string{"shot.png": "shot-1.png", "a": "a-1", "b.tar.gz": "b.tar-1.gz"} {
		if got := (&Artifact{Name: name}).Numbered(0); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := (&Artifact{Name: strings.Repeat("l", maxNumbered)}).Numbered(MaxListed - 1); len(got) > maxName {
		t.Errorf("a name of %d bytes", len(got))
	}
}

// TestAnnotation checks that a change of the environment, of the artifacts, of the arguments that are
// artifacts, of the progress or of the concurrency class changes the document of the tool, that other
// packs have no annotation, that it declares the progress and the class to clients, and that outputs are
// checked as without it.
func TestAnnotation(t *testing.T) {
	tool := func(manifest string) *Pack {
		t.Helper()
		dir := t.TempDir()
		write(t, dir, "a", "#!/bin/sh\n", 0o755)
		write(t, dir, "a.pack.yaml", manifest+"description: a\n", 0o644)
		packs, problems := Discover(dir, nil, "")
		if len(packs) != 1 {
			t.Fatal(problems)
		}
		return &packs[0]
	}
	if plain := tool("output_schema: {properties: {patch: string}}\n"); strings.Contains(string(plain.Tool.OutputSchema), toolschema.PackKeyword) {
		t.Errorf("%s", plain.Tool.OutputSchema)
	}
	seen := map[string]string{}
	for _, m := range []string{
		"", "env: [A=1]\n", "env: [A=2]\n", "env: [A=1, B=2]\n",
		"artifacts: [{member: patch, name: a.diff, media_type: text/x-diff}]\n",
		"artifacts: [{member: patch, name: a.diff, media_type: text/x-diff, base64: true}]\n",
		"progress: true\n", "tier: container\n", "tier: container\nexecutable: true\n", "concurrency: browser\n", "concurrency: heavy\nprogress: true\n",
		"artifact_inputs: [{member: file, max_bytes: 1}]\n", "artifact_inputs: [{member: file, max_bytes: 2}]\n",
		"artifact_inputs: [{member: file, max_bytes: 2}]\noutput_schema: {required: [n], properties: {n: number}}\n",
	} {
		p := tool(m)
		if other, known := seen[p.Digest]; known {
			t.Errorf("%q has the document of %q", m, other)
		}
		seen[p.Digest] = m
		if d := toolschema.DeclaredBy(&p.Tool); d.Progress != strings.Contains(m, "progress: true") || (d.Concurrency == "heavy") != strings.Contains(m, "heavy") {
			t.Errorf("%q declares %+v", m, d)
		}
		var checker toolschema.Checker
		if err := checker.Valid(&p.Tool); err != nil {
			t.Errorf("%q: %v", m, err)
		}
		if err := checker.Output(p.Digest, &p.Tool, []byte(`{"n":1}`)); err != nil {
			t.Errorf("%q: %v", m, err)
		}
		if strings.Contains(m, "required") && checker.Output(p.Digest, &p.Tool, []byte(`{}`)) == nil {
			t.Errorf("%q: an output that violates the schema is valid", m)
		}
		if strings.Contains(string(p.Tool.OutputSchema), "A=1") {
			t.Errorf("%s", p.Tool.OutputSchema)
		}
	}
}
