// Package mcpdoc defines how the tool documents of the mcp-router describe what an MCP
// server offers. A tool document has no fields for the title, the annotations, the icons
// and the output schema of an MCP tool, nor for lists of resources and prompts. They are
// in the keyword Keyword of the document's output schema, which JSON Schema ignores, so
// that the digest of the document covers them: a change of any of them is drift.
package mcpdoc

import (
	"encoding/json"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Keyword is the member of an output schema that holds an Offer.
const Keyword = "x-mcp"

// Executor is the service whose tool documents contain offers.
const Executor = services.MCPRouter

// KindAdd is the kind of the calls that add a server. Their arguments are its settings.
const KindAdd = "mcp.add"

// Key returns the key of the aggregate of a server, whose events hold its settings.
func Key(server string) string { return "mcp-" + server }

// SandboxSession returns the session to which the sandboxes of a server belong. It is no token, and
// so differs from the sessions of all calls, which therefore cannot use such a sandbox.
func SandboxSession(server string) string { return "mcp." + server }

// Prefixes of the kinds of calls of a server. The kinds of a tool and of a
// prompt end in its name in the mesh, the others in the server's name; for
// subscriptions, see SubscriptionKind.
const (
	ToolPrefix       = "tool."
	ResourcePrefix   = "resource."
	PromptPrefix     = "prompt."
	CompletionPrefix = "completion."
)

// SubscriptionKind returns the kind of the calls that subscribe to resources of a server.
func SubscriptionKind(server string) string { return ResourcePrefix + server + ".subscribe" }

// Lease is the time for which a call of SubscriptionKind subscribes. Within it, the
// mcp-router sends a Frame with the method Updated under the id of the call, numbered from
// 1, when the resource has changed, and one with the method Ended if the subscription ends
// early.
const Lease = 3 * time.Minute

// Methods of the frames of a subscription.
const (
	Updated = "notifications/resources/updated"
	Ended   = "binnacle/subscription_ended"
)

// Offer is the part of a tool document that describes what an MCP server
// offers. The members other than Server are those of the Model Context
// Protocol, as the server sent them.
type Offer struct {
	Server    string                     `json:"server"`              // name of the server in the mesh
	Name      string                     `json:"name,omitempty"`      // name of the tool or prompt at the server
	Tool      map[string]json.RawMessage `json:"tool,omitempty"`      // members of the tool other than name, description and inputSchema
	Resources []json.RawMessage          `json:"resources,omitempty"` // of the kind resource.SERVER
	Templates []json.RawMessage          `json:"templates,omitempty"` // of the kind resource.SERVER
	Prompt    map[string]json.RawMessage `json:"prompt,omitempty"`    // members of the prompt other than name and description
}

// Of returns the offer in a tool document, or nil if the document is not one of the
// mcp-router or has no well-formed offer.
func Of(t *contract.Tool) *Offer {
	if t == nil || t.Executor != Executor {
		return nil
	}
	var s map[string]json.RawMessage
	var o Offer
	if json.Unmarshal(t.OutputSchema, &s) != nil || json.Unmarshal(s[Keyword], &o) != nil || o.Server == "" {
		return nil
	}
	return &o
}

// Schema returns the canonical output schema that holds an offer: that of any object.
func (o *Offer) Schema() (contract.Raw, error) {
	b, err := json.Marshal(map[string]any{"additionalProperties": true, "type": "object", Keyword: o})
	if err != nil {
		return nil, err
	}
	return canon.Transform(nil, b)
}

// Named returns the name in the mesh of a tool or prompt of a server: its name at the
// server, preceded by the server's name and a dot unless bare is true.
func Named(server string, bare bool, name string) string {
	if bare {
		return name
	}
	return server + "." + name
}

// Round is the body of a call of a client: the capabilities of the client and the
// notifications that it requests, and the input that it supplies if the call continues an
// earlier one for which the server required input.
type Round struct {
	Capabilities   json.RawMessage `json:"capabilities,omitempty"` // of the client: elicitation, roots and sampling; none if absent
	InputResponses json.RawMessage `json:"input_responses,omitempty"`
	LogLevel       string          `json:"log_level,omitempty"`
	Progress       bool            `json:"progress,omitempty"` // the client requests notifications of progress
	RequestState   string          `json:"request_state,omitempty"`
}

// Empty reports whether the call needs no body.
func (r *Round) Empty() bool {
	return r.Capabilities == nil && r.InputResponses == nil && r.LogLevel == "" && !r.Progress && r.RequestState == ""
}

// Can reports whether the client has declared a capability.
func (r *Round) Can(name string) bool {
	var all map[string]json.RawMessage
	return json.Unmarshal(r.Capabilities, &all) == nil && all[name] != nil
}

// Refusal is the output of a call that a server refused with an error of JSON-RPC.
type Refusal struct {
	Error *WireError `json:"error"`
}

// WireError is an error of JSON-RPC, as the server returned it.
type WireError struct {
	Code    int64           `json:"code"`
	Data    json.RawMessage `json:"data,omitempty"`
	Message string          `json:"message"`
}

// Frame is a notification of the server during a call, which the mcp-router sends to the
// gateway that waits for the call.
type Frame struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}
