package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newJobCmd returns the command job, which follows calls that were made with --async.
func newJobCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "job COMMAND",
		Short: "List, show, await and cancel calls that were made with --async",
		Long: `List, show, await and cancel calls that were made with --async. The state of a call is on
the ledger: it survives restarts, and every gateway of the mesh returns it.`,
		Example: "  id=$(binnacle call cmd.spin '{\"how\":\"nap\"}' --async)\n  binnacle job wait $id\n  binnacle job list",
	}, newJobListCmd(c), newJobShowCmd(c), newJobWaitCmd(c), newJobCancelCmd(c))
}

// jobState is the state of a call.
type jobState struct {
	Status    string          `json:"status"`
	ReceiptID string          `json:"receipt_id"`
	Error     string          `json:"error"`
	ErrorCode string          `json:"error_code"`
	Output    json.RawMessage `json:"output"`
	Queued    int64           `json:"queue_position"`
	Progress  *callProgress   `json:"progress"`
}

// job sends a request about a call, GET for its state or DELETE to cancel it, and
// returns the call's state with the response's bytes.
func job(ctx context.Context, c *env, method, id string) (s jobState, raw []byte, err error) {
	resp, err := c.request(ctx, method, "/api/v1/calls/"+url.PathEscape(id), nil, nil)
	if err != nil {
		return s, nil, err
	}
	defer resp.Body.Close()
	if raw, err = io.ReadAll(resp.Body); err != nil {
		return s, nil, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, nil, fmt.Errorf("the mesh's response cannot be read: %w", err)
	}
	return s, raw, nil
}

func newJobShowCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use: "show CALL", Short: "Print the state of a call", Example: "  binnacle job show c-ABC", Args: takes(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			_, raw, err := job(cmd.Context(), c, http.MethodGet, pos[0])
			if err != nil {
				return err
			}
			return c.printRaw(raw, func() { fmt.Fprintln(c.out, indent(raw)) })
		},
	}
}

// listedJob is a call in the list of jobs.
type listedJob struct {
	CallID     string `json:"call_id"`
	Session    string `json:"session_id"`
	Kind       string `json:"kind"`
	Tool       string `json:"tool"`
	Status     string `json:"status"`
	Verdict    string `json:"verdict,omitempty"`
	ReasonCode string `json:"reason_code,omitempty"`
	ReceiptID  string `json:"receipt_id,omitempty"`
	ErrorCode  string `json:"error_code,omitempty"`
	Begin      string `json:"begin"`
	End        string `json:"end,omitempty"`
	Poll       string `json:"poll"`
	Seq        uint64 `json:"seq"`
}

func newJobListCmd(c *env) *cobra.Command {
	var limit int
	var before uint64
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List your calls that were answered before their outcome, newest first",
		Long: `List your calls that were answered before their outcome, newest first. A call with --async
that ended within a second is not among them. --before with the SEQ of the last line prints
the next page.`,
		Example:           "  binnacle job list --limit 50",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{"limit": {strconv.Itoa(limit)}}
			if before > 0 {
				q.Set("before", strconv.FormatUint(before, 10))
			}
			var list []listedJob
			if err := c.get(cmd.Context(), "/api/v1/calls?"+q.Encode(), &list); err != nil {
				return err
			}
			return c.table(list, []output.Column{{Heading: "CALL", Min: 28}, {Heading: "KIND", Min: 20}, {Heading: "STATUS", Min: 16}, {Heading: "BEGIN", Min: 24}, {Heading: "END", Min: 24}, {Heading: "SEQ"}}, func(g *output.Grid) {
				for _, j := range list {
					g.Add(j.CallID, j.Kind, j.Status, j.Begin, cmp.Or(j.End, "-"), strconv.FormatUint(j.Seq, 10))
				}
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "greatest `NUMBER` of calls, 1 to 100")
	cmd.Flags().Uint64Var(&before, "before", 0, "list the calls before the one with this `SEQ`")
	return cmd
}

// jobPoll is the time between two requests for the state of a call that is awaited.
const jobPoll = 200 * time.Millisecond

func newJobWaitCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use: "wait CALL", Short: "Wait for the outcome of a call and print its output", Long: "Wait for the outcome of a call and print its output. Exits with code 1 if it did not\nsucceed. On a terminal, a bar shows the progress that the program reports.",
		Example: "  binnacle job wait c-ABC", Args: takes(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			b := newBar(c)
			defer b.clear()
			for queued := int64(0); ; {
				s, raw, err := job(cmd.Context(), c, http.MethodGet, pos[0])
				if err != nil {
					return err
				}
				b.state(&s)
				if s.Queued != queued && s.Queued > 0 && b.to == nil {
					fmt.Fprintf(c.errOut, "the call waits for a sandbox, at position %d\n", s.Queued)
				}
				queued = s.Queued
				if s.ReceiptID == "" { // it has no outcome
					select {
					case <-cmd.Context().Done():
						return cmd.Context().Err()
					case <-time.After(jobPoll):
					}
					continue
				}
				b.clear()
				if s.Status != "succeeded" {
					return fail(exitFailed, "the call ended: %s %s: %s (receipt %s)", s.Status, s.ErrorCode, s.Error, s.ReceiptID)
				}
				return c.printRaw(raw, func() { fmt.Fprintln(c.out, indent(s.Output)) })
			}
		},
	}
}

func newJobCancelCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use: "cancel CALL", Short: "Cancel a call of yours", Long: "Request the cancellation of a call of yours. A running call is stopped, and\none that has not started does not run; one that has ended is not changed.",
		Example: "  binnacle job cancel c-ABC", Args: takes(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			_, raw, err := job(cmd.Context(), c, http.MethodDelete, pos[0])
			if err != nil {
				return err
			}
			return c.printRaw(raw, func() {})
		},
	}
}
