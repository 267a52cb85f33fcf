package run

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/binnacle-mesh/binnacle/pkg/admin"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/logs"
	"github.com/binnacle-mesh/binnacle/pkg/metrics"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Process holds the parts of a process that its services share: the configuration that
// is reloaded, the metrics, and the admin listener.
type Process struct {
	Live    *Live
	Metrics *metrics.Registry
	Admin   string // bound address of the admin listener; "" if it is off
	Ready   atomic.Bool
}

// StartProcess starts the admin listener and the reloading of the configuration; both end
// with ctx. It also turns core dumps off, because the memory of a service may contain
// secrets. now is the current configuration, and load reads it again; if load is nil,
// nothing is reloaded. The caller sets Ready once its services accept work. An error means
// that core dumps cannot be turned off, or that the admin listener cannot be started.
func StartProcess(ctx context.Context, now *config.Loaded, load func() (*config.Loaded, error), level *logs.Level) (*Process, error) {
	if err := private.NoCoreDumps(); err != nil {
		return nil, fmt.Errorf("core dumps cannot be turned off: %w", err)
	}
	p := &Process{Metrics: NewMetrics()}
	p.Live = &Live{Load: load, Level: level, Metrics: p.Metrics}
	p.Live.Start(ctx, now)
	s := &admin.Server{Metrics: p.Metrics.Handler(), Level: level, Ready: p.ready, Config: func() any { return shownConfig(p.Live.Config()) }}
	addr, err := s.Start(ctx, now.Config.Admin.Listen)
	if err != nil {
		return nil, err
	}
	if p.Admin = addr; addr != "" {
		slog.Info("admin listener", "addr", addr)
	}
	return p, nil
}

// ready reports whether Ready is set and every part of every instance is ready, and
// returns the document of /readyz, which lists the parts by instance.
func (p *Process) ready(ctx context.Context) (bool, any) {
	doc := struct {
		Ready     bool                `json:"ready"`
		Instances map[string][]Health `json:"instances"`
	}{p.Ready.Load(), map[string][]Health{}}
	for _, v := range p.Live.instances() {
		parts := v.Health(ctx)
		for _, h := range parts {
			doc.Ready = doc.Ready && h.OK
		}
		doc.Instances[v.Instance] = parts
	}
	return doc.Ready, doc
}

// shownConfig returns the document of /config: the configuration file and its digest
// and, for each member that the program reads, the value, its origin, and whether it may
// change while the program runs. Private values are shown as Value.Shown returns them.
func shownConfig(l *config.Loaded) any {
	type member struct {
		Pointer string `json:"pointer"`
		Value   any    `json:"value"`
		Origin  string `json:"origin"`
		Reload  bool   `json:"reload"`
	}
	out := struct {
		File     string   `json:"file"`
		Digest   string   `json:"digest"`
		Settings []member `json:"settings"`
	}{l.File, l.Digest, []member{}}
	for i := range l.Values {
		v := &l.Values[i]
		out.Settings = append(out.Settings, member{v.Pointer, v.Shown(), v.Origin, v.Reload})
	}
	return out
}
