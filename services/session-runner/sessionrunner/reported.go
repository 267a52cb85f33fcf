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

// reportable holds the error codes that a program may report. The others are those of the
// engine.
var reportable = []string{contract.CodeArtifactFailed, contract.CodeCredentialInvalid, contract.CodeHandlerFailed, contract.CodeInvalidInput, contract.CodeResourceExhausted, contract.CodeSchemaMismatch, contract.CodeTimeout}

// maxReported is the maximum number of bytes of the document with an error.
const maxReported = 64 << 10

// reported returns the result that a failed program reports on standard output, and whether
// it reports one:
//
//	{"_error": {"code": "invalid_input", "message": "…", "pointer": "/width", "hint": "…"}}
//
// The message of the result begins with the pointer, in the form that the gateway reads,
// and ends with the hint. Secrets are redacted from it.
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
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	if e.RetryAfterMS > 0 {
		text += fmt.Sprintf("; retry after %d ms", e.RetryAfterMS)
	}
	if len(text) > maxStderr {
		text = text[:maxStderr]
	}
	return execute.Fail(e.Code, "%s", strings.ToValidUTF8(text, "\uFFFD")), true
}
