package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/gateway/conform"
)

// conformCmd drives an endpoint through the conformance gates.
func conformCmd(ctx context.Context, c *env) error {
	level := c.fs.String("level", "L3", "L1 (the surface), L2 (receipts and chains), L3 (proofs); each with those before it")
	endpoint := c.fs.String("endpoint", "", "URL of the endpoint (default: the mesh at --addr)")
	root := c.fs.String("root", os.Getenv("BINNACLE_ROOT"), "key id of the root you trust, or a file holding it (default: DATA/root.kid)")
	tool := c.fs.String("tool", "cmd.upper", "a tool that the token may call")
	args := c.fs.String("args", `{"text":"conform"}`, "its arguments")
	model := c.fs.String("model", "demo/echo", "a model that the token may use")
	if _, err := c.parse(0, 0, "--level L1|L2|L3 --endpoint URL"); err != nil {
		return err
	}
	if *endpoint == "" {
		*endpoint = c.base()
	}
	if u, err := url.Parse(*endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fail(exitUsage, "--endpoint: want http(s)://host[:port], not %q", *endpoint)
	}
	if !json.Valid([]byte(*args)) {
		return fail(exitUsage, "--args: not JSON")
	}
	token, err := c.bearer()
	if err != nil {
		return err
	}
	t := conform.Target{Endpoint: strings.TrimSuffix(*endpoint, "/"), Token: token, Tool: *tool, Args: json.RawMessage(*args), Model: *model}
	if *level != "L1" {
		if t.Root, err = c.rootKID(*root); err != nil {
			return err
		}
	}
	failed := 0
	results := []conform.Result{}
	err = conform.Run(ctx, t, *level, func(r conform.Result) {
		results = append(results, r)
		if !r.Pass {
			failed++
		}
		if !*c.json {
			word := map[bool]string{true: "pass", false: "FAIL"}[r.Pass]
			fmt.Fprintf(c.out, "%s  %s %-20s %5d ms  %s\n", word, r.Level, r.Gate, r.MS, r.Claim)
			if !r.Pass {
				fmt.Fprintf(c.out, "      %s\n", r.Detail)
			}
		}
	})
	if err != nil {
		return err
	}
	doc := map[string]any{"level": *level, "endpoint": *endpoint, "gates": results, "failed": failed}
	if err := c.print(doc, func() { fmt.Fprintf(c.out, "%s: %d gates, %d failed\n", *level, len(results), failed) }); err != nil {
		return err
	}
	if failed > 0 {
		return fail(exitFailed, "%d of %d gates do not hold", failed, len(results))
	}
	return nil
}
