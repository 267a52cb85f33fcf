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

	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/work/work"
)

// declaredViews returns the views of the mesh: the views that services declare, and each
// service's view of the key registry.
func declaredViews() []view.Declaration {
	out := slices.Concat(audit.Views(), gateway.Views(), policy.Views(), llmrouter.Views(), sessionrunner.Views(), work.Views(), mcprouter.Views())
	for _, s := range services.Names() {
		out = append(out, view.Keys(s))
	}
	return out
}

// liveView is the content of a service's view, read from the running mesh.
type liveView struct {
	Name     string `json:"name"`
	Position uint64 `json:"position"`
	Dump     string `json:"dump"`
	Root     string `json:"root,omitempty"` // key id of the root key; set only in the gateway's catalog

	missing string // reason why the view could not be read; "" if it was read
}

// liveViews reads all declared views from the mesh, and returns them by name. If an
// optional view cannot be read, its field missing is set. The live views are read before
// any view is rebuilt, because a view is rebuilt up to the position of the live view.
func liveViews(ctx context.Context, c *env) (map[string]liveView, error) {
	out := map[string]liveView{}
	declared := declaredViews()
	slices.SortStableFunc(declared, func(a, b view.Declaration) int { // audit's view, sent as lines, is read last, since the replay ends at its position
		return cmp.Compare(btoi(a.Lines), btoi(b.Lines))
	})
	for _, d := range declared {
		v, err := fetchView(ctx, c, d.View)
		if err != nil && !d.Optional { // an optional view may be missing, because the mesh may run without its service
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

// fetchView reads one view from the mesh.
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

// rebuilding is a view that replay rebuilds up to the position of the live view.
type rebuilding struct {
	view.Declaration
	view.State
	live liveView
}

// begin creates the empty views to rebuild. Each may store files in its own folder below
// dir.
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

// close closes the views that have open files.
func (r *replayer) close() {
	for _, v := range r.views {
		if c, ok := v.State.(io.Closer); ok {
			c.Close()
		}
	}
}

// applyViews applies an entry to the views that read it and have not reached the position of the
// live view, except the views whose declaration sets Alone, to which besides.apply applies it.
func (r *replayer) applyViews(x *replayed) error {
	if r.reads == nil {
		return nil
	}
	for _, i := range r.reads.Of(x.Subject) {
		if v := &r.views[i]; !v.Alone && x.Seq <= v.live.Position {
			if err := v.State.Apply(x.Entry, x.event); err != nil {
				return fmt.Errorf("view %s: %w", v.Name, err)
			}
		}
	}
	return nil
}

// compareViews adds to the report the comparison of each view, or the reason
// why the view was not compared.
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

// ledgerEnd returns the sequence of the ledger's last event and the key id of the mesh's
// root key.
func ledgerEnd(ctx context.Context, c *env) (uint64, string, error) {
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/ledger?from=1&to=1", nil, nil)
	if err != nil {
		return 0, "", err
	}
	resp.Body.Close()
	to, err := strconv.ParseUint(resp.Header.Get("X-Binnacle-Ledger-Size"), 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("the mesh's response has no valid X-Binnacle-Ledger-Size: %w", err)
	}
	catalog, _, _ := services.ViewAt(services.Gateway)
	live, err := fetchView(ctx, c, catalog)
	return to, live.Root, err
}
