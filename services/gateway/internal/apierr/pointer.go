package apierr

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// Errors in a request's JSON body name the wrong member by its JSON pointer (RFC 6901)
// in the body, and a body that is wrong as a whole by WholeBody. Headers, path and query
// parameters are named by their plain names. Errors do not quote values, because a value
// may be secret.

// WholeBody is the Param of an error about the body as a whole.
const WholeBody = "body"

// PointBy sets the argument that the message of an executor names. The message begins
// with "name: " or "name/2/…: ", where name is one of the call's args. For requests to
// language models, whose args are a summary, it begins with the JSON pointer in the
// request.
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

// Beneath adds the prefix at to the Param of an error (400) about args that are
// themselves a request, so that Param points into the body that contains them. It
// returns err.
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
