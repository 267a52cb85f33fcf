package toolschema

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestDeclaredBy checks that only a pack's document declares progress and a concurrency class.
func TestDeclaredBy(t *testing.T) {
	const schema = `{"type":"object","` + PackKeyword + `":{"progress":true,"concurrency":"browser"}}`
	for _, c := range []struct {
		pack, schema string
		want         Declared
	}{
		{"sha256:1", schema, Declared{true, "browser"}},
		{"", schema, Declared{}}, // for example a tool of an MCP server
		{"sha256:1", `{"type":"object"}`, Declared{}},
		{"sha256:1", `{"` + PackKeyword + `":7}`, Declared{}},
	} {
		if got := DeclaredBy(&contract.Tool{Pack: c.pack, OutputSchema: contract.Raw(c.schema)}); got != c.want {
			t.Errorf("%q %s: %+v", c.pack, c.schema, got)
		}
	}
}
