package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// newKeyCmd returns the command key, which creates, lists and revokes virtual keys, and
// gives and withdraws consent to keys that call as the caller.
func newKeyCmd(c *env) *cobra.Command {
	var reason string
	revoke := governedCmd(c, &cobra.Command{
		Use:     "revoke ID --reason WHY",
		Short:   "Revoke a virtual key",
		Example: "  binnacle key revoke docs-bot --reason replaced",
		Args:    takes(1, 1),
	}, "policy.revoke_key", func(pos []string) any { return map[string]string{"id": pos[0], "reason": reason} })
	reasonFlag(revoke, &reason)
	return group(&cobra.Command{
		Use:     "key COMMAND",
		Short:   "Make, list and revoke virtual keys; agree to one that calls as you",
		Example: "  binnacle key create docs-bot --model 'demo/*' --budget 5 --window month\n  binnacle key list",
	},
		newKeyCreateCmd(c),
		&cobra.Command{
			Use:               "list",
			Short:             "List the virtual keys",
			Example:           "  binnacle key list",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return listVirtualKeys(cmd.Context(), c, time.Now()) },
		},
		revoke,
		newConsentCmd(c),
		&cobra.Command{
			Use:               "withdraw ID",
			Short:             "Withdraw your consent to a key that calls as you",
			Example:           "  binnacle key withdraw docs-bot",
			Args:              takes(1, 1),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, args []string) error {
				return sendConsent(cmd.Context(), c, http.MethodDelete, args[0], nil)
			},
		},
	)
}

type keyOptions struct {
	request gateway.KeyRequest
	budget  float64 // budget in US dollars; 0: no limit
	window  string  // window of the budget: day, month or total
	rate    string  // window of the rate limit: second, minute or hour
	ttl     time.Duration
}

func newKeyCreateCmd(c *env) *cobra.Command {
	var o keyOptions
	cmd := &cobra.Command{
		Use:               "create ID",
		Short:             "Make a virtual key and print it; it cannot be shown again",
		Example:           "  binnacle key create docs-bot --actor robot --model 'openai/*' --tag docs --budget 5 --window month",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return createKey(cmd.Context(), c, args[0], &o) },
	}
	f, r := cmd.Flags(), &o.request
	f.StringVar(&r.Actor, "actor", "", "`WHO` calls with the key: a principal that has agreed (default the caller)")
	f.StringArrayVar(&r.Scopes, "scope", nil, "`SCOPE` it may be used for; may be repeated; none is llm:call")
	f.StringArrayVar(&r.Kinds, "kind", nil, "`KIND` of the calls it is for, such as tool.cmd.upper or 'tool.web.*', and for no reads; may be repeated; none is whatever its scopes allow")
	f.StringArrayVar(&r.Models, "model", nil, "`PATTERN` of models such as 'openai/*'; may be repeated; none is every model")
	f.StringArrayVar(&r.Tags, "tag", nil, "`TAG` that every call carries; may be repeated")
	f.Float64Var(&o.budget, "budget", 0, "US `DOLLARS` that may be spent per --window; 0 is without limit")
	f.StringVar(&o.window, "window", "total", "`WINDOW` of the budget: day, month or total")
	f.Int64Var(&r.Rate, "rate", 0, "`CALLS` per --rate-window; 0 is without limit")
	f.StringVar(&o.rate, "rate-window", "minute", "`WINDOW` of the rate: second, minute, hour or total")
	f.Int64Var(&r.Concurrent, "concurrent", 0, "`CALLS` at once; 0 is without limit")
	f.BoolVar(&r.Cache, "cache", false, "answers may come from the cache")
	f.DurationVar(&o.ttl, "ttl", 0, "how long it is valid; 0 is without end")
	flagWords(cmd, "scope", token.All...)
	complete(cmd, "model", completeModels(c))
	flagWords(cmd, "window", "day", "month", "total")
	flagWords(cmd, "rate-window", "second", "minute", "hour", "total")
	return cmd
}

