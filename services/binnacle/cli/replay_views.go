package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// liveView is a service's current view.
type liveView struct {
	Name     string `json:"name"`
	Position uint64 `json:"position"`
	Dump     string `json:"dump"`
	Root     string `json:"root,omitempty"` // trust anchor, with the gateway's

	missing string // why there is none
}

// liveViews fetches the views first: each has a position of its own, and the
// rebuilt one is taken to exactly there.
func liveViews(ctx context.Context, c *env) (map[string]liveView, []byte, error) {
	out := map[string]liveView{}
	views := []string{"gateway", "gateway-authority", "policy", "policy-budget", "policy-starts", "llm-router"}
	for _, s := range services.Names() {
		views = append(views, "keys-"+s)
	}
	for _, s := range views {
		var v liveView
		if err := c.get(ctx, "/api/v1/views/"+s, &v); err != nil {
			if !strings.HasPrefix(s, "keys-") { // an executor may be down; what decides may not
				return nil, nil, err
			}
			v.missing = err.Error()
		}
		out[s] = v
	}
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/views/audit", nil, nil)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	dump, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	first, _, _ := bytes.Cut(dump, []byte("\n"))
	var v liveView
	if err := json.Unmarshal(first, &v); err != nil {
		return nil, nil, fmt.Errorf("audit's view: %w", err)
	}
	out["audit"] = v
	return out, dump, nil
}

// ledgerEnd is the ledger's last sequence, and the root it is under.
func ledgerEnd(ctx context.Context, c *env) (uint64, string, error) {
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/ledger?from=1&to=1", nil, nil)
	if err != nil {
		return 0, "", err
	}
	resp.Body.Close()
	to, err := strconv.ParseUint(resp.Header.Get("X-Binnacle-Ledger-Size"), 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("the mesh does not tell its ledger's size: %w", err)
	}
	var live liveView
	err = c.get(ctx, "/api/v1/views/gateway", &live)
	return to, live.Root, err
}
