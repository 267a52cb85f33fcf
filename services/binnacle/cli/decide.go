package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// decide gets the decision on a call that the caller executes itself.
func decide(ctx context.Context, c *env) error {
	ses := c.fs.String("session", "", "session of the call")
	within := c.fs.Duration("report-within", time.Minute, "when you will report the outcome, at most 24h")
	call := c.fs.String("call", "", "instead of a kind: a call of yours that was approved since")
	idem := c.fs.String("idempotency-key", "", "names the call, so that it can be repeated")
	async := c.fs.Bool("async", false, "if the call needs approval, come back at once")
	pos, err := c.parse(0, 2, "KIND [ARGS-JSON] --report-within DURATION | --call CALL")
	if err != nil {
		return err
	}
	body := map[string]any{"call_id": *call}
	switch {
	case *call == "" && len(pos) == 0 || *call != "" && len(pos) > 0:
		return fail(exitUsage, "usage: binnacle decide KIND [ARGS-JSON] --report-within DURATION | --call CALL")
	case *call == "" && (*within < time.Millisecond || *within > guard.MaxReportWithin):
		return fail(exitUsage, "--report-within %s: want 1ms to %s", *within, guard.MaxReportWithin)
	case *call == "":
		args := json.RawMessage("{}")
		if len(pos) == 2 {
			if args = json.RawMessage(pos[1]); !json.Valid(args) {
				return fail(exitUsage, "args are not JSON: %s", pos[1])
			}
		}
		body = map[string]any{"kind": pos[0], "args": args, "report_within_ms": within.Milliseconds()}
	}
	h := session(*ses)
	if h == nil {
		h = http.Header{}
	}
	if *idem != "" {
		h.Set("Idempotency-Key", *idem)
	}
	if *async {
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

// report reports the outcome of a call that the caller executed itself.
func report(ctx context.Context, c *env) error {
	status := c.fs.String("status", "succeeded", "succeeded, failed, timed_out or cancelled")
	digest := c.fs.String("args-digest", "", "the intent's args_digest")
	output := c.fs.String("output", "", "JSON that the call gave")
	code := c.fs.String("error-code", "", "of a failure")
	message := c.fs.String("error", "", "of a failure, in words")
	usage := c.fs.String("usage", "", `JSON: {"cents": 1, "cpu_ms": 20, …}; without it what was reserved counts as used`)
	pos, err := c.parse(1, 1, "INTENT --args-digest DIGEST [--status STATUS] [--output JSON]")
	if err != nil {
		return err
	}
	if *digest == "" {
		return fail(exitUsage, "--args-digest: name the digest that the intent permits")
	}
	body := map[string]any{"args_digest": *digest, "status": *status}
	for name, v := range map[string]string{"error_code": *code, "error_message": *message} {
		if v != "" {
			body[name] = v
		}
	}
	for name, v := range map[string]string{"output": *output, "usage": *usage} {
		if v == "" {
			continue
		}
		if !json.Valid([]byte(v)) {
			return fail(exitUsage, "--%s is not JSON: %s", name, v)
		}
		body[name] = json.RawMessage(v)
	}
	var doc struct {
		ReceiptID string `json:"receipt_id"`
		Session   string `json:"session_id"`
		Status    string `json:"status"`
		Late      bool   `json:"late"`
		Repeated  bool   `json:"repeated"`
	}
	raw, err := c.post(ctx, "/api/v1/intents/"+url.PathEscape(pos[0])+"/outcome", body, nil, &doc)
	if err != nil {
		return err
	}
	return c.print(json.RawMessage(raw), func() {
		said := "attested by you alone"
		if doc.Late {
			said = "the report came too late and is a fact of its own"
		}
		if doc.Repeated {
			said += "; it was recorded before"
		}
		fmt.Fprintf(c.out, "%s: %s (receipt %s, session %s)\n", doc.Status, said, doc.ReceiptID, doc.Session)
	})
}
