package apierr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/accesslog"
)

func escalated() *Escalation {
	x := &contract.Escalated{Expires: "2026-01-01T00:00:00.000Z"}
	x.Decision.ID, x.Decision.ReasonCode = "d-c-1", contract.ReasonApprovalRequired
	return &Escalation{CallID: "c-1", Doc: x}
}

// TestHandler checks the status, code and headers of the response to each kind of error,
// and that StatusAndCode returns the same status and code. If the client has
// disconnected, there is no response, and StatusAndCode returns 499 and "cancelled".
// Without an error it returns 200.
func TestHandler(t *testing.T) {
	auth := &Error{Status: http.StatusUnauthorized, Type: "authentication_error", Code: "token_missing", Message: "send a token"}
	for name, c := range map[string]struct {
		err    error
		status int
		code   string
		header string // header that must be set; empty = none
		logged int    // status in the access log; 0 means the status of the response
	}{
		"its own":         {fmt.Errorf("call: %w", BadRequest("/x", "want a y")), 400, "invalid_input", "", 0},
		"not found":       {NotFound("no x"), 404, "not_found", "", 0},
		"unavailable":     {Unavailable("the ledger does not respond"), 503, "unavailable", "Retry-After", 0},
		"no credential":   {auth, 401, "token_missing", "WWW-Authenticate", 0},
		"an escalation":   {escalated(), 403, "approval_pending", "Retry-After", 0},
		"no such path":    {echo.ErrNotFound, 404, "not_found", "", 0},
		"no such method":  {echo.ErrMethodNotAllowed, 405, "http_error", "", 0},
		"anything else":   {errors.New("a bug"), 500, "internal", "", 0},
		"the client left": {context.Canceled, 200, "cancelled", "", accesslog.StatusClientLeft},
	} {
		t.Run(name, func(t *testing.T) {
			rec := httptest.NewRecorder()
			ctx := echo.New().NewContext(httptest.NewRequest("GET", "/x", nil), rec)
			Handler(func() *slog.Logger { return slog.New(slog.DiscardHandler) })(c.err, ctx)
			var doc struct {
				Error struct{ Code, Message string }
			}
			_ = json.Unmarshal(rec.Body.Bytes(), &doc)
			if rec.Code != c.status || rec.Body.Len() > 0 && (doc.Error.Code != c.code || doc.Error.Message == "") {
				t.Errorf("%d %s", rec.Code, rec.Body)
			}
			if c.header != "" && rec.Header().Get(c.header) == "" {
				t.Error("headers", rec.Header())
			}
			want := c.status
			if c.logged != 0 {
				want = c.logged
			}
			if status, code := StatusAndCode(c.err); status != want || code != c.code {
				t.Errorf("logged %d %s, want %d %s", status, code, want, c.code)
			}
		})
	}
	if status, code := StatusAndCode(nil); status != 200 || code != "" {
		t.Error(status, code)
	}
}

// TestCommitted checks that Handler writes nothing to a response that has begun.
func TestCommitted(t *testing.T) {
	rec := httptest.NewRecorder()
	ctx := echo.New().NewContext(httptest.NewRequest("GET", "/x", nil), rec)
	_ = ctx.String(200, "begun")
	Handler(slog.Default)(errors.New("too late"), ctx)
	if rec.Body.String() != "begun" {
		t.Error(rec.Body)
	}
}

