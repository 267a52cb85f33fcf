package pipeline

import (
	"embed"
	"path"
	"slices"
	"strings"
)

//go:embed builtin/*.json
var builtin embed.FS

// BuiltIns returns the names of the built-in pipelines, sorted.
func BuiltIns() []string {
	entries, _ := builtin.ReadDir("builtin")
	var out []string
	for _, e := range entries {
		out = append(out, strings.TrimSuffix(e.Name(), ".json"))
	}
	slices.Sort(out)
	return out
}

// BuiltIn returns the document of a built-in pipeline and its digest, and whether there is
// one of this name.
func BuiltIn(name string) (raw []byte, digest string, ok bool) {
	if !namePattern.MatchString(name) {
		return nil, "", false
	}
	raw, err := builtin.ReadFile(path.Join("builtin", name+".json"))
	if err != nil {
		return nil, "", false
	}
	digest, err = Digest(raw)
	return raw, digest, err == nil
}

// Description describes a built-in pipeline.
type Description struct {
	Description string   `json:"description"`
	Digest      string   `json:"digest"`
	Lacking     []string `json:"lacking"` // packs of its steps that the mesh does not have
	Name        string   `json:"name"`
	Required    []string `json:"required"` // inputs
	Steps       []string `json:"steps"`    // packs in the order of the document
}

// Describe returns the descriptions of the built-in pipelines, sorted by name. The function known
// is that of Document.Validate, but must not be nil.
func Describe(known func(pack, version string) bool) []Description {
	out := []Description{}
	for _, name := range BuiltIns() {
		raw, digest, _ := BuiltIn(name)
		doc, err := Parse(raw)
		if err != nil {
			continue // a test shows that all of them parse
		}
		d := Description{Description: doc.Description, Digest: digest, Lacking: []string{}, Name: name, Required: append([]string{}, doc.Required...)}
		for i := range doc.Steps {
			pack := doc.Steps[i].PackOf()
			if d.Steps = append(d.Steps, pack); !known(pack, "") {
				d.Lacking = append(d.Lacking, pack)
			}
		}
		out = append(out, d)
	}
	return out
}
