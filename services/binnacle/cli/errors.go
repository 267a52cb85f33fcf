package cli

import (
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Exit codes of every command. Scripts depend on them, so they do not change.
const (
	exitOK      = 0
	exitFailed  = 1 // the command failed, or the verified evidence is invalid
	exitUsage   = 2 // the command line or the configuration is invalid
	exitDenied  = 3 // policy denied the call, or the token lacks a scope
	exitNoMesh  = 4 // no mesh responds at the address
	exitAuth    = 5 // the token is missing or not accepted
	exitDiffers = 6 // replay found a difference
	exitPending = 7 // the call waits for approval
	exitFork    = 8 // a witness found two histories of the log
)

// codes maps exit codes to the codes in error documents, for errors that are not
// responses of the mesh.
var codes = map[int]string{exitFailed: "failed", exitUsage: "usage", exitDenied: contract.CodeDenied, exitNoMesh: "no_mesh", exitAuth: "token", exitDiffers: "differs",
	exitPending: "pending_approval", exitFork: "fork"}

// errSilent is wrapped by an error that end does not print, because the command has
// already printed its help or its answer.
var errSilent = errors.New("")

// exitError is an error with an exit code.
type exitError struct {
	code int
	err  error
	doc  map[string]any // further members of the error document, such as those of the mesh's error response; a code or message among them replaces that of the error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// document returns the error as JSON members: code and message, unless doc has them, and
// the members of doc. The member param of doc becomes field, the invalid field.
func (e *exitError) document(err error) map[string]any {
	out := map[string]any{"code": codes[e.code], "message": err.Error()}
	for k, v := range e.doc {
		out[k] = v
	}
	if field, ok := out["param"]; ok {
		out["field"] = field
		delete(out, "param")
	}
	return out
}

// fail returns an error with an exit code.
func fail(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// end prints a command's error, unless it is nil or wraps errSilent, and returns the
// exit code. In a structured format it also writes the error as a document to standard
// output, unless output was already written.
func (c *env) end(err error) int {
	if err == nil {
		return exitOK
	}
	x := &exitError{code: exitFailed, err: err}
	errors.As(err, &x)
	if errors.Is(err, errSilent) {
		return x.code
	}
	fmt.Fprintln(c.errOut, "binnacle:", err)
	if w, ok := c.out.(*written); c.structured() && (!ok || w.n == 0) {
		_ = c.print(map[string]any{"error": x.document(err)}, nil)
	}
	return x.code
}
