package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

type decideOptions struct {
	session, call, idempotencyKey string
	within                        time.Duration
	async                         bool
}

// newDecideCmd returns the command decide, which obtains the decision on a call that the
// caller executes.
func newDecideCmd(c *env) *cobra.Command {
	var o decideOptions
	cmd := &cobra.Command{
		Use:   "decide KIND [ARGS-JSON] | --call CALL",
		Short: "Decide a call that you execute yourself, and get its intent",
		Long: `Let policy decide a call that you execute yourself. An allowed call gives an intent;
execute exactly what it permits, then report the outcome with 'binnacle report'.`,
		Example: `  binnacle decide tool.noop '{"n":1}' --report-within 30s --session s-own
  binnacle decide --call c-0123456789`,
		Args:              takes(0, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return runDecide(cmd.Context(), c, &o, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.session, "session", "", "`NAME` of the session (s-…), or its id")
	f.DurationVar(&o.within, "report-within", time.Minute, "when you will report the outcome, at most 24h")
	f.StringVar(&o.call, "call", "", "instead of a kind: `ID` of a call of yours that was approved since")
	f.StringVar(&o.idempotencyKey, "idempotency-key", "", "`KEY` that names the call, so that it can be repeated")
	f.BoolVar(&o.async, "async", false, "return at once if the call needs approval")
	return cmd
}

// body returns the body of the request for the options and arguments.
func (o *decideOptions) body(pos []string) (map[string]any, error) {
	switch {
	case o.call == "" && len(pos) == 0 || o.call != "" && len(pos) > 0:
		return nil, fail(exitUsage, "usage: binnacle decide KIND [ARGS-JSON] --report-within DURATION | --call CALL; name a kind or a call, not both")
	case o.call == "" && (o.within < time.Millisecond || o.within > guard.MaxReportWithin):
		return nil, fail(exitUsage, "--report-within %s: want 1ms to %s", o.within, guard.MaxReportWithin)
	case o.call == "":
		args := json.RawMessage("{}")
		if len(pos) == 2 {
			if args = json.RawMessage(pos[1]); !json.Valid(args) {
				return nil, fail(exitUsage, "args are not JSON: %s", pos[1])
			}
		}
		return map[string]any{"kind": pos[0], "args": args, "report_within_ms": o.within.Milliseconds()}, nil
	}
	return map[string]any{"call_id": o.call}, nil
}

// runDecide prints the intent of an allowed call. It returns an error with exit code 7
// if the call waits for approval, and prints a warning if the intent was returned
// before, since its effect may already have started.
func runDecide(ctx context.Context, c *env, o *decideOptions, pos []string) error {
	body, err := o.body(pos)
	if err != nil {
		return err
	}

	h := session(o.session)
	if h == nil {
		h = http.Header{}
	}
	if o.idempotencyKey != "" {
		h.Set("Idempotency-Key", o.idempotencyKey)
	}
	if o.async {
		h.Set("Prefer", "respond-async")
	}
	var doc struct {
		CallID     string `json:"call_id"`
		Session    string `json:"session_id"`
		Status     string `json:"status"`
		Verdict    string `json:"verdict"`
		Reason     string `json:"reason_code"`
		IntentID   string `json:"intent_id"`
		ArgsDigest string `json:"args_digest"`
		ReportBy   string `json:"report_by"`
		Before     bool   `json:"handed_out_before"`
	}
	raw, err := c.post(ctx, "/api/v1/decide", body, h, &doc)
	if err != nil {
		if len(pos) > 0 {
			err = suggestTool(ctx, c, err, strings.TrimPrefix(pos[0], "tool."))
		}
		return err
	}
	if err := c.print(json.RawMessage(raw), func() {
		if doc.Status != "pending_approval" {
			fmt.Fprintf(c.out, "%s %s\nintent %s\nargs   %s\nreport by %s\n", doc.Verdict, doc.Reason, doc.IntentID, doc.ArgsDigest, doc.ReportBy)
		}
	}); err != nil {
		return err
	}
	if doc.Status == "pending_approval" {
		return fail(exitPending, "call %s waits for approval; `binnacle decide --call %s` takes it up", doc.CallID, doc.CallID)
	}
	if doc.Before {
		fmt.Fprintln(c.errOut, "this intent was handed out before: its effect may have begun")
	}
	return nil
}
