package sessionrunner

import (
	"context"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
)

// TestCiting checks that the use of each artifact that the arguments or the output of a
// call name is recorded once, that of an argument before the call runs.
func TestCiting(t *testing.T) {
	a, b := contract.IDArtifact+strings.Repeat("a", 64), contract.IDArtifact+strings.Repeat("b", 64)
	var facts []string
	w := &execute.Work{Call: &contract.Call{ID: "c-1"}, Args: []byte(`{"in":["` + a + `","` + a + `"]}`), Fact: func(name string, data []byte) {
		var d artifact.Used
		if err := contract.Decode(data, &d); err != nil || name != contract.EventArtifactUsed || d.CallID != "c-1" {
			t.Error(name, err, d)
		}
		facts = append(facts, d.Artifact)
	}}
	res := citing(func(context.Context, *execute.Work) execute.Result {
		if strings.Join(facts, " ") != a {
			t.Error("before the call:", facts)
		}
		return execute.Result{Output: []byte(`{"out":"` + b + `","again":"` + a + `"}`)}
	})(t.Context(), w)
	if strings.Join(facts, " ") != a+" "+b || res.Output == nil {
		t.Error(facts)
	}
}
