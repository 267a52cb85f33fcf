// Package apierr defines the errors that the gateway's APIs return, and converts them to
// the shape of each API. It does not depend on routes or services.
package apierr

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/hostpath"
)

// Error is the error type of the gateway's APIs. Its JSON form is OpenAI's error object
// with further members.
type Error struct {
	Status  int    `json:"-"`
	Message string `json:"message"`           // description of the error
	Type    string `json:"type"`              // OpenAI's error type
	Code    string `json:"code"`              // error code; docs/reference/errors.md lists the codes of Binnacle, tools may add others
	Param   string `json:"param,omitempty"`   // place of the error: a JSON pointer into the body, "body", or the name of a header or parameter
	Pointer string `json:"pointer,omitempty"` // JSON pointer in the call, /args/…, of the wrong argument

	ReasonCode string   `json:"reason_code,omitempty"`  // policy's reason code; docs/reference/reasons.md lists the built-in ones
	Hint       string   `json:"hint,omitempty"`         // advice for the caller, for example after a denial or an escalation
	DidYouMean []string `json:"did_you_mean,omitempty"` // names that are similar to a wrong one
	CallID     string   `json:"call_id,omitempty"`
	DecisionID string   `json:"decision_id,omitempty"`
	ReceiptID  string   `json:"receipt_id,omitempty"`
	Retryable  bool     `json:"retryable,omitempty"` // the same request may succeed later
	RetryAfter string   `json:"-"`                   // value of the header Retry-After, in seconds

	RetryAfterMS int64 `json:"retry_after_ms,omitempty"` // time in milliseconds after which the same request may succeed
}

// Error implements error. It returns Message.
func (e *Error) Error() string { return e.Message }

// Suggest adds names that are similar to a wrong one to e, and to its message.
func (e *Error) Suggest(names []string) {
	if len(names) == 0 {
		return
	}
	e.DidYouMean = names
	e.Message = strings.TrimSuffix(e.Message, ".") + "; did you mean " + strings.Join(names, " or ") + "?"
}

// BadRequest returns the error (400) for a request in which param is wrong.
func BadRequest(param, message string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: contract.CodeInvalidInput, Param: param, Message: message}
}

// NotFound returns the error (404) for something that does not exist or that the caller
// may not see.
func NotFound(message string) *Error {
	return &Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: contract.CodeNotFound, Message: message}
}

// Unavailable returns the error (503) for a temporary failure. The caller may retry
// after two seconds.
func Unavailable(message string) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: "server_error", Code: contract.CodeUnavailable, Message: message, RetryAfter: "2"}
}

// Quota returns the error (429) for a request that exceeds a quota of its tenant. The
// caller may retry after the given number of seconds.
func Quota(param, message string, seconds int) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeQuotaExceeded, Param: param, Message: message, RetryAfter: strconv.Itoa(seconds)}
}

// ReadsExceeded returns the error (429) for a read that would hold more than the tenant's
// part of a limit. The caller may retry after a second.
func ReadsExceeded(message string) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeReadsExceeded, Message: message, RetryAfter: "1"}
}

// Unreadable returns the error for the output of a call that cannot be read because of
// err: 410 if err wraps contract.ErrErased, because the output is lost for good, and
// otherwise that of Unavailable.
func Unreadable(call string, err error) *Error {
	if !errors.Is(err, contract.ErrErased) {
		return Unavailable("the output cannot be read now: " + err.Error())
	}
	e := Erased("the output of call " + call + " was erased; its receipt remains on the ledger")
	e.CallID, e.ReceiptID = call, receipt.ID(call)
	return e
}

// Erased returns the error (410) for content that was erased.
func Erased(message string) *Error {
	return &Error{Status: http.StatusGone, Type: "invalid_request_error", Code: contract.CodeContentErased, Message: message}
}

// OfOutcome returns the error for an outcome that is not a success, or nil for a
// success. Code is that of contract.Recorded.ErrorCode. Retryable is that of the reason code of a
// denial, and otherwise that of the error code, or true if the message of a program's error states
// when to retry.
func OfOutcome(r *contract.Recorded) *Error {
	e := &Error{Message: r.Effect.ErrorMessage, Code: r.ErrorCode(), Type: "server_error", ReasonCode: r.Receipt.ReasonCode,
		Retryable: contract.Codes[r.ErrorCode()].Retryable, CallID: r.Receipt.CallID, DecisionID: r.Receipt.DecisionID, ReceiptID: r.Receipt.ID}
	switch r.Effect.Status {
	case contract.Succeeded:
		return nil
	case contract.Denied:
		e.Status, e.Type = http.StatusForbidden, "permission_error"
		e.Message = "denied by policy: " + r.Receipt.ReasonCode
		if e.Code == contract.CodeInvalidInput {
			e.Message = "invalid input: " + r.Receipt.ReasonCode
		}
		e.ofReason(r)
	case contract.TimedOut:
		e.Status = http.StatusGatewayTimeout
	case contract.Cancelled:
		if e.Status = 499; r.Effect.ErrorCode == contract.CodeSystemFrozen || r.Effect.ErrorCode == contract.CodeBudgetFenced {
			e.Status, e.RetryAfter = http.StatusServiceUnavailable, "2"
		}
	case contract.Expired:
		e.Status, e.RetryAfter = http.StatusServiceUnavailable, "2"
	case contract.Unknown, contract.DeadLettered:
		e.Status = http.StatusInternalServerError
	default:
		e.ofCode()
		e.ofProgram()
	}
	return e
}

