// Package pack runs the built-in packs. A pack reads one JSON document from standard
// input, and writes one to standard output. If it fails, it writes an error object, which
// the session-runner reads if the exit code is not 0.
package pack

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// The error codes that a pack may return.
const (
	InvalidInput      = "invalid_input"      // the arguments, or the document in them, are not valid
	SchemaMismatch    = "schema_mismatch"    // the target has changed since the caller has read it
	HandlerFailed     = "handler_failed"     // a service or program failed
	CredentialInvalid = "credential_invalid" // a service refused the stored secret
	ResourceExhausted = "resource_exhausted" // the work exceeds a limit of the pack
	Timeout           = "timeout"            // a service did not respond in time
)

// Error is the error of a pack. Pointer is a JSON pointer into the arguments, or "". Hint
// describes what the caller can do, or is "".
type Error struct {
	Code         string `json:"code"`
	Message      string `json:"message"`
	Hint         string `json:"hint,omitempty"`
	Pointer      string `json:"pointer,omitempty"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Fail returns an *Error with a code and a formatted message.
func Fail(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid returns an *Error for an argument. pointer is its JSON pointer.
func Invalid(pointer, format string, args ...any) *Error {
	return &Error{Code: InvalidInput, Pointer: pointer, Message: fmt.Sprintf(format, args...)}
}

// Func is a pack: it returns the output document for the input document.
type Func func(ctx context.Context, input []byte) (any, error)

// Of returns the Func of a function with typed arguments. Members of the input that In
// does not have are ignored, because the mesh has checked it against the schema.
func Of[In, Out any](f func(context.Context, In) (Out, error)) Func {
	return func(ctx context.Context, input []byte) (any, error) {
		var in In
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, Fail(InvalidInput, "arguments: %v", err)
		}
		return f(ctx, in)
	}
}

// Main runs a pack with standard input and output, and returns the exit code.
func Main(f Func, stdin io.Reader, stdout io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	input, err := io.ReadAll(stdin)
	var out any
	if err == nil {
		out, err = f(ctx, input)
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err == nil {
		err = enc.Encode(out)
	}
	code := 0
	if err != nil {
		code = 1
		body.Reset()
		_ = enc.Encode(map[string]any{"_error": typed(err)}) // an *Error has nothing that cannot be encoded
	}
	if _, err := stdout.Write(body.Bytes()); err != nil {
		return 1
	}
	return code
}

// typed returns err as an *Error.
func typed(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return Fail(Timeout, "%v", err)
	}
	return Fail(HandlerFailed, "%v", err)
}

// Bytes decodes an argument in base64, which may contain line breaks. pointer is its JSON
// pointer. It returns an error if the argument is not base64, or if it has more than limit
// bytes.
func Bytes(pointer, b64 string, limit int) ([]byte, error) {
	tooLong := Invalid(pointer, "more than %d bytes", limit)
	breaks := strings.Count(b64, "\n") + strings.Count(b64, "\r")
	if base64.StdEncoding.DecodedLen(len(b64)-breaks) > limit+2 { // with up to two bytes of padding
		return nil, tooLong
	}
	b, err := base64.StdEncoding.DecodeString(b64)
	switch {
	case err != nil:
		return nil, Invalid(pointer, "not base64: %v", err)
	case len(b) > limit:
		return nil, tooLong
	}
	return b, nil
}

// Progress reports the progress of the pack, as a percentage from 0 to 100 and a description of
// the current step. The manifest must have the member progress.
func Progress(percent int, format string, args ...any) {
	var doc struct {
		Progress struct {
			Percent int    `json:"percent"`
			Message string `json:"message"`
		} `json:"_progress"`
	}
	doc.Progress.Percent, doc.Progress.Message = percent, fmt.Sprintf(format, args...)
	if b, err := json.Marshal(doc); err == nil {
		fmt.Fprintf(os.Stderr, "%s\n", b)
	}
}
