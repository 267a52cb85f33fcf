package browsers

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
)

// TestCORS shows which requests have responses that pages of another origin can read: none without
// configured origins, and never pages of logins.
func TestCORS(t *testing.T) {
	const app = "https://app.example"
	for _, x := range []struct {
		origins              []string
		method, path, origin string
		allowed              bool
		status               int
	}{
		{nil, "GET", "/api", app, false, 200},
		{nil, "OPTIONS", "/api", app, false, 204},
		{[]string{app}, "GET", "/api", app, true, 200},
		{[]string{app}, "OPTIONS", "/api", app, true, 204},
		{[]string{app}, "GET", "/api", "", false, 200},
		{[]string{app}, "GET", "/api", "null", false, 200},
		{[]string{app}, "GET", "/api", app + ".evil.example", false, 200},
		{[]string{app}, "OPTIONS", "/api", "http://app.example", false, 204},
		{[]string{app}, "GET", "/auth/login", app, false, 200},
		{[]string{app}, "OPTIONS", "/auth/login", app, false, 204},
	} {
		e := echo.New()
		e.Use(CORS(x.origins))
		for _, path := range []string{"/api", "/auth/login"} {
			e.GET(path, func(c echo.Context) error { return c.NoContent(http.StatusOK) })
		}
		r, w := httptest.NewRequest(x.method, x.path, http.NoBody), httptest.NewRecorder()
		if x.origin != "" {
			r.Header.Set("Origin", x.origin)
		}
		r.Header.Set("Access-Control-Request-Method", "POST")
		e.ServeHTTP(w, r)
		if got := w.Header().Get("Access-Control-Allow-Origin"); (got == x.origin) != x.allowed && x.origin != "" || w.Code != x.status || w.Header().Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%+v: %d %q", x, w.Code, got)
		}
	}
}

// TestCheck shows which texts are origins.
func TestCheck(t *testing.T) {
	if err := Check([]string{"https://app.example", "http://localhost:3000"}); err != nil {
		t.Error(err)
	}
	for _, o := range []string{"*", "null", "app.example", "https://app.example/", "https://App.example", "https://app.example/x", "ftp://a", "https://u@a"} {
		if Check([]string{o}) == nil {
			t.Errorf("%q is an origin", o)
		}
	}
}
