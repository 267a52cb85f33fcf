package apierr

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// An error about a member of a request's JSON body names the member by its JSON pointer
// (RFC 6901) in the body. An error about the body as a whole names WholeBody. Headers,
// path parameters and query parameters are named by their names. Errors do not quote
// values that may be secret.

// WholeBody is the Param of an error about the body as a whole.
const WholeBody = "body"

// PointBy sets Pointer to the argument that the error message of an executor names. Such
// a message begins with "name: " or "name/2/…: ", where name is one of the call's
// args. For requests to language models, whose args are a summary, the message begins
// with a JSON pointer into the request, and PointBy sets Param. It ignores other
// messages.
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

// Beneath makes the Param of an error (400) about a nested request point into the outer
// body: it prepends at, the JSON pointer of the nested request. A Param that is neither
// a JSON pointer nor WholeBody is unchanged, as are other errors. Beneath returns err.
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
