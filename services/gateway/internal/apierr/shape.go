package apierr

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// ShapeKey is the key of an echo.Context under which a handler stores the kind that
// determines the shape of its errors. Without it they have OpenAI's shape.
const ShapeKey = "shape"

// anthropic reports whether the errors of a kind have Anthropic's shape.
func anthropic(kind string) bool { return kind == llm.Messages || kind == llm.CountTokens }

// TypeOf returns OpenAI's error type for an HTTP status.
func TypeOf(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusForbidden:
		return "permission_error"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status < 500:
		return "invalid_request_error"
	}
	return "server_error"
}

// anthropicType returns Anthropic's error type for an HTTP status.
func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

// Doc returns the error as a JSON document in the shape of the kind's API. Members that
// only Binnacle defines, such as call_id, are added to the error object of OpenAI or
// Anthropic.
func (e *Error) Doc(kind string) map[string]any {
	if !anthropic(kind) {
		return map[string]any{"error": e}
	}
	inner := map[string]any{"type": anthropicType(e.Status), "message": e.Message, "code": e.Code}
	for k, v := range map[string]string{"param": e.Param, "pointer": e.Pointer, "reason_code": e.ReasonCode, "hint": e.Hint, "call_id": e.CallID, "decision_id": e.DecisionID, "receipt_id": e.ReceiptID} {
		if v != "" {
			inner[k] = v
		}
	}
	return map[string]any{"type": "error", "error": inner, "request_id": e.CallID}
}

// Event returns the error as a server-sent event that ends a stream of the given kind.
func (e *Error) Event(kind string) []byte {
	name, doc := "", e.Doc(kind)
	switch kind {
	case llm.Messages:
		name = "event: error\n"
	case llm.Responses:
		name = "event: error\n"
		doc = map[string]any{"type": "error", "code": e.Code, "message": e.Message, "param": nil, "sequence_number": 1 << 20, "call_id": e.CallID, "receipt_id": e.ReceiptID}
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return nil
	}
	return fmt.Appendf(nil, "%sdata: %s\n\n", name, b)
}
