package mcpapi

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Capabilities handles GET /mcp/v1/capabilities. It responds with the tool manifest of
// the HELM HTTP surface.
func (s *API) Capabilities(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Tools); err != nil {
		return err
	}
	tools := []map[string]any{}
	for _, t := range packs.Approved(s.Tools) {
		tools = append(tools, map[string]any{"name": t.Tool, "description": t.Description, "schema": t.InputSchema, "input_schema": t.InputSchema, "output_schema": t.OutputSchema})
	}
	return c.JSON(http.StatusOK, map[string]any{"governance": "binnacle:v1", "version": s.Version, "catalog_digest": s.Tools.Digest(), "tools": tools})
}

// ExecuteRequest is the body of POST /mcp/v1/execute.
type ExecuteRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"` // an object
}

// Execute handles POST /mcp/v1/execute of the HELM HTTP surface. It proposes a call of
// the tool method with the args params, and responds with the output, in three members,
// and the receipt id.
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
	args, err := body.CallArgs("/params", req.Params) // already canonical, because the whole body is
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
	return c.JSON(http.StatusOK, map[string]any{
		"result": json.RawMessage(output), "structured_content": json.RawMessage(output),
		"content":     []map[string]any{{"type": "text", "text": string(output)}},
		"reason_code": out.Recorded.Receipt.ReasonCode, "args_hash": out.Recorded.Receipt.ArgsDigest,
		"proofgraph_node": out.Event.ID, "receipt_id": out.Recorded.Receipt.ID,
	})
}
