package transient

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Error is the failure of a query.
type Error struct {
	Code    string // error code, listed in schemas/errors.json
	Param   string // the member of the request that is invalid, or ""
	Message string
	Cause   error // underlying error, or nil; always nil if the service sent the Error
}

// Unwrap returns Cause.
func (e *Error) Unwrap() error { return e.Cause }

// Error implements error. It returns the message without the code.
func (e *Error) Error() string { return e.Message }

// Errorf returns an *Error with a code of schemas/errors.json and a formatted message.
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// ErrorOf returns the *Error that err, which must not be nil, is or wraps. For any other
// error, such as one of a view or of the bus, it returns an *Error with code unavailable
// and the same message.
func ErrorOf(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: contract.CodeUnavailable, Message: err.Error()}
}

// unknownVerb is the start of the error message for a verb that has no handler.
const unknownVerb = "unknown question "

// notFound begins the message of a Failed frame with the code not_found: callers of
// release 0.5 derive the code from it. It is no part of Error.Message.
const notFound = "not found: "

// text returns the message of the Failed frame for an error.
func (e *Error) text(message string) string {
	if e.Code == contract.CodeNotFound {
		return notFound + message
	}
	return message
}

// failed returns the error in a Failed frame. Services of release 0.5 and earlier send
// no code; the code is then derived from the start of the message, and is unavailable if
// that is not known.
func failed(f Frame) *Error {
	e := &Error{Code: f.Code, Param: f.Param}
	_ = json.Unmarshal(f.Data, &e.Message)
	switch {
	case e.Code == contract.CodeNotFound:
		e.Message = strings.TrimPrefix(e.Message, notFound)
	case e.Code != "":
	case strings.HasPrefix(e.Message, "not found"):
		e.Code = contract.CodeNotFound
	case strings.HasPrefix(e.Message, unknownVerb):
		e.Code = contract.CodeQueryUnknown
	default:
		e.Code = contract.CodeUnavailable
	}
	return e
}
