package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

type reportOptions struct{ status, argsDigest, output, errorCode, message, usage string }

// newReportCmd returns the command report, which summarizes what agents did or, with an
// intent, reports the outcome of a call that the caller executed.
func newReportCmd(c *env) *cobra.Command {
	var o reportOptions
	var of activityOptions
	cmd := &cobra.Command{
		Use:   "report [INTENT --args-digest DIGEST]",
		Short: "Report what agents did, or the outcome of a call that you executed",
		Long: `Report what agents did, from the ledger: the calls that were denied and those that people
had to approve first, then those that failed, the actions that no policy decided, and the
rest, by person, repository, tool and cost. Each line has a link to its receipt. At the
end are the controls of frameworks (--controls) with the events that are evidence for them,
and what no event shows. The token needs the scope audit:read.

With an INTENT, report the outcome of a call that 'binnacle decide' permitted you to
execute. The outcome is attested by you alone. Here --output is the call's output; --json
gives the response as JSON.`,
		Example: `  binnacle report --since 168h --format html --out week.html
  binnacle report --since 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z --controls soc2,eu-ai-act
  binnacle report i-0123456789 --args-digest sha256:… --output '{"n":1}' --usage '{"cpu_ms":5}'
  binnacle report i-0123456789 --args-digest sha256:… --status failed --error-code timeout`,
		Args:              takes(0, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return runActivity(cmd, c, &of)
			}
			return runReport(cmd.Context(), c, &o, args)
		},
	}
	f := cmd.Flags()
	of.flags(cmd)
	f.StringVar(&o.status, "status", "succeeded", "`STATUS`: succeeded, failed, timed_out or cancelled")
	f.StringVar(&o.argsDigest, "args-digest", "", "the intent's args_digest, a `DIGEST`")
	f.StringVar(&o.output, "output", "", "`JSON` that the call gave")
	f.StringVar(&o.errorCode, "error-code", "", "`CODE` of a failure")
	f.StringVar(&o.message, "error", "", "`TEXT` that explains a failure")
	f.StringVar(&o.usage, "usage", "", "`JSON` such as {\"cents\": 1, \"cpu_ms\": 20}; without it what was reserved counts as used")
	flagWords(cmd, "status", contract.Succeeded, contract.Failed, contract.TimedOut, contract.Cancelled)
	return cmd
}

// runReport reports the outcome of a call that the caller executed. A report after the
// deadline is recorded, but does not change the outcome of the call.
func runReport(ctx context.Context, c *env, o *reportOptions, pos []string) error {
	if o.argsDigest == "" {
		return fail(exitUsage, "--args-digest: name the digest that the intent permits")
	}
	body := map[string]any{"args_digest": o.argsDigest, "status": o.status}
	for name, v := range map[string]string{"error_code": o.errorCode, "error_message": o.message} {
		if v != "" {
			body[name] = v
		}
	}
	for name, v := range map[string]string{"output": o.output, "usage": o.usage} {
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
