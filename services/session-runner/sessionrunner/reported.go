package sessionrunner

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
)

// errorMember is the only member of the document with which a program that exits with
// another code than 0 may report a typed error.
const errorMember = "_error"

// reportable holds the error codes that a program may report. The mesh itself sets the others.
var reportable = []string{contract.CodeArtifactFailed, contract.CodeCredentialInvalid, contract.CodeHandlerFailed, contract.CodeInvalidInput, contract.CodeResourceExhausted, contract.CodeSchemaMismatch, contract.CodeTimeout}

// maxHint is the maximum number of bytes of a hint.
const maxHint = 1024

// maxReported is the maximum number of bytes of the document with an error.
const maxReported = 64 << 10

// reported returns the result that a failed program reports on standard output, and whether
// it reports one:
//
//	{"_error": {"code": "invalid_input", "message": "…", "pointer": "/width", "hint": "…", "retry_after_ms": 5}}
//
// The message of the result begins with the pointer, and ends with the hint and the time after
// which to retry, if the program reports them, in the forms that the gateway reads. The pointer with
// the message is cut off after maxStderr bytes, and the hint after maxHint. Secrets are redacted from
// all of them.
func reported(red *redact.Redactor, stdout []byte) (execute.Result, bool) {
	if len(stdout) > maxReported || canon.CheckDepth(stdout) != nil {
		return execute.Result{}, false
	}
	body, err := red.JSON(stdout)
	if err != nil {
		return execute.Result{}, false
	}
	var doc map[string]struct {
		Code         string `json:"code"`
		Message      string `json:"message"`
		Pointer      string `json:"pointer"`
		Hint         string `json:"hint"`
		RetryAfterMS int64  `json:"retry_after_ms"`
	}
	if json.Unmarshal(body, &doc) != nil || len(doc) != 1 {
		return execute.Result{}, false
	}
	e, ok := doc[errorMember]
	if !ok || !slices.Contains(reportable, e.Code) {
		return execute.Result{}, false
	}
	text := e.Message
	if at := strings.TrimPrefix(e.Pointer, "/"); at != "" {
		text = at + ": " + text
	}
	text = text[:min(len(text), maxStderr)]
	if e.Hint != "" {
		text += "; hint: " + e.Hint[:min(len(e.Hint), maxHint)]
	}
	if e.RetryAfterMS > 0 {
		text += fmt.Sprintf("; retry after %d ms", e.RetryAfterMS)
	}
	return execute.Fail(e.Code, "%s", strings.ToValidUTF8(text, "\uFFFD")), true
}
