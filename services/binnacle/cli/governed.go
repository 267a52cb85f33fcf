package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// governed proposes a call of a kind that a service of the mesh executes, and returns its
// output. The call is an operator's if the kind governs the whole mesh. If the call needs an
// approval, governed prints so at once, and returns an error with exit code 7 if the call
// still waits for it when the mesh responds.
func (c *env) governed(ctx context.Context, kind string, args any) (json.RawMessage, error) {
	return governedWithin(ctx, c, 0, kind, args)
}

// governedWithin is env.governed for a call that may take long: it waits for the outcome for as many
// seconds, of which the gateway accepts up to 600, or as long as governed does if seconds is 0.
func governedWithin(ctx context.Context, c *env, seconds int, kind string, args any) (json.RawMessage, error) {
	h := http.Header{}
	if seconds > 0 {
		h.Set("X-Binnacle-Timeout", strconv.Itoa(seconds))
	}
	return governedWith(ctx, c, h, kind, args)
}

// governedWith is env.governed with further headers of the request, to which it adds its own.
func governedWith(ctx context.Context, c *env, h http.Header, kind string, args any) (json.RawMessage, error) {
	c.operator = c.operator || guard.GovernsCell(kind)
	body := map[string]any{"kind": kind, "tool": kind, "args": args}
	// The first request ends as soon as the call is escalated, or after a second. The second
	// one, with the same key, waits for the outcome of the same call.
	h.Set("Prefer", "respond-async")
	h.Set("Idempotency-Key", "cli-"+rand.Text())
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/calls", body, h)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		return outputOf(resp.Body)
	}
	if _, err := outputOf(resp.Body); err != nil {
		fmt.Fprintf(c.errOut, "%v; waiting for another person to grant it\n", err)
	}
	h.Del("Prefer")
	again, err := c.request(ctx, http.MethodPost, "/api/v1/calls", body, h)
	if err != nil {
		return nil, err
	}
	defer again.Body.Close()
	return outputOf(again.Body)
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
