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
