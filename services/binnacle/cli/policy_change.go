package cli

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/policy/draft"
)

// layerP0 is the layer of the ceilings, which are those of the whole mesh.
const layerP0 = "p0"

type activateOptions struct {
	layer, name, url, object string
	precedence, size         int64
}

// activatePolicy proposes the activation of a policy: a local file or folder, a bundle
// on a bundle server, or a bundle in the object store.
func activatePolicy(ctx context.Context, c *env, rest []string, o *activateOptions) error {
	args := map[string]any{"layer": "p1", "precedence": o.precedence}
	switch {
	case len(rest) == 1:
		d, err := draft.Read(rest[0])
		if err != nil {
			return fail(exitFailed, "%v", err)
		}
		args["layer"] = d.Layer
		if d.Name != "" {
			args["name"] = d.Name
		}
		if d.Layer == "p1" {
			args["bundle"] = base64.StdEncoding.EncodeToString(d.Body)
		} else {
			args["document"] = string(d.Body)
		}
	case o.url != "":
		args["url"] = o.url
		args["name"] = strings.TrimSuffix(filepath.Base(o.url), ".tar.gz")
	case o.object != "":
		args["object"] = map[string]any{"commitment": o.object, "size": o.size}
	default:
		return fail(exitUsage, "policy activate requires a PATH, --url or --object")
	}
	if o.layer != "" {
		args["layer"] = o.layer
	}
	if o.name != "" {
		args["name"] = o.name
	}
	c.operator = args["layer"] == layerP0
	return c.say(c.governed(ctx, "policy.activate", args))
}

// approveTool proposes the approval of a tool's document: the one with the given digest,
// or else the current one in the catalog.
func approveTool(ctx context.Context, c *env, rest []string) error {
	kind, digest := rest[0], ""
	if k, ok := services.KindOf(kind); !ok || k.Scope == "" || k.Prefix == services.Policy { // no kind of a call, so it is the name of a tool; a kind with the prefix policy is taken as a name too, because the documents of policy's tools cannot change and need no approval
		kind = "tool." + kind
	}
	if len(rest) == 2 {
		digest = rest[1]
	} else {
		var p struct {
			Digest string `json:"tool_schema_digest"`
		}
		name := strings.TrimPrefix(kind, "tool.")
		if err := c.get(ctx, "/api/v1/packs/"+name+"?unapproved=true", &p); err != nil {
			return suggestNames(ctx, c, err, func(code, _ string) bool { return code == contract.CodeNotFound }, name, toolNames)
		}
		digest = p.Digest
	}
	return c.say(c.governed(ctx, "policy.approve_tool", map[string]string{"kind": kind, "digest": digest}))
}

// setLimits activates the limits in a file.
func setLimits(ctx context.Context, c *env, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc guard.Limits
	if err := strictJSON(b, &doc); err != nil {
		return fail(exitUsage, "%s: want {\"limits\": […]}: %v", file, err)
	}
	if doc.Limits == nil {
		doc.Limits = []guard.Limit{}
	}
	return c.say(c.governed(ctx, "policy.set_limits", map[string]any{"limits": doc.Limits}))
}

func showLimits(ctx context.Context, c *env) error {
	var doc struct {
		Limits   []guard.Limit `json:"limits"`
		Accounts []struct {
			Account   string `json:"account"`
			Window    string `json:"window"`
			Reserved  int64  `json:"reserved"`
			Committed int64  `json:"committed"`
		} `json:"accounts"`
	}
	if err := c.get(ctx, "/api/v1/limits", &doc); err != nil {
		return err
	}
	limits := output.Grid{Columns: []output.Column{{Heading: "ID", Min: 19}, {Heading: "LIMIT"}}}
	for _, l := range doc.Limits {
		limits.Add(l.ID, fmt.Sprintf("%s of each %s per %s: at most %d %s", l.Measure, l.Level, l.Window, l.Max, l.OnExceed))
	}
	accounts := output.Grid{Columns: []output.Column{{Heading: "  ACCOUNT", Min: 41}, {Heading: "WINDOW", Min: 31}, {Heading: "USE"}}}
	for _, a := range doc.Accounts {
		accounts.Add("  "+a.Account, a.Window, fmt.Sprintf("reserved %d, committed %d", a.Reserved, a.Committed))
	}
	return c.tables(doc, &limits, &accounts)
}
