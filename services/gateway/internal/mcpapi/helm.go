package mcpapi

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Capabilities handles GET /mcp/v1/capabilities. It responds with a Manifest of the
// packs that are approved for the caller's tenant.
func (s *API) Capabilities(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Tools)
	if err != nil {
		return err
	}
	tools := s.Tools.In(who.Tenant)
	m := Manifest{Governance: "binnacle:v1", Version: s.Version, CatalogDigest: tools.Digest(), Tools: []ManifestTool{}}
	for _, t := range packs.Approved(tools) {
		m.Tools = append(m.Tools, ManifestTool{Name: t.Tool, Description: t.Description, Schema: t.InputSchema, InputSchema: t.InputSchema, OutputSchema: t.OutputSchema})
	}
	return c.JSON(http.StatusOK, m)
}

// Manifest is the response of GET /mcp/v1/capabilities.
type Manifest struct {
	CatalogDigest string         `json:"catalog_digest"`
	Governance    string         `json:"governance"` // "binnacle:v1"
	Tools         []ManifestTool `json:"tools"`
	Version       string         `json:"version"` // release of the gateway
}

// ManifestTool is one tool of a Manifest.
type ManifestTool struct {
	Description  string       `json:"description"`
	InputSchema  contract.Raw `json:"input_schema"`
	Name         string       `json:"name"`
	OutputSchema contract.Raw `json:"output_schema"`
	Schema       contract.Raw `json:"schema"` // the same as input_schema
}

// ExecuteRequest is the body of POST /mcp/v1/execute.
type ExecuteRequest struct {
	Method string          `json:"method"` // name of the tool, such as cmd.upper
	Params json.RawMessage `json:"params"` // if absent or null, {}
}

// ExecuteResponse is the response of POST /mcp/v1/execute.
type ExecuteResponse struct {
	ArgsHash          string          `json:"args_hash"`       // commitment to the params
	Content           []TextContent   `json:"content"`         // the result as text
	ProofgraphNode    string          `json:"proofgraph_node"` // id of the event that records the outcome
	ReasonCode        string          `json:"reason_code"`
	ReceiptID         string          `json:"receipt_id"`
	Result            json.RawMessage `json:"result"`
	StructuredContent json.RawMessage `json:"structured_content"` // the same as result
}

// TextContent is a text in the content of a result, as in MCP.
type TextContent struct {
	Text string `json:"text"`
	Type string `json:"type"` // "text"
}

// Execute handles POST /mcp/v1/execute. It proposes a call of the tool that the member
// method names, with the member params as args, and responds with an ExecuteResponse if
// the call succeeds.
func (s *API) Execute(c echo.Context) error {
	var req ExecuteRequest
	who, _, err := s.Gate.Into(c, &req)
	if err != nil {
		return err
	}
	if req.Method == "" {
		return apierr.BadRequest("/method", "name the tool, e.g. cmd.upper")
	}
	if err := body.CheckName("/method", "tool."+req.Method); err != nil {
		return err
	}
	args, err := body.CallArgs("/params", req.Params) // canonical, because Into decodes the body's canonical form
	if err != nil {
		return err
	}
	c.Set(body.ArgsKey, "/params")
	r, err := s.Calls.Request(c, "tool."+req.Method, req.Method, args, who)
	if err != nil {
		return err
	}
	out, output, err := s.Calls.Run(c, r)
	if err != nil {
		return err
	}
	rec := &out.Recorded.Receipt
	return c.JSON(http.StatusOK, ExecuteResponse{Result: output, StructuredContent: output, Content: []TextContent{{Type: "text", Text: string(output)}},
		ReasonCode: rec.ReasonCode, ArgsHash: rec.ArgsDigest, ProofgraphNode: out.Event.ID, ReceiptID: rec.ID})
}
