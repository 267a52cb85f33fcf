package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// governed proposes a call of a kind that a service of the mesh executes, and returns
// its output. The call is an operator's if the kind governs the whole mesh. governed
// returns an error with exit code 7 if the call waits for approval.
func (c *env) governed(ctx context.Context, kind string, args any) (json.RawMessage, error) {
	c.operator = c.operator || guard.GovernsCell(kind)
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/calls", map[string]any{"kind": kind, "tool": kind, "args": args}, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return outputOf(resp.Body)
}

// outputOf returns the output in a response to a call, or an error with exit code 7 if
// the call waits for approval.
func outputOf(body io.Reader) (json.RawMessage, error) {
	var doc struct {
		Output json.RawMessage `json:"output"`
		Status string          `json:"status"`
		CallID string          `json:"call_id"`
	}
	if err := json.NewDecoder(body).Decode(&doc); err != nil {
		return nil, err
	}
	if doc.Status == "pending_approval" {
		return nil, fail(exitPending, "call %s waits for approval; `binnacle approvals list` shows it", doc.CallID)
	}
	return doc.Output, nil
}

// sayCall prints the output in a response to a call.
func sayCall(c *env, body io.Reader) error { return c.say(outputOf(body)) }

// say prints the output of a governed call, or returns err if it is not nil.
func (c *env) say(out json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	return c.print(out, func() { fmt.Fprintln(c.out, indent(out)) })
}

// governedCmd sets cmd to propose a call of a kind and print its output, and returns
// cmd. The function args converts the arguments of the command line to the call's
// arguments.
func governedCmd(c *env, cmd *cobra.Command, kind string, args func(pos []string) any) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, pos []string) error {
		return c.say(c.governed(cmd.Context(), kind, args(pos)))
	}
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	return cmd
}
