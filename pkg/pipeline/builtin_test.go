package pipeline

import (
	"slices"
	"testing"
)

// TestDescribe checks the descriptions of the built-in pipelines: each one once, and the packs
// that it needs and the mesh lacks.
func TestDescribe(t *testing.T) {
	var names []string
	for _, d := range Describe(func(pack, version string) bool { return pack == ApprovalPack && version == "" }) {
		names = append(names, d.Name)
		raw, digest, _ := BuiltIn(d.Name)
		doc, err := Parse(raw)
		if err != nil || d.Digest != digest || len(d.Steps) != len(doc.Steps) || !slices.Equal(d.Required, doc.Required) {
			t.Errorf("%s: %+v, %v", d.Name, d, err)
		}
		for _, pack := range d.Steps {
			if (pack == ApprovalPack) == slices.Contains(d.Lacking, pack) {
				t.Errorf("%s: lacks %v of %v", d.Name, d.Lacking, d.Steps)
			}
		}
	}
	if !slices.Equal(names, BuiltIns()) {
		t.Errorf("%v, want %v", names, BuiltIns())
	}
}
