package gateway

import (
	_ "embed"
	"net/http"

	"github.com/labstack/echo/v4"
)

//go:embed openapi.json
var openapiDoc []byte

// openapi serves the generated OpenAPI 3.1 document.
func openapi(c echo.Context) error { return c.JSONBlob(http.StatusOK, openapiDoc) }
