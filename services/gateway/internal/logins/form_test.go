package logins

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
)

// TestForm checks that fields come from the body and not from the URL, and that a
// request whose body is not a form is refused with the status 400, 413 or 415.
func TestForm(t *testing.T) {
	for _, tt := range []struct {
		name, kind, body string
		status           int
		token            string
	}{
		{"a form", formType, "token=a%20b", 0, "a b"},
		{"with a parameter of the type", formType + "; charset=utf-8", "token=x", 0, "x"},
		{"empty", formType, "", 0, ""},
		{"JSON", "application/json", `{"token":"x"}`, http.StatusUnsupportedMediaType, ""},
		{"no type", "", "token=x", http.StatusUnsupportedMediaType, ""},
		{"not encoded", formType, "token=%zz", http.StatusBadRequest, ""},
		{"too large", formType, "token=" + strings.Repeat("x", 200), http.StatusRequestEntityTooLarge, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/oauth/token?token=url", strings.NewReader(tt.body))
			r.Header.Set("Content-Type", tt.kind)
			w := httptest.NewRecorder()
			r.Body = http.MaxBytesReader(w, r.Body, 100)
			form, err := formOf(echo.New().NewContext(r, w))
			if tt.status == 0 {
				if err != nil || form.Get("token") != tt.token {
					t.Fatal(form, err)
				}
				return
			}
			var refused *refusal
			if !errors.As(err, &refused) || refused.status != tt.status {
				t.Fatal(form, err)
			}
		})
	}
}
