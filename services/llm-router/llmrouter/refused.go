package llmrouter

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// refused returns the failure for a request that cannot be read or translated, with
// fault.InvalidInput. The path at the beginning of err's text becomes a JSON pointer
// into body, as far as it exists there; why precedes the rest of the text.
func refused(body []byte, err error, why string) *provider.Failure {
	at, rest := pointerIn(body, err.Error())
	message := why + rest
	if at != "" {
		message = at + ": " + message
	}
	return &provider.Failure{Code: fault.InvalidInput, Status: http.StatusBadRequest, Message: message, Fault: &ir.Fault{Param: at, Message: message}}
}

// pathIn matches the path at the beginning of a dialect's error: "messages[0]: ",
// "content[1].type: ".
var pathIn = regexp.MustCompile(`^[a-z_]+(\[[0-9]+\])?(\.[a-z_]+(\[[0-9]+\])?)*: `)

// pointerIn splits an error's text into the JSON pointer of the deepest member of body
// that it names, and the rest of the text. If body contains only a part of a path, the
// whole path remains in the rest.
func pointerIn(body []byte, text string) (at, rest string) {
	doc := json.RawMessage(body)
	for {
		path := pathIn.FindString(text)
		if path == "" {
			return at, text
		}
		for part := range strings.FieldsFuncSeq(strings.TrimSuffix(path, ": "), func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
			next := inside(doc, part)
			if next == nil {
				return at, text
			}
			doc, at = next, at+"/"+part
		}
		text = text[len(path):]
	}
}

// inside returns a member of an object or an item of an array, or nil if it does not
// exist.
func inside(doc json.RawMessage, part string) json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal(doc, &object) == nil {
		return object[part]
	}
	var list []json.RawMessage
	if n, err := strconv.Atoi(part); err == nil && json.Unmarshal(doc, &list) == nil && n < len(list) {
		return list[n]
	}
	return nil
}
