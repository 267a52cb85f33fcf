package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
)

// declaredViews lists the views of the mesh: those that services declare, and the
// view of keys that each of them has.
func declaredViews() []view.Declaration {
	out := slices.Concat(audit.Views(), gateway.Views(), policy.Views(), llmrouter.Views())
	for _, s := range services.Names() {
		out = append(out, view.Keys(s))
	}
	return out
}

// liveView is a service's current view.
type liveView struct {
	Name     string `json:"name"`
	Position uint64 `json:"position"`
	Dump     string `json:"dump"`
	Root     string `json:"root,omitempty"` // trust anchor, with the gateway's catalog

	missing string // why there is none
}

// liveViews fetches every declared view, by name, before anything is rebuilt: each
// has a position of its own, and the rebuilt one is taken to exactly there.
func liveViews(ctx context.Context, c *env) (map[string]liveView, error) {
	out := map[string]liveView{}
	declared := declaredViews()
	slices.SortStableFunc(declared, func(a, b view.Declaration) int { // the longest reaches furthest: it is fetched last
		return cmp.Compare(btoi(a.Lines), btoi(b.Lines))
	})
	for _, d := range declared {
		v, err := fetchView(ctx, c, d.View)
		if err != nil && !d.Optional { // an executor may be down; what decides may not
			return nil, err
		} else if err != nil {
			v.missing = err.Error()
		}
		out[d.Name] = v
	}
	return out, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fetchView reads one live view.
func fetchView(ctx context.Context, c *env, of services.View) (v liveView, err error) {
	path := "/api/v1/views/" + of.Path
	if !of.Lines {
		return v, c.get(ctx, path, &v)
	}
	resp, err := c.request(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	dump, err := io.ReadAll(resp.Body)
	if err != nil {
		return v, err
	}
	first, _, _ := bytes.Cut(dump, []byte("\n"))
	if err := json.Unmarshal(first, &v); err != nil {
		return v, fmt.Errorf("view %s: %w", of.Name, err)
	}
	v.Dump = string(dump)
	return v, nil
}

// rebuilding is a view that replay builds, up to the position of the live one.
type rebuilding struct {
	view.Declaration
	view.State
	live liveView
}

// begin prepares the views; each may fill a folder of its own below dir.
func (r *replayer) begin(dir string, live map[string]liveView, declared []view.Declaration) (err error) {
	if r.reads, err = view.Select(declared); err != nil {
		return err
	}
	for _, d := range declared {
		o := view.Origin{RootKID: r.trust.Root, Keys: r.trust.At, Open: r.open, Dir: filepath.Join(dir, d.Name)}
		s, err := d.Empty(&o)
		if err != nil {
			return fmt.Errorf("view %s: %w", d.Name, err)
		}
		r.views = append(r.views, rebuilding{d, s, live[d.Name]})
	}
	return nil
}

// close closes the views that hold files.
func (r *replayer) close() {
	for _, v := range r.views {
		if c, ok := v.State.(io.Closer); ok {
			c.Close()
		}
	}
}

// applyViews folds an entry into the views that read it and are not yet where the
// live ones are; e is nil where the entry holds no event.
func (r *replayer) applyViews(en eventlog.Entry, e *contract.Event) error {
	if r.reads == nil {
		return nil
	}
	for _, i := range r.reads.Of(en.Subject) {
		if v := &r.views[i]; en.Seq <= v.live.Position {
			if err := v.State.Apply(en, e); err != nil {
				return fmt.Errorf("view %s: %w", v.Name, err)
			}
		}
	}
	return nil
}

// compareViews adds the comparison of each view to the report.
func (r *replayer) compareViews() error {
	for _, v := range r.views {
		if v.live.missing != "" {
			r.rep.Views = append(r.rep.Views, viewResult{Name: v.Name, NotCompared: v.live.missing, Equal: true})
			continue
		}
		rebuilt, err := v.State.Dump()
		if err != nil {
			return fmt.Errorf("view %s: %w", v.Name, err)
		}
		r.compare(v.Name, v.live.Position, []byte(v.live.Dump), rebuilt)
	}
	return nil
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
	catalog, _, _ := services.ViewAt(services.Gateway)
	live, err := fetchView(ctx, c, catalog)
	return to, live.Root, err
}
