package gateway

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/transient"

	"context"
	"encoding/base64"
	"time"
)

// execute is POST /mcp/v1/execute of the HELM HTTP surface: {method, params}.
func (s *Service) execute(c echo.Context) error {
	who, err := s.auth(c, "")
	if err != nil {
		return err
	}
	raw, err := body(c)
	if err != nil {
		return err
	}
	var req ExecuteRequest
	if err := json.Unmarshal(raw, &req); err != nil || req.Method == "" {
		return badRequest("method", "want {method, params}")
	}
	if req.Params == nil {
		req.Params = map[string]any{}
	}
	enc, err := json.Marshal(req.Params)
	if err != nil {
		return err
	}
	args, err := canon.Transform(nil, enc)
	if err != nil {
		return badRequest("params", err.Error())
	}
	r, err := s.request(c, "tool."+req.Method, req.Method, args, who)
	if err != nil {
		return err
	}
	out, output, err := s.await(c.Request().Context(), r)
	if out == nil {
		headers(c, r, "")
		return err
	}
	headers(c, r, out.Recorded.Receipt.Verdict)
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

// SecretRequest is the body of POST /api/v1/secrets.
type SecretRequest struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// SecretInfo binds a sealed value to the call that stores it.
func SecretInfo(callID string) string { return "binnacle secret put v1 " + callID }

// putSecret stores a secret. The value never becomes an argument: it travels
// sealed to the broker's key, beside the call.
func (s *Service) putSecret(c echo.Context) error {
	who, err := s.auth(c, token.Vault)
	if err != nil {
		return err
	}
	var req SecretRequest
	dec := json.NewDecoder(c.Request().Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		return badRequest("body", "want {name, value}") // never the decoder's words: they may quote the value
	}
	if req.Name == "" || !secretName(req.Name) {
		return badRequest("name", "a secret's name is 1 to 64 of [A-Za-z0-9._-]")
	}
	if req.Value == "" || len(req.Value) > 64<<10 {
		return badRequest("value", "a secret's value has 1 to 65536 bytes")
	}
	key, ok := s.env.Trust.Current("vault-broker", contract.UseSeal)
	if !ok {
		return unavailable("the vault-broker's key is not published yet")
	}
	args, err := canon.Transform(nil, []byte(`{"name":`+quote(req.Name)+`}`))
	if err != nil {
		return err
	}
	r, err := s.request(c, "vault.put", "vault.put", args, who)
	if err != nil {
		return err
	}
	sealed, err := seal.To(key.PublicKey, SecretInfo(r.ID), []byte(req.Value))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), 5*time.Second)
	defer cancel()
	body, err := json.Marshal(base64.StdEncoding.EncodeToString(sealed))
	if err != nil {
		return err
	}
	if err := s.env.Box.Send(ctx, "vault-broker-1", r.ID, transient.Frame{Kind: transient.Sealed, Data: body}); err != nil {
		return unavailable("the sealed value could not be sent: " + err.Error())
	}
	out, output, err := s.await(c.Request().Context(), r)
	if out == nil {
		headers(c, r, "")
		return err
	}
	headers(c, r, out.Recorded.Receipt.Verdict)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, output)
}

func quote(s string) string { return string(canon.AppendString(nil, s)) }

func secretName(s string) bool {
	if len(s) > 64 {
		return false
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return false
		}
	}
	return true
}

// judgement is POST /api/v1/judgements: {session, rubric}.
func (s *Service) judgement(c echo.Context) error {
	who, err := s.auth(c, "")
	if err != nil {
		return err
	}
	args, err := body(c)
	if err != nil {
		return err
	}
	return s.respond(c, who, "judge.score", "judge.score", args)
}
