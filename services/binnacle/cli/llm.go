package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
)

// keyCmd makes, lists and revokes virtual keys.
func keyCmd(ctx context.Context, c *env) error {
	actor := c.fs.String("actor", "", "who calls with the key, for create: a principal that has agreed; default the caller")
	maker := c.fs.String("maker", "", "who may make the key, for consent")
	var scopes, models, tags list
	c.fs.Var(&scopes, "scope", "what it may be used for; may be repeated; none = llm:call; for consent, the most")
	c.fs.Var(&models, "model", "pattern of models, e.g. 'openai/*'; may be repeated; none = every model")
	c.fs.Var(&tags, "tag", "carried by every call; may be repeated")
	budget := c.fs.Float64("budget", 0, "US dollars that may be spent per --window; 0 = not bounded")
	window := c.fs.String("window", "total", "of the budget: day, month or total")
	rate := c.fs.Int64("rate", 0, "calls per --rate-window; 0 = not bounded")
	rateWindow := c.fs.String("rate-window", "minute", "second, minute or hour")
	concurrent := c.fs.Int64("concurrent", 0, "calls at once; 0 = not bounded")
	cache := c.fs.Bool("cache", false, "answers kept from before will do")
	ttl := c.fs.Duration("ttl", 0, "how long it holds, 0 = for good; for consent, until when it must be made, 0 = 24 h")
	reason := c.fs.String("reason", "", "why, for revoke")
	verb, rest, err := c.verb("create ID [--actor WHO] | list | revoke ID --reason WHY | consent ID --maker WHO --scope S … | withdraw ID")
	if err != nil {
		return err
	}
	switch verb {
	case "create":
		if err := c.want(rest, 1, "create ID [--actor WHO]"); err != nil {
			return err
		}
		req := gateway.KeyRequest{ID: rest[0], Actor: *actor, Scopes: scopes, Models: models, Tags: tags, Budget: int64(math.Round(*budget * 1e6)), Rate: *rate, Concurrent: *concurrent,
			Cache: *cache, TTLMS: ttl.Milliseconds()}
		if req.Budget > 0 {
			req.BudgetWindow = *window
		}
		if req.Rate > 0 {
			req.RateWindow = *rateWindow
		}
		resp, err := c.request(ctx, http.MethodPost, "/api/v1/keys", req, nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var out gateway.KeyResponse
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			return err
		}
		return c.print(out, func() { fmt.Fprintln(c.out, out.Key) })
	case "list":
		var keys []map[string]any
		if err := c.get(ctx, "/api/v1/keys", &keys); err != nil {
			return err
		}
		return c.print(keys, func() {
			for _, k := range keys {
				state := "stands"
				if e, ok := k["expires"].(string); ok && e != "" && e <= contract.Time(time.Now()) {
					state = "expired"
				}
				if r, ok := k["revoked"].(string); ok && r != "" {
					state = "revoked: " + r
				}
				fmt.Fprintf(c.out, "%-20v %-20v %s\n", k["id"], k["actor"], state)
			}
		})
	case "consent", "withdraw":
		if err := c.want(rest, 1, verb+" ID"); err != nil {
			return err
		}
		return c.consent(ctx, verb, rest[0], *maker, scopes, *ttl)
	case "revoke":
		if err := c.want(rest, 1, "revoke ID --reason WHY"); err != nil {
			return err
		}
		return c.say(c.governed(ctx, "policy.revoke_key", map[string]string{"id": rest[0], "reason": *reason}))
	}
	return fail(exitUsage, "usage: binnacle key create|list|revoke|consent|withdraw")
}

// llmCmd shows how models did, and what they cost.
func llmCmd(ctx context.Context, c *env) error {
	since := c.fs.Duration("since", 24*time.Hour, "window that ends now")
	by := c.fs.String("by", "model", "for spend, a list of: key, model, tag, day, actor, provider")
	verb, rest, err := c.verb("stats | spend [--by key,day] [--since D]")
	if err != nil {
		return err
	}
	if err := c.want(rest, 0, verb); err != nil {
		return err
	}
	q := url.Values{"from": {time.Now().Add(-*since).UTC().Format(time.RFC3339)}}
	switch verb {
	case "stats":
		var rows []llm.ModelStats
		if err := c.get(ctx, "/api/v1/llm/stats?"+q.Encode(), &rows); err != nil {
			return err
		}
		return c.print(rows, func() {
			fmt.Fprintf(c.out, "%-32s %7s %7s %8s %8s %8s %8s\n", "model", "calls", "ok", "p50 ms", "p95 ms", "p99 ms", "first p50")
			for _, r := range rows {
				fmt.Fprintf(c.out, "%-32s %7d %6.1f%% %8d %8d %8d %8d\n", r.Provider+"/"+r.Model, r.Attempts, 100*r.SuccessRate, r.LatencyMS.P50, r.LatencyMS.P95, r.LatencyMS.P99, r.FirstMS.P50)
			}
		})
	case "spend":
		q.Set("by", *by)
		var rows []llm.Spend
		if err := c.get(ctx, "/api/v1/llm/spend?"+q.Encode(), &rows); err != nil {
			return err
		}
		return c.print(rows, func() {
			for _, r := range rows {
				var at []string
				for _, d := range strings.Split(*by, ",") {
					at = append(at, r.By[d])
				}
				fmt.Fprintf(c.out, "%-48s %9d calls %12d tokens %12.6f USD\n", strings.Join(at, " "), r.Attempts, r.InputTokens+r.OutputTokens, float64(r.USDMicros)/1e6)
			}
		})
	}
	return fail(exitUsage, "usage: binnacle llm stats|spend")
}