// TestShapes checks an error in the shape of each API, as a document and as the last
// event of a stream, and the error types for nine HTTP statuses.
func TestShapes(t *testing.T) {
	e := &Error{Status: 429, Type: "rate_limit_error", Code: "denied", Message: "slow down", Param: "/x", Pointer: "/args/x", ReasonCode: "R", Hint: "wait", CallID: "c-1", DecisionID: "d-c-1", ReceiptID: "r-c-1"}
	for kind, c := range map[string]struct{ doc, event string }{
		llm.Chat: {`{"error":{"message":"slow down","type":"rate_limit_error","code":"denied","param":"/x","pointer":"/args/x","reason_code":"R","hint":"wait","call_id":"c-1","decision_id":"d-c-1","receipt_id":"r-c-1"}}`, "data: "},
		llm.Messages: {`{"error":{"call_id":"c-1","code":"denied","decision_id":"d-c-1","hint":"wait","message":"slow down","param":"/x","pointer":"/args/x","reason_code":"R","receipt_id":"r-c-1","type":"rate_limit_error"},"request_id":"c-1","type":"error"}`,
			"event: error\ndata: "},
		llm.Responses: {`{"error":{"message":"slow down","type":"rate_limit_error","code":"denied","param":"/x","pointer":"/args/x","reason_code":"R","hint":"wait","call_id":"c-1","decision_id":"d-c-1","receipt_id":"r-c-1"}}`, "event: error\ndata: "},
	} {
		b, err := json.Marshal(e.Doc(kind))
		if err != nil || string(b) != c.doc {
			t.Errorf("%s: %s %v", kind, b, err)
		}
		event := string(e.Event(kind))
		if !strings.HasPrefix(event, c.event) || !strings.HasSuffix(event, "\n\n") || !strings.Contains(event, "slow down") {
			t.Errorf("%s: %q", kind, event)
		}
	}
	for status, want := range map[int][2]string{400: {"invalid_request_error", "invalid_request_error"}, 401: {"authentication_error", "authentication_error"}, 403: {"permission_error", "permission_error"},
		404: {"invalid_request_error", "not_found_error"}, 413: {"invalid_request_error", "request_too_large"}, 429: {"rate_limit_error", "rate_limit_error"}, 500: {"server_error", "api_error"},
		503: {"server_error", "overloaded_error"}, 504: {"server_error", "timeout_error"}} {
		if got := [2]string{TypeOf(status), anthropicType(status)}; got != want {
			t.Errorf("%d: %v, want %v", status, got, want)
		}
	}
}

// TestOfOutcome checks the errors for outcomes with different statuses, error codes and
// reason codes: the status, the type, and the seconds after which the call can be
// repeated. A success has no error.
func TestOfOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		status, code, reason string // status and error code of the effect, reason code of the receipt
		http                 int
		typ, retry           string
	}{
		"denied":                 {contract.Denied, "", contract.ReasonUnknownTool, 403, "permission_error", ""},
		"denied, malformed":      {contract.Denied, "", contract.ReasonSchemaViolation, 400, "invalid_request_error", ""},
		"denied, frozen":         {contract.Denied, "", contract.ReasonSystemFrozen, 503, "permission_error", "2"},
		"denied, no second try":  {contract.Denied, "", contract.ReasonLedgerTruncated, 503, "permission_error", ""},
		"denied, too late":       {contract.Denied, "", contract.ReasonApprovalTimeout, 403, "permission_error", ""},
		"denied by a bundle":     {contract.Denied, "", "DENY_X", 403, "permission_error", ""},
		"timed out":              {contract.TimedOut, "", "", 504, "server_error", ""},
		"cancelled":              {contract.Cancelled, "", "", 499, "server_error", ""},
		"cancelled by a freeze":  {contract.Cancelled, contract.CodeSystemFrozen, "", 503, "server_error", "2"},
		"fenced":                 {contract.Cancelled, contract.CodeBudgetFenced, "", 503, "server_error", "2"},
		"expired":                {contract.Expired, "", "", 503, "server_error", "2"},
		"unknown":                {contract.Unknown, "", "", 500, "server_error", ""},
		"failed, invalid":        {contract.Failed, contract.CodeInvalidInput, "", 400, "invalid_request_error", ""},
		"failed, internal":       {contract.Failed, contract.CodeInternal, "", 500, "server_error", ""},
		"failed, another's code": {contract.Failed, "x", "", 502, "server_error", ""},
	} {
		r := &contract.Recorded{}
		r.Effect.Status, r.Effect.ErrorCode, r.Receipt.ReasonCode = c.status, c.code, c.reason
		if e := OfOutcome(r); e.Status != c.http || e.Type != c.typ || e.RetryAfter != c.retry {
			t.Errorf("%s: %d %s, retry after %q", name, e.Status, e.Type, e.RetryAfter)
		}
	}
	if e := OfOutcome(&contract.Recorded{Effect: contract.Effect{Status: contract.Succeeded}}); e != nil {
		t.Errorf("succeeded: %+v", e)
	}
}

