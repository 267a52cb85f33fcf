package logins

import (
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
)

const formType = "application/x-www-form-urlencoded"

// formOf returns the fields of a request's form. Fields in the URL are ignored, because logs and
// histories contain URLs. The error, with status 400, 408, 413 or 415, states why the body is not
// a form; the gate has limited its size and the time that it may take.
func formOf(c echo.Context) (url.Values, error) {
	r := c.Request()
	raw := body.Raw(c)
	if raw == nil {
		var err error
		if raw, err = io.ReadAll(r.Body); err != nil {
			return nil, unreadable(err)
		}
		body.Streamed(c)
		// The deadline of the body would otherwise end the request. Tests have responses
		// without deadlines.
		_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Time{})
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != formType {
		return nil, &refusal{http.StatusUnsupportedMediaType, contract.OAuthRequest, "Content-Type: want " + formType}
	}
	values, err := url.ParseQuery(string(raw))
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, contract.OAuthRequest, "the body is not a form: encode each field as in a query of a URL"}
	}
	return values, nil
}

// unreadable returns the error for a body that could not be read to its end.
func unreadable(err error) error {
	var large *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &large):
		return &refusal{http.StatusRequestEntityTooLarge, contract.OAuthRequest, "the form is too large: the limit is 64 KiB"}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &refusal{http.StatusRequestTimeout, contract.OAuthRequest, "the form did not arrive in time: send all of it within 10 seconds"}
	default:
		return &refusal{http.StatusBadRequest, contract.OAuthRequest, "the form could not be read to its end"}
	}
}
