package mcpdoc

import (
	"encoding/json"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// VirtualKind returns the kind of the document of a virtual server.
func VirtualKind(name string) string { return "mcp.server." + name }

// Own is the name under which a virtual server offers the mesh's own resources and prompts. No
// MCP server can be added under it.
const Own = "binnacle"

// VirtualKeyword is the member of an output schema that holds a Virtual.
const VirtualKeyword = "x-mcp-virtual"

// Virtual is a virtual server: a selection of the tools, resources and prompts that the MCP
// servers and packs of the mesh offer, which clients use at an address of its own. A tool
// document with the kind of VirtualKind holds it, so that it is pinned like a tool: a change
// of it is drift, and clients cannot use it until it is approved.
type Virtual struct {
	Prompts   []string `json:"prompts,omitempty"`   // names in the mesh, or beginnings of names followed by "*"
	Resources []string `json:"resources,omitempty"` // names of the servers whose resources it offers
	Search    bool     `json:"search,omitempty"`    // its tools are not listed; clients find them with a search tool
	Tools     []string `json:"tools"`               // names in the mesh, or beginnings of names followed by "*"
}

// VirtualOf returns the virtual server in a tool document, or nil if the document is not one of
// the mcp-router or has no well-formed virtual server.
func VirtualOf(t *contract.Tool) *Virtual {
	if t == nil || t.Executor != Executor {
		return nil
	}
	var s map[string]json.RawMessage
	var v Virtual
	if json.Unmarshal(t.OutputSchema, &s) != nil || s[VirtualKeyword] == nil || json.Unmarshal(s[VirtualKeyword], &v) != nil {
		return nil
	}
	return &v
}

// Schema returns the canonical output schema that holds a virtual server: that of any object.
func (v *Virtual) Schema() (contract.Raw, error) {
	b, err := json.Marshal(map[string]any{"additionalProperties": true, "type": "object", VirtualKeyword: v})
	if err != nil {
		return nil, err
	}
	return canon.Transform(nil, b)
}

// Matches reports whether one of patterns is name, or is a beginning of name followed by "*".
func Matches(patterns []string, name string) bool {
	for _, p := range patterns {
		if guard.MatchKind(p, name) {
			return true
		}
	}
	return false
}
