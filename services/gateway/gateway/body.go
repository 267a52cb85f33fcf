package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/strictjson"
)

// Errors in a request's JSON body name the wrong member by its JSON pointer
// (RFC 6901) in the body, and a body that is wrong as a whole by wholeBody.
// Headers, path and query parameters go by their plain names. No error quotes a
// value, which may be secret.

// wholeBody names a body that is wrong as a whole.
const wholeBody = "body"

// body reads a JSON object and canonicalises it. Empty means {}.
func body(c echo.Context) ([]byte, error) {
	raw := rawBody(c)
	if len(raw) == 0 {
		return []byte("{}"), nil
	}
	doc, err := canon.Transform(nil, raw)
	if err != nil {
		if at := duplicate(raw); at != "" {
			return nil, badRequest(at, "duplicate member name; send the member once")
		}
		return nil, badRequest(wholeBody, err.Error()+"; send one JSON object")
	}
	if doc[0] != '{' {
		return nil, badRequest(wholeBody, "the body must be a JSON object")
	}
	return doc, nil
}

// readBodyInto decodes the request's body, as body does, into the struct that v
// points to, and returns its canonical form.
func readBodyInto(c echo.Context, v any) ([]byte, error) {
	doc, err := body(c)
	if err != nil {
		return nil, err
	}
	return doc, strict(doc, v)
}

// callerBody returns the caller of a request and its body, as body does.
func (s *Service) callerBody(c echo.Context) (*caller, []byte, error) {
	who, err := s.auth(c, "")
	if err != nil {
		return nil, nil, err
	}
	doc, err := body(c)
	return who, doc, err
}

// callerInto is callerBody with the body decoded as readBodyInto does.
func (s *Service) callerInto(c echo.Context, v any) (*caller, []byte, error) {
	who, doc, err := s.callerBody(c)
	if err == nil {
		err = strict(doc, v)
	}
	return who, doc, err
}

// strict decodes a canonical JSON object into the struct that v points to, as
// strictjson.Decode does.
func strict(doc []byte, v any) error {
	err := strictjson.Decode(doc, v)
	var e *strictjson.Error
	if errors.As(err, &e) {
		return badRequest(e.Pointer, e.Message)
	}
	return err
}

// duplicate returns the pointer of the first member in doc that has the name of
// another in its object; empty if there is none before doc ends or breaks off.
// doc nests at most canon.MaxDepth deep.
func duplicate(doc []byte) string {
	at, _ := duplicateIn(json.NewDecoder(bytes.NewReader(doc)), "")
	return at
}

var errNotJSON = errors.New("not JSON")

// duplicateIn reads one value.
func duplicateIn(d *json.Decoder, at string) (string, error) {
	open, err := d.Token()
	if err != nil {
		return "", errNotJSON
	}
	if open != json.Delim('{') && open != json.Delim('[') {
		return "", nil
	}
	seen := map[string]bool{}
	for i := 0; d.More(); i++ {
		member := at + "/" + strconv.Itoa(i)
		if open == json.Delim('{') {
			name, err := d.Token()
			if err != nil {
				return "", errNotJSON
			}
			s, _ := name.(string)
			if member = at + "/" + strictjson.Token(s); seen[s] {
				return member, nil
			}
			seen[s] = true
		}
		if found, err := duplicateIn(d, member); found != "" || err != nil {
			return found, err
		}
	}
	if _, err := d.Token(); err != nil { // the closing delimiter
		return "", errNotJSON
	}
	return "", nil
}

// checkName bounds a name that a caller puts into an event; param is where it
// is in the request.
func checkName(param, name string) error {
	if len(name) > maxName {
		return badRequest(param, "at most "+strconv.Itoa(maxName)+" bytes")
	}
	return nil
}

// callArgs are the args at pointer at in a body; absent means {}.
func callArgs(at string, args json.RawMessage) (json.RawMessage, error) {
	if len(args) == 0 || string(args) == "null" {
		return json.RawMessage("{}"), nil
	}
	if args[0] != '{' {
		return nil, badRequest(at, "want a JSON object")
	}
	return args, nil
}

// pointBy takes the pointer of an argument from an executor's message: "name: …",
// or "name/2/…: …" for what is inside it, where name is one of the call's args. Of requests to language models, whose args
// are a summary, the message begins with the pointer in the request.
func (e *apiError) pointBy(message string, r propose.Request) {
	at, _, ok := strings.Cut(message, ": ")
	if slices.Contains(llm.Kinds, r.Kind) {
		if ok && strings.HasPrefix(at, "/") && !strings.Contains(at, " ") {
			e.Param = at
		}
		return
	}
	name, _, _ := strings.Cut(at, "/")
	var args map[string]json.RawMessage
	if !ok || strings.Contains(at, " ") || json.Unmarshal(r.Args, &args) != nil {
		return
	}
	if _, given := args[name]; given {
		e.Pointer = "/args/" + at
	}
}

// argsKey is where a handler says, in its echo.Context, at which pointer of the
// body the call's args are; without it the body itself is the args.
const argsKey = "args at"

// inBody names, in an error about a call's args, the member of the request that
// the args came from: an argument that is in the path goes by its plain name.
func inBody(c echo.Context, err error) error {
	var e *apiError
	if !errors.As(err, &e) || e.Pointer == "" || e.Param != "" {
		return err
	}
	at, _ := c.Get(argsKey).(string)
	arg := strings.TrimPrefix(e.Pointer, "/args")
	if e.Param = at + arg; e.Param == "" {
		e.Param = wholeBody
	}
	if name, ok := pathArgs[c.Path()]; ok && (arg == "/"+name || strings.HasPrefix(arg, "/"+name+"/")) {
		e.Param = c.ParamNames()[0]
	}
	return err
}

// pathArgs are the args that routes take from their paths.
var pathArgs = map[string]string{"/api/v1/keys/:id/consent": "id", "/api/v1/approvals/:call/votes": "call_id", "/v1/responses/:id": "id"}

// beneath moves an error about args that are a request of their own to where
// they are in the body.
func beneath(at string, err error) error {
	var e *apiError
	if errors.As(err, &e) && e.Status == http.StatusBadRequest {
		switch {
		case strings.HasPrefix(e.Param, "/"):
			e.Param = at + e.Param
		case e.Param == wholeBody:
			e.Param = at
		}
	}
	return err
}