// retryRE matches the end of a message with which a program states when to retry.
var retryRE = regexp.MustCompile(`; retry after ([0-9]{1,12}) ms$`)

// ofProgram sets Hint, RetryAfterMS and Retryable from the end of the message of an error that a
// program reported, in the form that the session-runner writes: "; hint: TEXT; retry after N ms".
// A part that is absent changes no member. The message is unchanged.
func (e *Error) ofProgram() {
	text := e.Message
	if m := retryRE.FindStringSubmatch(text); m != nil {
		e.RetryAfterMS, _ = strconv.ParseInt(m[1], 10, 64) // at most 12 digits
		e.Retryable, text = true, strings.TrimSuffix(text, m[0])
	}
	if _, hint, ok := strings.Cut(text, "; hint: "); ok {
		e.Hint = hint
	}
}

// ofReason completes the error for a denial from the registry of reason codes: the
// status, the type, the hint, the message, Retryable and RetryAfter. For an exceeded
// budget, RetryAfter depends on the decision's facts. ofReason does nothing for a reason
// code that is not in the registry.
func (e *Error) ofReason(r *contract.Recorded) {
	info, ok := contract.Reasons[r.Receipt.ReasonCode]
	if !ok {
		return // a reason code that a policy bundle defines is not in the registry
	}
	e.Status, e.Hint, e.Retryable = info.Status, info.Hint, info.Retryable
	e.Message += ": " + info.Meaning
	if info.Status == http.StatusBadRequest {
		e.Type = "invalid_request_error"
	}
	if info.Status == http.StatusTooManyRequests {
		e.Type = "rate_limit_error"
	}
	if !info.Retryable || info.Status != http.StatusTooManyRequests && info.Status != http.StatusServiceUnavailable {
		return
	}
	e.RetryAfter = "2"
	var facts struct {
		Budget struct {
			RetryAt string `json:"retry_at"`
		} `json:"budget"`
	}
	if r.Decision == nil || json.Unmarshal(r.Decision.Facts, &facts) != nil {
		return
	}
	at, err1 := contract.ParseTime(facts.Budget.RetryAt)
	now, err2 := contract.ParseTime(r.Decision.Time)
	if err1 == nil && err2 == nil {
		e.RetryAfter = strconv.Itoa(int(max(at.Sub(now), 0).Seconds()) + 1)
	}
}

// ofCode sets the status, the type and RetryAfter from the registry of error
// codes. For a code that is not in it, the status is 502.
func (e *Error) ofCode() {
	info, ok := contract.Codes[e.Code]
	if !ok {
		info.Status = http.StatusBadGateway
	}
	if e.Status = info.Status; e.Status < 500 {
		e.Type = "invalid_request_error"
	}
	if info.Retryable && (info.Status == http.StatusTooManyRequests || info.Status == http.StatusServiceUnavailable) {
		e.RetryAfter = "2"
	}
}

// Handler returns the function that converts the error of a handler into a response. For
// an error of an unknown type the response has status 500, and the error is logged to
// the logger that log returns. The function sends nothing if a response has begun, or if
// the error is context.Canceled, which means that the client has disconnected.
func Handler(log func() *slog.Logger) echo.HTTPErrorHandler {
	return func(err error, c echo.Context) { respond(log, err, c) }
}

func respond(log func() *slog.Logger, err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	var e *Error
	var he *echo.HTTPError
	var esc *Escalation
	switch {
	case errors.As(err, &e):
	case errors.As(err, &esc):
		e = esc.APIError()
	case errors.As(err, &he):
		e = &Error{Status: he.Code, Type: "invalid_request_error", Code: contract.CodeHttpError, Message: http.StatusText(he.Code)}
		if he.Code == http.StatusNotFound {
			e.Code, e.Message = contract.CodeNotFound, "path not found: "+c.Request().Method+" "+c.Request().URL.Path
		}
	case errors.Is(err, context.Canceled):
		return // the client has disconnected and reads no response
	default:
		log().Error("request failed", "path", c.Path(), "err", err)
		e = &Error{Status: http.StatusInternalServerError, Type: "server_error", Code: contract.CodeInternal, Message: "internal error; see the gateway's log"}
	}
	if e.RetryAfter != "" {
		c.Response().Header().Set("Retry-After", e.RetryAfter)
	}
	if h := challenge(c, e); h != "" {
		c.Response().Header().Set("WWW-Authenticate", h)
	}
	e.Message = hostpath.Strip(e.Message)
	kind, _ := c.Get(ShapeKey).(string)
	_ = c.JSON(e.Status, e.Doc(kind))
}

// ChallengeKey is the key under which a request's Challenge is stored in its echo.Context.
const ChallengeKey = "challenge"

// Challenge holds the parameters of a protected resource's challenge (RFC 9728, section 5.1).
type Challenge struct {
	Metadata string // URL of the metadata of the resource
	Scope    string // scope that most requests need
}

// challenge returns the challenge (RFC 6750, section 3) of a response with an error, or "" if it
// has none.
func challenge(c echo.Context, e *Error) string {
	x, named := c.Get(ChallengeKey).(Challenge)
	lacks := named && e.Status == http.StatusForbidden && e.Code == contract.CodeScopeMissing
	switch {
	case e.Status != http.StatusUnauthorized && !lacks:
		return ""
	case !named:
		return "Bearer"
	}
	out := `Bearer resource_metadata="` + x.Metadata + `", scope="` + x.Scope + `"`
	switch {
	case lacks:
		out += `, error="insufficient_scope"`
	case e.Code != contract.CodeTokenMissing:
		out += `, error="invalid_token"`
	}
	return out
}
