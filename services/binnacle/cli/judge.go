package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// newJudgeCmd returns the command judge, which scores a recorded session against a
// rubric.
func newJudgeCmd(c *env) *cobra.Command {
	var session, rubric string
	cmd := &cobra.Command{
		Use:               "judge --session SESSION --rubric FILE",
		Short:             "Score a recorded session against a rubric",
		Long:              "Let a model score a recorded session against a rubric. The judgement is recorded, and\ncites the events on which it is based; a judgement that cites other events is invalid, and\nthe command fails.",
		Example:           "  binnacle judge --session s-tour --rubric rubric.yaml",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runJudge(cmd.Context(), c, session, rubric) },
	}
	f := cmd.Flags()
	f.StringVar(&session, "session", "", "`NAME` of the session to judge (s-…), or its id")
	f.StringVar(&rubric, "rubric", "", "YAML `FILE`")
	return cmd
}

// runJudge requests a judgement and prints it. For a judgement that is recorded as
// invalid, such as one that cites events outside the session, it returns an error, and
// in the table format prints nothing.
func runJudge(ctx context.Context, c *env, session, rubric string) error {
	if session == "" || rubric == "" {
		return fail(exitUsage, "judge requires --session and --rubric")
	}
	b, err := os.ReadFile(rubric)
	if err != nil {
		return err
	}
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/judgements", map[string]string{"session": session, "rubric": string(b)}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var doc struct {
		Output json.RawMessage `json:"output"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return err
	}
	var v struct {
		Valid         bool     `json:"valid"`
		Invalid       string   `json:"invalid_reason"`
		Score         float64  `json:"score"`
		Justification string   `json:"justification"`
		Citations     []string `json:"citations"`
	}
	if err := json.Unmarshal(doc.Output, &v); err != nil {
		return err
	}
	if err := c.print(doc.Output, func() {
		if v.Valid {
			fmt.Fprintf(c.out, "score %g\n%s\ncites %s\n", v.Score, v.Justification, strings.Join(v.Citations, ", "))
		}
	}); err != nil {
		return err
	}
	if !v.Valid {
		return fail(exitFailed, "the judgement is invalid: %s", v.Invalid)
	}
	return nil
}
