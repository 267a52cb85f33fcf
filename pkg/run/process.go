package run

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/binnacle-mesh/binnacle/pkg/admin"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/logs"
	"github.com/binnacle-mesh/binnacle/pkg/metrics"
)

// Process is what a process has beside its services: the configuration that it follows,
// its figures, and the admin listener that shows them.
type Process struct {
	Live    *Live
	Metrics *metrics.Registry
	Admin   string // address of the admin listener; "" where there is none
	Ready   atomic.Bool
}

// StartProcess follows the configuration that load reads, now in force, and opens the
// admin listener. Both end with ctx. Where load is nil the configuration is not followed. Ready is for the caller to set once its services
// take work.
func StartProcess(ctx context.Context, now *config.Loaded, load func() (*config.Loaded, error), level *logs.Level) (*Process, error) {
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

// ready reports whether every part of every instance in the process is ready, and the
// parts.
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

// shownConfig is the document of /config: every member that the program reads, and
// where it is from.
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
