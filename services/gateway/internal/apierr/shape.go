package apierr

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// ShapeKey is the key of an echo.Context under which a handler stores a kind of request
// to models, such as llm.Messages; the errors of the handler then have the shape of the
// API of that kind. Without it they have OpenAI's shape.
const ShapeKey = "shape"

// anthropic reports whether the errors of calls of a kind have the shape of Anthropic's
// API.
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

// Body is the body of an error response. Its shape is that of OpenAI's errors.
type Body struct {
	Error *Error `json:"error"`
}

// AnthropicBody is the body of an error response in the shape of Anthropic's API.
type AnthropicBody struct {
	Error     AnthropicError `json:"error"`
	RequestID string         `json:"request_id"` // id of the call; empty if there is none
	Type      string         `json:"type"`       // "error"
}

// AnthropicError is an Error with Anthropic's error type. The members other than type
// and message are the mesh's own.
type AnthropicError struct {
	CallID     string   `json:"call_id,omitempty"`
	Code       string   `json:"code"`
	DecisionID string   `json:"decision_id,omitempty"`
	DidYouMean []string `json:"did_you_mean,omitempty"`
	Hint       string   `json:"hint,omitempty"`
	Message    string   `json:"message"`
	Param      string   `json:"param,omitempty"`
	Pointer    string   `json:"pointer,omitempty"`
	ReasonCode string   `json:"reason_code,omitempty"`
	ReceiptID  string   `json:"receipt_id,omitempty"`
	Retryable  bool     `json:"retryable,omitempty"` // as in Error
	Type       string   `json:"type"`

	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// Doc returns the error as a JSON document in the shape of the kind's API. Members that
// only Binnacle defines, such as call_id, are added to the error object of OpenAI or
// Anthropic. If RetryAfterMS is 0, retry_after_ms is the time in RetryAfter.
func (e *Error) Doc(kind string) any {
	doc := *e
	doc.RetryAfterMS = e.retryAfterMS()
	if !anthropic(kind) {
		return Body{&doc}
	}
	return AnthropicBody{Type: "error", RequestID: e.CallID, Error: AnthropicError{Type: anthropicType(e.Status), Message: e.Message, Code: e.Code,
		Param: e.Param, Pointer: e.Pointer, ReasonCode: e.ReasonCode, Hint: e.Hint, CallID: e.CallID, DecisionID: e.DecisionID, DidYouMean: e.DidYouMean, ReceiptID: e.ReceiptID,
		Retryable: e.Retryable, RetryAfterMS: doc.RetryAfterMS}}
}

// retryAfterMS returns RetryAfterMS or, if it is 0, the time in RetryAfter in milliseconds.
func (e *Error) retryAfterMS() int64 {
	if seconds, err := strconv.ParseInt(e.RetryAfter, 10, 32); err == nil && e.RetryAfterMS == 0 {
		return seconds * 1000
	}
	return e.RetryAfterMS
}

// responsesError is the last event of a failed stream of OpenAI's Responses API. Its members are
// those of Error in one object with those of the event.
type responsesError struct {
	*Error
	CallID         string  `json:"call_id"`
	Param          *string `json:"param"`
	ReceiptID      string  `json:"receipt_id"`
	SequenceNumber int     `json:"sequence_number"`
	Type           string  `json:"type"`
}

// Event returns the error as a server-sent event that ends a stream of the given kind.
func (e *Error) Event(kind string) []byte {
	name, doc := "", e.Doc(kind)
	switch kind {
	case llm.Messages:
		name = "event: error\n"
	case llm.Responses:
		name = "event: error\n"
		own := *e
		own.RetryAfterMS = e.retryAfterMS()
		event := responsesError{Error: &own, Type: "error", SequenceNumber: 1 << 20, CallID: e.CallID, ReceiptID: e.ReceiptID}
		if e.Param != "" {
			event.Param = &own.Param
		}
		doc = event
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return nil
	}
	return fmt.Appendf(nil, "%sdata: %s\n\n", name, b)
}
