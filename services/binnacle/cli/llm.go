package cli

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newLLMCmd returns the command llm, which shows the performance and cost of models.
func newLLMCmd(c *env) *cobra.Command {
	var since time.Duration
	var by string
	stats := &cobra.Command{
		Use:               "stats",
		Short:             "Show success and latency by model",
		Example:           "  binnacle llm stats --since 1h",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return llmStats(cmd.Context(), c, since) },
	}
	spend := &cobra.Command{
		Use:               "spend",
		Short:             "Show calls, tokens and US dollars by model, key, tag, day, actor or provider",
		Example:           "  binnacle llm spend --by key,day --since 168h",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return llmSpend(cmd.Context(), c, since, by) },
	}
	for _, cmd := range []*cobra.Command{stats, spend} {
		cmd.Flags().DurationVar(&since, "since", 24*time.Hour, "length of the window, which ends now")
	}
	spend.Flags().StringVar(&by, "by", "model", "comma-separated `LIST` of key, model, tag, day, actor, provider")
	flagWords(spend, "by", "key", "model", "tag", "day", "actor", "provider")
	return group(&cobra.Command{
		Use:     "llm COMMAND",
		Short:   "Show how models performed, and what they cost",
		Example: "  binnacle llm stats\n  binnacle llm spend --by key,day",
	}, stats, spend)
}

// window returns the query parameters that select the events of a period that has the
// given length and ends now.
func window(since time.Duration) url.Values {
	return url.Values{"from": {time.Now().Add(-since).UTC().Format(time.RFC3339)}}
}

func llmStats(ctx context.Context, c *env, since time.Duration) error {
	var rows []llmrouter.ModelStats
	if err := c.get(ctx, "/api/v1/llm/stats?"+window(since).Encode(), &rows); err != nil {
		return err
	}
	columns := []output.Column{{Heading: "MODEL", Min: 31}, {Heading: "CALLS"}, {Heading: "OK"}, {Heading: "P50 MS"}, {Heading: "P95 MS"}, {Heading: "P99 MS"}, {Heading: "FIRST P50 MS"}}
	return c.table(rows, columns, func(g *output.Grid) {
		for _, r := range rows {
			g.Add(r.Provider+"/"+r.Model, fmt.Sprint(r.Attempts), fmt.Sprintf("%.1f%%", 100*r.SuccessRate),
				fmt.Sprint(r.LatencyMS.P50), fmt.Sprint(r.LatencyMS.P95), fmt.Sprint(r.LatencyMS.P99), fmt.Sprint(r.FirstByteMS.P50))
		}
	})
}

func llmSpend(ctx context.Context, c *env, since time.Duration, by string) error {
	q := window(since)
	q.Set("by", by)
	var rows []llmrouter.Spend
	if err := c.get(ctx, "/api/v1/llm/spend?"+q.Encode(), &rows); err != nil {
		return err
	}
	columns := []output.Column{{Heading: strings.ToUpper(strings.ReplaceAll(by, ",", " ")), Min: 47}, {Heading: "CALLS", Min: 14}, {Heading: "TOKENS", Min: 18}, {Heading: "COST"}}
	return c.table(rows, columns, func(g *output.Grid) {
		for _, r := range rows {
			var at []string
			for _, d := range strings.Split(by, ",") {
				at = append(at, r.By[d])
			}
			g.Add(strings.Join(at, " "), strconv.Itoa(int(r.Attempts))+" calls", fmt.Sprintf("%d tokens", r.InputTokens+r.OutputTokens), fmt.Sprintf("%.6f USD", float64(r.USDMicros)/1e6))
		}
	})
}
