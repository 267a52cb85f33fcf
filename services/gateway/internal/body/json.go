package body

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/strictjson"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// JSON returns the request's body, as Raw returns it, in canonical form. The body must
// be one JSON object; an empty body counts as {}. The error (400) names the first
// duplicate member, or otherwise the whole body.
func JSON(c echo.Context) ([]byte, error) {
	raw := Raw(c)
	if len(raw) == 0 {
		return []byte("{}"), nil
	}
	doc, err := canon.Transform(nil, raw)
	if err != nil {
		if at := duplicate(raw); at != "" {
			return nil, apierr.BadRequest(at, "duplicate member name; send the member once")
		}
		return nil, apierr.BadRequest(apierr.WholeBody, err.Error()+"; send one JSON object")
	}
	if doc[0] != '{' {
		return nil, apierr.BadRequest(apierr.WholeBody, "the body must be a JSON object")
	}
	return doc, nil
}

// Into decodes the request's body into the struct that v points to, and returns the
// body's canonical form; see JSON and Strict.
func Into(c echo.Context, v any) ([]byte, error) {
	doc, err := JSON(c)
	if err != nil {
		return nil, err
	}
	return doc, Strict(doc, v)
}

// Strict decodes a canonical JSON object into the struct that v points to. If
// strictjson.Decode rejects a member, the error (400) names the member by its JSON
// pointer.
func Strict(doc []byte, v any) error {
	err := strictjson.Decode(doc, v)
	var e *strictjson.Error
	if errors.As(err, &e) {
		return apierr.BadRequest(e.Pointer, e.Message)
	}
	return err
}

// duplicate returns the JSON pointer of the first member in doc whose name occurs
// earlier in the same object, or "" if there is none. It stops where doc is malformed.
// doc must not nest deeper than canon.MaxDepth.
func duplicate(doc []byte) string {
	at, _ := duplicateIn(json.NewDecoder(bytes.NewReader(doc)), "")
	return at
}

var errNotJSON = errors.New("not JSON")

// duplicateIn reads one JSON value, whose pointer is at, and returns the pointer of the
// first duplicate member in it, or "" if there is none. It returns errNotJSON if it
// reaches malformed JSON before a duplicate member.
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

// MaxName is the maximum length, in bytes, of a name in a request that is recorded in an
// event.
const MaxName = 128

// CheckName returns an error (400) if name is longer than MaxName; param is the place of
// the name in the request.
func CheckName(param, name string) error {
	if len(name) > MaxName {
		return apierr.BadRequest(param, "at most "+strconv.Itoa(MaxName)+" bytes")
	}
	return nil
}

// CallArgs returns args, the member of a request body whose JSON pointer is at. It
// returns {} if args is absent or null, and an error (400) if it is any other value than
// an object.
func CallArgs(at string, args json.RawMessage) (json.RawMessage, error) {
	if len(args) == 0 || string(args) == "null" {
		return json.RawMessage("{}"), nil
	}
	if args[0] != '{' {
		return nil, apierr.BadRequest(at, "want a JSON object")
	}
	return args, nil
}

// ArgsKey is the key of an echo.Context under which a handler stores the JSON pointer of
// the call's args in the body. Without it, the body itself is the args.
const ArgsKey = "args at"

// InBody returns err. If err is an *apierr.Error about a call's args, with a Pointer and
// without a Param, InBody first sets its Param to the source of the wrong argument: the
// member of the body, the path parameter, or the whole body (apierr.WholeBody).
func InBody(c echo.Context, err error) error {
	var e *apierr.Error
	if !errors.As(err, &e) || e.Pointer == "" || e.Param != "" {
		return err
	}
	at, _ := c.Get(ArgsKey).(string)
	arg := strings.TrimPrefix(e.Pointer, "/args")
	if e.Param = at + arg; e.Param == "" {
		e.Param = apierr.WholeBody
	}
	if name, ok := pathArgs[c.Path()]; ok && (arg == "/"+name || strings.HasPrefix(arg, "/"+name+"/")) {
		e.Param = c.ParamNames()[0]
	}
	return err
}

// pathArgs holds, by route, the name of the call's argument that the route takes from
// its path. Routes that take none are absent.
var pathArgs = map[string]string{"/api/v1/keys/:id/consent": "id", "/api/v1/approvals/:call/votes": "call_id", "/v1/responses/:id": "id"}
