package apierr

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/accesslog"
)

// Escalation is the error for a call that waits for approval. It is not a failure: the
// call is on the ledger, and its outcome can be fetched later.
type Escalation struct {
	CallID string
	Doc    *contract.Escalated
}

// Error returns a message that names the waiting call.
func (e *Escalation) Error() string { return "call " + e.CallID + " waits for approval" }

// APIError returns the escalation as an error (403, approval_pending), for APIs that
// have no response for a pending call.
func (e *Escalation) APIError() *Error {
	return &Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.CodeApprovalPending, ReasonCode: e.Doc.Decision.ReasonCode,
		CallID: e.CallID, DecisionID: e.Doc.Decision.ID, ReceiptID: receipt.ID(e.CallID), RetryAfter: "5",
		Message: "the call waits for approval until " + e.Doc.Expires + "; GET /api/v1/calls/" + e.CallID + " returns its state",
		Hint:    contract.Reasons[contract.ReasonApprovalRequired].Hint}
}

// StatusAndCode returns the HTTP status and the error code of a request that ended with
// err. They are 200 and "" if err is nil, and accesslog.StatusClientLeft and "cancelled"
// if err is context.Canceled, which means that the client disconnected.
func StatusAndCode(err error) (status int, code string) {
	var e *Error
	var esc *Escalation
	var he *echo.HTTPError
	switch {
	case err == nil:
		return http.StatusOK, ""
	case errors.As(err, &e):
	case errors.As(err, &esc):
		e = esc.APIError()
	case errors.As(err, &he) && he.Code == http.StatusNotFound:
		return he.Code, contract.CodeNotFound
	case errors.As(err, &he):
		return he.Code, contract.CodeHttpError
	case errors.Is(err, context.Canceled):
		return accesslog.StatusClientLeft, contract.CodeCancelled
	default:
		return http.StatusInternalServerError, contract.CodeInternal
	}
	return e.Status, e.Code
}
