package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// SecretRequest is the body of POST /api/v1/secrets.
type SecretRequest struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

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
	args := canon.Object(nil)
	args.Str("name", req.Name)
	r, err := s.request(c, "vault.put", "vault.put", args.End(), who)
	if err != nil {
		return err
	}
	sealed, err := seal.To(key.PublicKey, execute.PutSecretInfo(r.ID), []byte(req.Value))
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
	_, output, err := s.run(c, r)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, output)
}

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
