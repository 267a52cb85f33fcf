// Package browsers lets pages of configured origins use the API (CORS, the Fetch standard).
package browsers

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
)

// Check returns an error for the first of origins that is not an origin: a scheme, http or https,
// and a host, with a port if it is not the scheme's, as browsers send it.
func Check(origins []string) error {
	for i, o := range origins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Scheme+"://"+strings.ToLower(u.Host) != o {
			return fmt.Errorf("cors_origins/%d: %q is no origin; want one such as https://app.example", i, o)
		}
	}
	return nil
}

// Headers that pages may send and read.
var (
	sent = strings.Join([]string{"Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Prefer", "X-Binnacle-Session", "X-Binnacle-Subject"}, ", ")
	read = strings.Join([]string{"Retry-After", "X-Binnacle-Call-Id", "X-Binnacle-Receipt-Id", "X-Binnacle-Session-Id"}, ", ")
)

// credential is the first part of the paths of the pages and forms of logins, which no other page
// may use.
const credential = "/auth/"

// CORS returns middleware that permits pages of the origins to send requests to the API and to read
// the responses, and answers their preflight requests. Browsers send no cookies with such requests,
// because Access-Control-Allow-Credentials is never sent. Requests of other origins, and those for
// the pages of logins, are handled without a header of CORS. Without origins, the middleware has no
// effect.
func CORS(origins []string) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		if len(origins) == 0 {
			return next
		}
		return func(c echo.Context) error {
			r, h := c.Request(), c.Response().Header()
			h.Add("Vary", "Origin")
			origin := r.Header.Get("Origin")
			if !slices.Contains(origins, origin) || strings.HasPrefix(r.URL.Path, credential) {
				return next(c)
			}
			h.Set("Access-Control-Allow-Origin", origin)
			if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
				h.Set("Access-Control-Expose-Headers", read)
				return next(c)
			}
			h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
			h.Set("Access-Control-Allow-Headers", sent)
			h.Set("Access-Control-Max-Age", "600")
			return c.NoContent(http.StatusNoContent)
		}
	}
}