func newConsentCmd(c *env) *cobra.Command {
	var scopes []string
	var maker string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:               "consent ID --maker WHO --scope SCOPE…",
		Short:             "Consent that another principal creates a key that calls as you",
		Example:           "  binnacle key consent docs-bot --maker admin --scope llm:call",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if maker == "" || len(scopes) == 0 {
				return fail(exitUsage, "key consent requires --maker and at least one --scope")
			}
			if ttl == 0 {
				ttl = 24 * time.Hour
			}
			return sendConsent(cmd.Context(), c, http.MethodPost, args[0], gateway.ConsentRequest{Maker: maker, Scopes: scopes, TTLMS: ttl.Milliseconds()})
		},
	}
	f := cmd.Flags()
	f.StringVar(&maker, "maker", "", "`WHO` may make the key")
	f.StringArrayVar(&scopes, "scope", nil, "`SCOPE` that the key may have at most; may be repeated")
	f.DurationVar(&ttl, "ttl", 0, "until when the key must be made; 0 is 24h")
	flagWords(cmd, "scope", token.All...)
	return cmd
}

// createKey creates a virtual key and prints it. The mesh stores only a digest of the
// key, so it cannot be printed again.
func createKey(ctx context.Context, c *env, id string, o *keyOptions) error {
	req := o.request
	req.ID, req.Budget, req.TTLMS = id, int64(math.Round(o.budget*1e6)), o.ttl.Milliseconds()
	if req.Budget > 0 {
		req.BudgetWindow = o.window
	}
	if req.Rate > 0 {
		req.RateWindow = o.rate
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
	for _, pattern := range req.Models {
		if hint := nearModel(ctx, c, pattern); hint != "" {
			fmt.Fprintf(c.errOut, "note: --model %s allows no model of the mesh%s\n", pattern, hint)
		}
	}
	return c.print(out, func() { fmt.Fprintln(c.out, out.Key) })
}

// nearModel returns the question that ends a note about a pattern for which the mesh has
// no model, with similar names, or "" if there are none. A pattern that ends with /* is
// compared with the names of providers. It is no error: a model may be added later.
func nearModel(ctx context.Context, c *env, pattern string) string {
	provider, all := strings.CutSuffix(pattern, "/*")
	if strings.ContainsAny(provider, `*?[\`) {
		return ""
	}
	if !all {
		return near(ctx, c, pattern, modelNames)
	}
	return near(ctx, c, provider, func(ctx context.Context, c *env) ([]string, error) {
		names, err := modelNames(ctx, c)
		for i := range names {
			names[i], _, _ = strings.Cut(names[i], "/")
		}
		return slices.Compact(names), err
	})
}

func listVirtualKeys(ctx context.Context, c *env, now time.Time) error {
	var keys []map[string]any
	if err := c.get(ctx, "/api/v1/keys", &keys); err != nil {
		return err
	}
	return c.table(keys, []output.Column{{Heading: "ID", Min: 19}, {Heading: "ACTOR", Min: 19}, {Heading: "STATE"}}, func(g *output.Grid) {
		for _, k := range keys {
			state := "active"
			if e, ok := k["expires"].(string); ok && e != "" && e <= contract.Time(now) {
				state = "expired"
			}
			if r, ok := k["revoked"].(string); ok && r != "" {
				state = "revoked: " + r
			}
			g.Add(fmt.Sprint(k["id"]), fmt.Sprint(k["actor"]), state)
		}
	})
}

// sendConsent gives consent to a virtual key that calls as the caller (POST), or
// withdraws it (DELETE).
func sendConsent(ctx context.Context, c *env, method, id string, body any) error {
	resp, err := c.request(ctx, method, "/api/v1/keys/"+url.PathEscape(id)+"/consent", body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return sayCall(c, resp.Body)
}
