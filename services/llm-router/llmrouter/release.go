package llmrouter

import (
	"encoding/json"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// released is the output schema of calls whose effect takes place outside the mesh: a
// request that a proxy sends to a provider (llm.forward), or a function that a model
// calls and a client executes (client.<function>). The outcome records that the proxy
// was permitted to proceed with exactly the arguments of the call.
var released = contract.Raw(`{"additionalProperties":false,"properties":{"released":{"const":true}},"required":["released"],"type":"object"}`)

// forwardTool is the tool for requests that a proxy forwards to a provider.
var forwardTool = contract.Tool{
	Description: "A request that a proxy passes on to a provider.", Class: "E0", Executor: services.LLMRouter, Kind: "llm.forward", Tool: "llm.forward", Version: "v1",
	InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"model":{"minLength":1,"type":"string"},"request_digest":{"pattern":"^sha256:[0-9a-f]{64}$","type":"string"},"stream":{"type":"boolean"},"tools":{"items":{"type":"string"},"type":"array"},"upstream":{"minLength":1,"type":"string"}},"required":["model","request_digest","stream","tools","upstream"],"type":"object"}`),
	OutputSchema: released,
}

// ClientTool declares a function that clients execute themselves: a tool in OpenAI's
// format, with additional members that policy reads.
type ClientTool struct {
	Type     string `json:"type"` // function, or custom for a tool with the arguments {"input": text}
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"` // JSON Schema of the arguments of a function; absent = it has no arguments
		Strict      bool            `json:"strict"`     // ignored: arguments are always checked against the schema
	} `json:"function"`
	Class  string   `json:"class,omitempty"`        // class of the effect, from E0 (read-only) to E4 (irreversible); empty = E3
	Egress []string `json:"egress_hosts,omitempty"` // hosts that the function sends data to
	Labels []string `json:"labels,omitempty"`       // labels of the data in the function's results
}

// tool returns the catalog entry client.<name>. Its errors name the invalid member.
func (d *ClientTool) tool() (contract.Tool, error) {
	f := &d.Function
	if !contract.Token(f.Name) {
		return contract.Tool{}, fmt.Errorf("function.name: %q is not made of [A-Za-z0-9_-]", f.Name)
	}
	in := []byte(`{"properties":{},"type":"object"}`)
	switch {
	case d.Type == "custom":
		in = []byte(`{"properties":{"input":{"type":"string"}},"required":["input"],"type":"object"}`)
	case d.Type != "function":
		return contract.Tool{}, fmt.Errorf("type: want function or custom, not %q", d.Type)
	case len(f.Parameters) > 0:
		var err error
		if in, err = canon.Transform(nil, f.Parameters); err != nil {
			return contract.Tool{}, fmt.Errorf("%s: parameters: %w", f.Name, err)
		}
	}
	return contract.Tool{Description: f.Description, Class: d.Class, Egress: d.Egress, Executor: services.LLMRouter, InputSchema: in, Kind: "client." + f.Name,
		Labels: d.Labels, OutputSchema: released, Tool: "client." + f.Name, Version: "v1"}, nil
}

// release returns the result of a call whose effect is outside the mesh.
func release() execute.Result {
	return execute.Result{EffectType: "release", Output: []byte(`{"released":true}`)}
}
