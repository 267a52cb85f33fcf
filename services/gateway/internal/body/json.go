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

// JSON is the request's body, a JSON object, canonicalised. Empty means {}.
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

// Into decodes the request's body, as JSON does, into the struct that v
// points to, and returns its canonical form.
func Into(c echo.Context, v any) ([]byte, error) {
	doc, err := JSON(c)
	if err != nil {
		return nil, err
	}
	return doc, Strict(doc, v)
}

// Strict decodes a canonical JSON object into the struct that v points to, as
// strictjson.Decode does.
func Strict(doc []byte, v any) error {
	err := strictjson.Decode(doc, v)
	var e *strictjson.Error
	if errors.As(err, &e) {
		return apierr.BadRequest(e.Pointer, e.Message)
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

// MaxName bounds the names a caller can put into an event, in bytes.
const MaxName = 128

// CheckName bounds a name that a caller puts into an event; param is where it
// is in the request.
func CheckName(param, name string) error {
	if len(name) > MaxName {
		return apierr.BadRequest(param, "at most "+strconv.Itoa(MaxName)+" bytes")
	}
	return nil
}

// CallArgs returns args, the JSON object at pointer at in a request body. It returns {}
// if args is absent or null, and an error if it is not an object.
func CallArgs(at string, args json.RawMessage) (json.RawMessage, error) {
	if len(args) == 0 || string(args) == "null" {
		return json.RawMessage("{}"), nil
	}
	if args[0] != '{' {
		return nil, apierr.BadRequest(at, "want a JSON object")
	}
	return args, nil
}

// ArgsKey is where a handler says, in its echo.Context, at which pointer of the
// body the call's args are; without it the body itself is the args.
const ArgsKey = "args at"

// InBody names, in an error about a call's args, the member of the request that
// the args came from: an argument that is in the path goes by its plain name.
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

// pathArgs are the args that routes take from their paths.
var pathArgs = map[string]string{"/api/v1/keys/:id/consent": "id", "/api/v1/approvals/:call/votes": "call_id", "/v1/responses/:id": "id"}
