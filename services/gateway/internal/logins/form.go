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

// bodyOf returns the body of a request. The error has status 400, 408 or 413; the gate has limited
// the size of the body and the time that it may take.
func bodyOf(c echo.Context) ([]byte, error) {
	if raw := body.Raw(c); raw != nil {
		return raw, nil
	}
	raw, err := io.ReadAll(c.Request().Body)
	if err != nil {
		return nil, unreadable(err)
	}
	body.Streamed(c)
	// The deadline of the body would otherwise end the request. Tests have responses
	// without deadlines.
	_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Time{})
	return raw, nil
}

// formOf returns the fields of a request's form. Fields in the URL are ignored, because logs and
// histories contain URLs. The error, with status 400, 408, 413 or 415, states why the body is not
// a form; see bodyOf.
func formOf(c echo.Context) (url.Values, error) {
	r := c.Request()
	raw, err := bodyOf(c)
	if err != nil {
		return nil, err
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
		return &refusal{http.StatusRequestEntityTooLarge, contract.OAuthRequest, "the body is too large: the limit is 64 KiB"}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &refusal{http.StatusRequestTimeout, contract.OAuthRequest, "the body did not arrive in time: send all of it within 10 seconds"}
	default:
		return &refusal{http.StatusBadRequest, contract.OAuthRequest, "the body could not be read to its end"}
	}
}
