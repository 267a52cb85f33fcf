package calls

import (
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestPinned shows that pin sets the argument sandbox of a tool that has this argument.
// It returns an error for another tool, for a value that is not the id of a sandbox, and
// for args that are null or contain the id of another sandbox.
func TestPinned(t *testing.T) {
	exec := &contract.Tool{InputSchema: contract.Raw(`{"properties":{"command":{},"sandbox":{"type":"string"}},"type":"object"}`)}
	upper := &contract.Tool{InputSchema: contract.Raw(`{"properties":{"text":{"type":"string"}},"type":"object"}`)}
	for _, x := range []struct {
		tool           *contract.Tool
		id, args, want string
	}{
		{exec, "sb-A", `{"command":["/bin/<"]}`, `{"command":["/bin/<"],"sandbox":"sb-A"}`},
		{exec, "sb-A", `{"sandbox":"sb-A"}`, `{"sandbox":"sb-A"}`},
		{exec, "sb-A", `{"sandbox":"sb-B"}`, ""},
		{exec, "sb-A", `null`, ""},
		{exec, "s-A", `{}`, ""},
		{exec, `sb-A"`, `{}`, ""},
		{upper, "sb-A", `{"text":"x"}`, ""},
		{nil, "sb-A", `{}`, ""},
		{&contract.Tool{}, "sb-A", `{}`, ""},
	} {
		got, err := pin(x.tool, "tool.x", x.id, []byte(x.args))
		if (err == nil) != (x.want != "") || string(got) != x.want {
			t.Errorf("%s %s: %s, %v; want %s", x.id, x.args, got, err, x.want)
		}
	}
}
