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
	exitUsage   = 2 // the command line is wrong
	exitDenied  = 3 // policy denied the call
	exitNoMesh  = 4 // no mesh responds at the address
	exitAuth    = 5 // the token is missing or not accepted
	exitDiffers = 6 // replay found a difference
	exitPending = 7 // the call waits for approval
	exitFork    = 8 // a witness found two histories of the log
)

// codes maps exit codes to error codes in JSON, for errors that are not responses of the
// mesh.
var codes = map[int]string{exitFailed: "failed", exitUsage: "usage", exitDenied: contract.CodeDenied, exitNoMesh: "no_mesh", exitAuth: "token", exitDiffers: "differs",
	exitPending: "pending_approval", exitFork: "fork"}

// errSilent is wrapped by an error whose message has already been printed, so that end
// does not print it.
var errSilent = errors.New("")

// exitError is an error with an exit code.
type exitError struct {
	code int
	err  error
	doc  map[string]any // the error response of the mesh, if there was one
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// document returns the error as JSON members: code, message, field (the invalid field,
// if there is one) and the other members of the mesh's error response.
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

// end prints a command's error, if it is not nil, and returns the exit code. For
// structured formats it also writes the error as a document, unless output was already
// written.
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