// TestBudgetRetry checks RetryAfter of a denial for an exceeded budget. It is one second
// more than the time until the budget is available again, or two seconds if that time is
// unknown.
func TestBudgetRetry(t *testing.T) {
	r := &contract.Recorded{Decision: &contract.Decision{Time: "2026-01-01T00:00:00.000Z", Facts: []byte(`{"budget":{"retry_at":"2026-01-01T00:01:00.000Z"}}`)}}
	r.Effect.Status, r.Receipt.ReasonCode = contract.Denied, contract.ReasonBudgetExceeded
	if e := OfOutcome(r); e.RetryAfter != "61" || e.Status != http.StatusTooManyRequests || e.Type != "rate_limit_error" {
		t.Errorf("%+v", e)
	}
	r.Decision.Facts = []byte(`{}`)
	if e := OfOutcome(r); e.RetryAfter != "2" {
		t.Errorf("%+v", e)
	}
}

// TestPointBy checks that PointBy finds the argument that an executor's message names,
// and ignores messages that name none.
func TestPointBy(t *testing.T) {
	for _, c := range []struct{ kind, args, message, param, pointer string }{
		{"tool.x", `{"text":"a"}`, "text: too long", "", "/args/text"},
		{"tool.x", `{"text":"a"}`, "text/0/b: too long", "", "/args/text/0/b"},
		{"tool.x", `{"text":"a"}`, "other: too long", "", ""},
		{"tool.x", `{"text":"a"}`, "the text: too long", "", ""},
		{"tool.x", `{"text":"a"}`, "too long", "", ""},
		{"tool.x", `[`, "text: too long", "", ""},
		{llm.Chat, `{}`, "/messages/0: no role", "/messages/0", ""},
		{llm.Chat, `{}`, "messages: no role", "", ""},
	} {
		e := &Error{}
		if e.PointBy(c.message, c.kind, []byte(c.args)); e.Param != c.param || e.Pointer != c.pointer {
			t.Errorf("%s %s: %q %q", c.kind, c.message, e.Param, e.Pointer)
		}
	}
}

// TestBeneath checks that Beneath makes errors about a nested request, or about its
// members, point into the outer body, and does not change other errors.
func TestBeneath(t *testing.T) {
	for param, want := range map[string]string{"/model": "/args/model", WholeBody: "/args", "limit": "limit", "": ""} {
		var e *Error
		if errors.As(Beneath("/args", BadRequest(param, "x")), &e); e.Param != want {
			t.Errorf("%q: %q, want %q", param, e.Param, want)
		}
	}
	if e := (&Error{Status: 404, Param: "/model"}); !errors.Is(Beneath("/args", e), e) || e.Param != "/model" {
		t.Error(e.Param)
	}
}

// TestSuggest checks the message of an error with suggestions.
func TestSuggest(t *testing.T) {
	e := &Error{Message: "/args/txt breaks additionalProperties."}
	if e.Suggest(nil); e.DidYouMean != nil || !strings.HasSuffix(e.Message, ".") {
		t.Errorf("%+v", e)
	}
	if e.Suggest([]string{"text", "tex"}); len(e.DidYouMean) != 2 || e.Message != "/args/txt breaks additionalProperties; did you mean text or tex?" {
		t.Errorf("%+v", e)
	}
}
