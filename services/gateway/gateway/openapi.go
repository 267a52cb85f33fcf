package gateway

import (
	_ "embed"
	"net/http"

	"github.com/labstack/echo/v4"
)

//go:embed openapi.json
var openapiDoc []byte

// Document is an OpenAPI document, whose form the OpenAPI Initiative specifies.
type Document map[string]any

// openapi serves the generated OpenAPI 3.1 document.
func openapi(c echo.Context) error { return c.JSONBlob(http.StatusOK, openapiDoc) }
