package cli

import (
	"errors"
	"fmt"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // the command did not succeed, or what it checked does not verify
	exitUsage   = 2 // the command line is wrong
	exitDenied  = 3 // policy denied the call
	exitNoMesh  = 4 // no mesh answers at the address
	exitAuth    = 5 // the token is missing or not accepted
	exitDiffers = 6 // replay found a difference
	exitPending = 7 // the call waits for approval
	exitFork    = 8 // a witness caught the log with two histories
)

// codes name the exit codes in JSON errors where the mesh sent no code.
var codes = map[int]string{exitFailed: "failed", exitUsage: "usage", exitDenied: "denied", exitNoMesh: "no_mesh", exitAuth: "token", exitDiffers: "differs",
	exitPending: "pending_approval", exitFork: "fork"}

// errSilent is the cause of an error that says nothing more than its exit code.
var errSilent = errors.New("")

// exitError carries an exit code.
type exitError struct {
	code int
	err  error
	doc  map[string]any // the mesh's own error, if it sent one
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// document is the error as JSON: code, message, field where one is wrong, and the
// other members of the mesh's error.
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

// fail is an error with an exit code.
func fail(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// end reports how a command ended and returns its exit code.
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
