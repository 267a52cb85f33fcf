package mcpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Path is the path of MCP.
const Path = "/mcp"

// MetadataPath is the path of the metadata of MCP as a protected resource (RFC 9728, section 3.1).
const MetadataPath = "/.well-known/oauth-protected-resource" + Path

// ResourceMetadata describes MCP as a protected resource (RFC 9728).
type ResourceMetadata struct {
	Resource string   `json:"resource"`
	Name     string   `json:"resource_name"`
	Servers  []string `json:"authorization_servers"` // issuers of the tokens that are accepted
	Scopes   []string `json:"scopes_supported"`
	Methods  []string `json:"bearer_methods_supported"`
}

// Metadata handles GET MetadataPath. Clients without a token read it to find the authorization
// server, which is the gateway itself.
func (s *API) Metadata(c echo.Context) error {
	at := s.Gate.Base(c)
	return c.JSON(http.StatusOK, ResourceMetadata{Resource: at + Path, Name: "Binnacle", Servers: []string{at}, Scopes: []string{token.Tools, token.Audit}, Methods: []string{"header"}})
}

// Challenged returns a handler whose responses with status 401 name the metadata in their
// challenge (RFC 9728, section 5.1), as MCP requires.
func (s *API) Challenged(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Set(apierr.ChallengeKey, apierr.Challenge{Metadata: s.Gate.Base(c) + MetadataPath, Scope: token.Tools})
		return next(c)
	}
}
