package work

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
)

// TestTools checks that the documents of the tools are valid, and that a call of each tool
// may be run again.
func TestTools(t *testing.T) {
	var check toolschema.Checker
	for _, tool := range tools() {
		if err := check.Valid(&tool); err != nil {
			t.Errorf("%s: %v", tool.Tool, err)
		}
		if contract.Digest(&tool) == "" || !tool.Rerunnable {
			t.Errorf("%s: %+v", tool.Tool, tool)
		}
	}
}
