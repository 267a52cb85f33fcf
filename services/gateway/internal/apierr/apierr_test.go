package apierr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
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

// TestMembers checks that an error has each of its members, with the same value, in the shape of
// each API, as a document and as the last event of a stream, and that each shape has retry_after_ms
// from RetryAfter.
func TestMembers(t *testing.T) {
	e := &Error{Status: 429, RetryAfter: "3"}
	for v, f := range reflect.ValueOf(e).Elem().Fields() {
		switch {
		case v.Tag.Get("json") == "-":
		case f.Kind() == reflect.String:
			f.SetString("of " + v.Name)
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.Kind() == reflect.Slice:
			f.Set(reflect.ValueOf([]string{"of " + v.Name}))
		}
	}
	b, err := json.Marshal(e)
	var want map[string]any
	if err != nil || json.Unmarshal(b, &want) != nil {
		t.Fatal(string(b), err)
	}
	delete(want, "type") // each API has its own
	want["retry_after_ms"] = 3000.0
	if len(want) != 12 || want["retryable"] != true {
		t.Errorf("members: %v", want)
	}
	for _, kind := range append([]string{""}, llm.Kinds...) {
		doc, err := json.Marshal(e.Doc(kind))
		if err != nil {
			t.Fatal(err)
		}
		_, event, _ := strings.Cut(string(e.Event(kind)), "data: ")
		for form, text := range map[string]string{"document": string(doc), "event": event} {
			var got map[string]any
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Errorf("%q, %s: %v", kind, form, err)
			}
			if inner, ok := got["error"].(map[string]any); ok {
				got = inner
			}
			for name, v := range want {
				if !reflect.DeepEqual(got[name], v) {
					t.Errorf("%q, %s: %s is %v, want %v", kind, form, name, got[name], v)
				}
			}
		}
	}
}

// TestOfOutcome checks the errors for outcomes with different statuses, error codes and
// reason codes: the status, the type, the seconds after which the call can be repeated, and
// whether a repetition may succeed. A success has no error.
func TestOfOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		status, code, reason string // status and error code of the effect, reason code of the receipt
		http                 int
		typ, retry           string
		retryable            bool
	}{
		"denied":                 {contract.Denied, "", contract.ReasonUnknownTool, 403, "permission_error", "", false},
		"denied, malformed":      {contract.Denied, "", contract.ReasonSchemaViolation, 400, "invalid_request_error", "", false},
		"denied, frozen":         {contract.Denied, "", contract.ReasonSystemFrozen, 503, "permission_error", "2", true},
		"denied, no second try":  {contract.Denied, "", contract.ReasonLedgerTruncated, 503, "permission_error", "", false},
		"denied, too late":       {contract.Denied, "", contract.ReasonApprovalTimeout, 403, "permission_error", "", true},
		"denied by a bundle":     {contract.Denied, contract.CodeTimeout, "DENY_X", 403, "permission_error", "", false},
		"timed out":              {contract.TimedOut, contract.CodeTimeout, "", 504, "server_error", "", true},
		"timed out, no code":     {contract.TimedOut, "", "", 504, "server_error", "", false},
		"cancelled":              {contract.Cancelled, contract.CodeCancelled, "", 499, "server_error", "", false},
		"cancelled by a freeze":  {contract.Cancelled, contract.CodeSystemFrozen, "", 503, "server_error", "2", true},
		"fenced":                 {contract.Cancelled, contract.CodeBudgetFenced, "", 503, "server_error", "2", true},
		"expired":                {contract.Expired, contract.CodeIntentExpired, "", 503, "server_error", "2", true},
		"unknown":                {contract.Unknown, contract.CodeExecutorLost, "", 500, "server_error", "", false},
		"invalid input":          {contract.Failed, contract.CodeInvalidInput, "", 400, "invalid_request_error", "", false},
		"invalid output":         {contract.Failed, contract.CodeInvalidOutput, "", 502, "server_error", "", false},
		"schema mismatch":        {contract.Failed, contract.CodeSchemaMismatch, "", 409, "invalid_request_error", "", false},
		"handler failed":         {contract.Failed, contract.CodeHandlerFailed, "", 502, "server_error", "", false},
		"timeout":                {contract.Failed, contract.CodeTimeout, "", 504, "server_error", "", true},
		"session unavailable":    {contract.Failed, contract.CodeSessionUnavailable, "", 503, "server_error", "2", true},
		"artifact failed":        {contract.Failed, contract.CodeArtifactFailed, "", 502, "server_error", "", true},
		"resource exhausted":     {contract.Failed, contract.CodeResourceExhausted, "", 502, "server_error", "", false},
		"credential invalid":     {contract.Failed, contract.CodeCredentialInvalid, "", 502, "server_error", "", false},
		"internal":               {contract.Failed, contract.CodeInternal, "", 500, "server_error", "", false},
		"failed, another's code": {contract.Failed, "x", "", 502, "server_error", "", false},
	} {
		r := &contract.Recorded{}
		r.Effect.Status, r.Effect.ErrorCode, r.Receipt.ReasonCode = c.status, c.code, c.reason
		if e := OfOutcome(r); e.Status != c.http || e.Type != c.typ || e.RetryAfter != c.retry || e.Retryable != c.retryable {
			t.Errorf("%s: %d %s, retry after %q, retryable %t", name, e.Status, e.Type, e.RetryAfter, e.Retryable)
		}
	}
	r := &contract.Recorded{Effect: contract.Effect{Status: contract.Denied, ErrorCode: contract.CodeDenied}, Receipt: contract.Receipt{ReasonCode: contract.ReasonSchemaViolation}}
	if e := OfOutcome(r); e.Code != contract.CodeInvalidInput || e.ReasonCode != contract.ReasonSchemaViolation || e.Hint == "" || e.Message != "invalid input: SCHEMA_VIOLATION: The arguments violate the tool's input schema." {
		t.Errorf("arguments that violate the schema: %+v", e)
	}
	r.Receipt.ReasonCode = "DENY_X"
	if e := OfOutcome(r); e.Code != contract.CodeDenied || e.Message != "denied by policy: DENY_X" {
		t.Errorf("denied by a bundle: %+v", e)
	}
	if e := OfOutcome(&contract.Recorded{Effect: contract.Effect{Status: contract.Succeeded}}); e != nil {
		t.Errorf("succeeded: %+v", e)
	}
}

// TestOfProgram checks the members that come from the message of an error that a program reported.
func TestOfProgram(t *testing.T) {
	for message, want := range map[string]struct {
		hint      string
		ms        int64
		retryable bool
	}{
		"width: too wide; hint: use 9":                {"use 9", 0, false},
		"busy; retry after 5 ms":                      {"", 5, true},
		"busy; hint: wait; or stop; retry after 7 ms": {"wait; or stop", 7, true},
		"busy; retry after 5 ms, or never":            {"", 0, false},
		"busy; retry after 1234567890123 ms":          {"", 0, false},
		"busy":                                        {"", 0, false},
	} {
		r := &contract.Recorded{Effect: contract.Effect{Status: contract.Failed, ErrorCode: contract.CodeHandlerFailed, ErrorMessage: message}}
		if e := OfOutcome(r); e.Hint != want.hint || e.RetryAfterMS != want.ms || e.Retryable != want.retryable || e.Message != message {
			t.Errorf("%s: %+v", message, e)
		}
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
