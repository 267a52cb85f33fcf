package apierr

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// Errors in a request's JSON body name the wrong member by its JSON pointer
// (RFC 6901) in the body, and a body that is wrong as a whole by WholeBody.
// Headers, path and query parameters go by their plain names. No error quotes a
// value, which may be secret.

// WholeBody names a body that is wrong as a whole.
const WholeBody = "body"

// PointBy takes the pointer of an argument from an executor's message: "name: …",
// or "name/2/…: …" for what is inside it, where name is one of the call's args. Of requests to language models, whose args
// are a summary, the message begins with the pointer in the request.
func (e *Error) PointBy(message, kind string, args []byte) {
	at, _, ok := strings.Cut(message, ": ")
	if slices.Contains(llm.Kinds, kind) {
		if ok && strings.HasPrefix(at, "/") && !strings.Contains(at, " ") {
			e.Param = at
		}
		return
	}
	name, _, _ := strings.Cut(at, "/")
	var given map[string]json.RawMessage
	if !ok || strings.Contains(at, " ") || json.Unmarshal(args, &given) != nil {
		return
	}
	if _, ok := given[name]; ok {
		e.Pointer = "/args/" + at
	}
}

// Beneath moves an error about args that are a request of their own to where
// they are in the body.
func Beneath(at string, err error) error {
	var e *Error
	if errors.As(err, &e) && e.Status == http.StatusBadRequest {
		switch {
		case strings.HasPrefix(e.Param, "/"):
			e.Param = at + e.Param
		case e.Param == WholeBody:
			e.Param = at
		}
	}
	return err
}
