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
	Code    string // of schemas/errors.json
	Param   string // the member of the request that is wrong, where one is
	Message string
	Cause   error // cause, if the service did not respond
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Error implements error. It is the message alone.
func (e *Error) Error() string { return e.Message }

// Errorf makes an error with a code.
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// ErrorOf returns the *Error that err is or wraps; any other error becomes one
// with code unavailable, since a view or the bus failed.
func ErrorOf(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: contract.CodeUnavailable, Message: err.Error()}
}

// unknownVerb begins the message about a verb that has no handler.
const unknownVerb = "unknown question "

// failed is the error that a frame holds. Services of release 0.5 and earlier
// send no code: theirs is read from how the message begins.
func failed(f Frame) *Error {
	e := &Error{Code: f.Code, Param: f.Param}
	_ = json.Unmarshal(f.Data, &e.Message)
	switch {
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
