package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

type callOptions struct {
	session, onBehalfOf, delegation string
	async                           bool
}

// newCallCmd returns the command call, which proposes a call and prints its output.
func newCallCmd(c *env) *cobra.Command {
	var o callOptions
	cmd := &cobra.Command{
		Use:   "call TOOL|KIND [ARGS-JSON]",
		Short: "Propose a call and print its output",
		Long: `Propose a call of a tool, or of another kind, and print its output. Policy decides
the call before anything happens; its receipt and session are printed on standard
error. On a terminal, a bar shows the progress that the program reports.`,
		Example: `  binnacle call cmd.upper '{"text":"fair winds"}' --session s-tour
  binnacle call policy.freeze '{"reason":"drill"}'
  binnacle call cmd.upper '{"text":"a"}' --output yaml`,
		Args:              takes(1, 2),
		ValidArgsFunction: completeTools(c),
		RunE:              func(cmd *cobra.Command, args []string) error { return runCall(cmd.Context(), c, &o, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.session, "session", "", "`NAME` of the session (s-…), or its id")
	f.BoolVar(&o.async, "async", false, "return at once if the call needs approval, and after a second if it has no outcome; 'binnacle job' follows it")
	f.StringVar(&o.onBehalfOf, "on-behalf-of", "", "`PRINCIPAL` you act for")
	f.StringVar(&o.delegation, "delegation", "", "`ID` of the delegation that permits it")
	return cmd
}

// runCall proposes a call and prints its output. For a call with --async that has no
// outcome yet, it prints the call's id instead. It returns an error with exit code 7
// if the call waits for approval.
func runCall(ctx context.Context, c *env, o *callOptions, pos []string) error {
	args := json.RawMessage("{}")
	if len(pos) == 2 {
		if args = json.RawMessage(pos[1]); !json.Valid(args) {
			return fail(exitUsage, "args are not JSON: %s", pos[1])
		}
	}
	body := map[string]any{"kind": pos[0], "args": args}
	c.operator = guard.GovernsCell(pos[0])
	if k, ok := services.KindOf(pos[0]); !ok || k.Scope == "" || k.Callers { // not a kind that a service executes, so the name of a tool
		body["kind"], body["tool"] = "tool."+pos[0], pos[0]
	}
	h := session(o.session)
	if h == nil {
		h = http.Header{}
	}
	if o.async {
		h.Set("Prefer", "respond-async")
	}
	if o.onBehalfOf != "" {
		h.Set("X-Binnacle-On-Behalf-Of", o.onBehalfOf)
		h.Set("X-Binnacle-Delegation", o.delegation)
	}
	var doc struct {
		Output    json.RawMessage `json:"output"`
		Session   string          `json:"session_id"`
		Called    string          `json:"session"`
		ReceiptID string          `json:"receipt_id"`
		Status    string          `json:"status"`
		CallID    string          `json:"call_id"`
	}
	raw, err := c.postWatched(ctx, "/api/v1/calls", body, h, &doc)
	if err != nil {
		return suggestTool(ctx, c, err, pos[0])
	}
	if doc.Status == "pending_approval" {
		if err := c.printRaw(raw, func() {}); err != nil {
			return err
		}
		return fail(exitPending, "call %s waits for approval; `binnacle approvals list` shows it", doc.CallID)
	}
	if doc.ReceiptID == "" && doc.Output == nil {
		return c.printRaw(raw, func() {
			fmt.Fprintln(c.out, doc.CallID)
			fmt.Fprintf(c.errOut, "the call goes on; `binnacle job wait %s` waits for its outcome\n", doc.CallID)
		})
	}
	if doc.Called == "" {
		doc.Called = doc.Session
	}
	return c.printRaw(raw, func() {
		fmt.Fprintf(c.out, "%s\n", indent(doc.Output))
		fmt.Fprintf(c.errOut, "receipt %s  session %s\n", doc.ReceiptID, doc.Called)
	})
}
