package calls

import (
	"encoding/base64"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TerminalRequest is the body of POST /api/v1/calls/{id}/terminal.
type TerminalRequest struct {
	Close   bool   `json:"close,omitempty"`   // detach after the input
	Columns int64  `json:"columns,omitempty"` // new width of the terminal; 0: unchanged
	Cursor  int64  `json:"cursor"`            // position of the first byte of output to read
	Data    string `json:"data,omitempty"`    // input in base64, at most 64 KiB
	Key     string `json:"key"`               // the text whose SHA-256 the call names in key_digest
	Limit   int64  `json:"limit,omitempty"`   // greatest number of bytes to read, at most 65536; 0: none
	N       int64  `json:"n,omitempty"`       // number of the input, size or signal, from 1; a number that was taken is ignored
	Rows    int64  `json:"rows,omitempty"`    // new height of the terminal; 0: unchanged
	Sandbox string `json:"sandbox"`           // id of the sandbox
	Signal  string `json:"signal,omitempty"`  // HUP, INT, QUIT or TERM
	WaitMS  int64  `json:"wait_ms,omitempty"` // greatest time to wait for output after the cursor, at most 20000
}

// TerminalState is the response to a TerminalRequest.
type TerminalState struct {
	Attached bool   `json:"attached"`         // input is accepted
	Cursor   int64  `json:"cursor"`           // position after data
	Data     []byte `json:"data,omitempty"`   // output in base64
	Reason   string `json:"reason,omitempty"` // why the attachment has ended: left, displaced, silent, time, cancelled or command
	ExitCode int64  `json:"exit_code"`
	N        int64  `json:"n"`       // the last input that was taken; repeat a later one
	Skipped  int64  `json:"skipped"` // bytes before data that are no longer cached
	Status   string `json:"status"`  // of the command: running, or how it ended
}

// Terminal handles POST /api/v1/calls/{id}/terminal, for the principal of the call. The error has
// status 404 for another principal or key, and if the call is not attached, or not yet.
func (s *API) Terminal(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Tools)
	if err != nil {
		return err
	}
	var q TerminalRequest
	if _, err := body.Into(c, &q); err != nil {
		return err
	}
	data, err := base64.StdEncoding.DecodeString(q.Data)
	if err != nil {
		return apierr.BadRequest("/data", "want base64: "+err.Error())
	}
	r, err := queries.Do(c.Request().Context(), s.Runner.Queries.In(who.Tenant), sessionrunner.TerminalQuery, sessionrunner.TerminalRequest{Actor: who.Actor, CallID: c.Param("id"),
		Close: q.Close, Columns: q.Columns, Cursor: q.Cursor, Data: data, Key: q.Key, Limit: q.Limit, N: q.N, Rows: q.Rows, Sandbox: q.Sandbox, Signal: q.Signal, WaitMS: q.WaitMS})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, TerminalState{Attached: r.Attached, Cursor: r.Cursor, Data: r.Data, Reason: r.Ended, ExitCode: r.ExitCode, N: r.N, Skipped: r.Skipped, Status: r.Status})
}
