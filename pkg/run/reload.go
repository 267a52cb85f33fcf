package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/logs"
	"github.com/binnacle-mesh/binnacle/pkg/metrics"
)

// Reloader is implemented by a service that applies changed members of the configuration
// while it runs.
type Reloader interface {
	// Reload applies the members of c that may change at run time. Their values are
	// valid. It must not change c.
	Reload(c *config.Config)
}

// Live holds the running configuration of a process and reloads it when its file
// changes. A reload applies all changes or none: if the file is invalid, or changes a
// member that requires a restart, the running configuration is kept and the reason is
// logged. Before a reload takes effect, an event config_reloaded is appended to the
// ledger for every instance in the process that reads one of the changed members. If one
// of these events cannot be appended, others may be stored already; the reload is then
// completed before the file is read again, so that the ledger names no configuration
// that the process skipped. Live is safe for concurrent use.
type Live struct {
	Load    func() (*config.Loaded, error) // reads the configuration again; nil disables reloading
	Level   *logs.Level                    // log level of the process
	Metrics *metrics.Registry              // registry that counts reloads

	mu      sync.Mutex
	now     *config.Loaded
	tried   []byte // content of the file at Start, or at the last attempt that succeeded or was rejected
	takers  map[*Env]Service
	started *reload // reload that is not yet recorded completely, or nil
}

// reload is a valid configuration that is being recorded, before it takes effect.
type reload struct {
	next    *config.Loaded
	changed []*config.Value
	raw     []byte // content of the file
	events  map[*Env]*recording
}

// recording is the event config_reloaded of one instance. It keeps its id when it is
// appended again, so that the ledger stores it once.
type recording struct {
	event  *contract.Event
	stored bool
}

const (
	appendWithin = 10 * time.Second // timeout for appending the events of one reload
	appendAgain  = 2 * time.Second  // interval at which a reload that is not recorded is tried again, if the file is not checked at intervals
)

// Start sets the current configuration and, in a goroutine, reloads it until ctx ends:
// on SIGHUP, and when a check at each /reload/interval finds that the file has changed.
// If the interval is 0, there are no checks, except while a reload is not recorded
// completely. Without a file or Load, nothing is reloaded.
func (l *Live) Start(ctx context.Context, now *config.Loaded) {
	l.mu.Lock()
	l.now = now
	l.tried, _ = os.ReadFile(now.File) // if the read fails, the next check loads the file again
	l.mu.Unlock()
	if now.File == "" || l.Load == nil {
		return
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hup)
		for {
			var tick <-chan time.Time
			if every := l.interval(); every > 0 {
				tick = time.After(every)
			}
			select {
			case <-ctx.Done():
				return
			case <-hup:
				l.follow(ctx, true)
			case <-tick:
				l.follow(ctx, false)
			}
		}
	}()
}

// interval returns the time until the next call of follow, or 0 if only SIGHUP causes a
// call.
func (l *Live) interval() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	every := time.Duration(l.now.Config.Reload.Interval)
	if every <= 0 && l.started != nil {
		return appendAgain
	}
	return every
}

// Config returns the current configuration. The caller must not change it.
func (l *Live) Config() *config.Loaded {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// instances returns the instances that run in the process.
func (l *Live) instances() []*Env {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.takers))
}

// add registers an instance, to which reloads are applied until done is called.
func (l *Live) add(v *Env, s Service) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.takers == nil {
		l.takers = map[*Env]Service{}
	}
	l.takers[v] = s
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.takers, v)
	}
}

// follow first completes a reload that is not yet recorded; if that fails, it returns.
// It then reloads the configuration if the file has changed or force is true.
func (l *Live) follow(ctx context.Context, force bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started != nil && !l.complete(ctx) {
		return
	}
	raw, err := os.ReadFile(l.now.File)
	if err == nil && bytes.Equal(raw, l.tried) && !force {
		return
	}
	if err != nil && !force {
		return // the file cannot be read, perhaps while it is replaced; keep the current configuration
	}
	next, changed, err := l.next()
	if err == nil && len(changed) > 0 {
		l.started = &reload{next, changed, raw, map[*Env]*recording{}}
		l.complete(ctx)
		return
	}
	l.tried = raw
	if err != nil {
		for _, p := range config.Problems(err) {
			slog.Error("configuration not reloaded; the running configuration is unchanged", "file", l.now.File, "err", p)
		}
		l.Metrics.Reloaded(false)
		return
	}
	l.take(next, changed)
}

// complete records the reload l.started and then applies it. It returns false if the
// reload cannot be recorded completely now.
func (l *Live) complete(ctx context.Context) bool {
	r := l.started
	if err := l.record(ctx, r); err != nil {
		slog.Error("configuration not reloaded, retrying", "file", l.now.File, "err", err)
		return false
	}
	l.started, l.tried = nil, r.raw
	l.take(r.next, r.changed)
	return true
}

// next reads the configuration again and returns it with its changed members. It returns
// an error if the configuration is invalid, or if a changed member requires a restart.
func (l *Live) next() (next *config.Loaded, changed []*config.Value, err error) {
	if next, err = l.Load(); err != nil {
		return nil, nil, err
	}
	changed = config.Changes(l.now, next)
	var failed []error
	for _, v := range changed {
		if !v.Reload {
			failed = append(failed, &config.Problem{Pointer: v.Pointer, Message: "requires a restart: restart the process, or undo the change"})
		}
	}
	return next, changed, errors.Join(failed...)
}

// record appends an event config_reloaded for each instance that reads a changed member,
// unless an earlier call for the same reload has stored it. If the error is nil, all
// these events are stored in the ledger.
func (l *Live) record(ctx context.Context, r *reload) error {
	ctx, cancel := context.WithTimeout(ctx, appendWithin)
	defer cancel()
	for v := range l.takers {
		x := r.events[v]
		if x == nil {
			x = r.recordingOf(v)
			r.events[v] = x
		}
		if x.stored {
			continue
		}
		if _, err := v.Emit.Append(ctx, x.event); err != nil {
			return fmt.Errorf("%s: %w", v.Instance, err)
		}
		x.stored = true
	}
	return nil
}

// recordingOf returns the recording of an instance. If the instance reads no changed
// member, the recording has no event and counts as stored.
func (r *reload) recordingOf(v *Env) *recording {
	doc := contract.ConfigReloaded{Digest: r.next.Digest, Members: []string{}}
	for _, x := range r.changed {
		if x.ReadBy(v.Service) {
			doc.Members = append(doc.Members, x.Pointer)
		}
	}
	if len(doc.Members) == 0 {
		return &recording{stored: true}
	}
	return &recording{event: v.Emit.In(v.Cell.Tenant()).New(contract.EventConfigReloaded, "config", contract.Bytes(&doc), nil)}
}

// take makes next the current configuration and applies its changed members to the log
// level and to the services that implement Reloader.
func (l *Live) take(next *config.Loaded, changed []*config.Value) {
	l.now = next
	if len(changed) == 0 {
		return
	}
	var members []string
	for _, v := range changed {
		members = append(members, v.Pointer)
	}
	if slices.Contains(members, "/log/level") {
		_ = l.Level.SetName(next.Config.Log.Level) // no error: config.Load rejects an unknown level
	}
	for _, s := range l.takers {
		if r, ok := s.(Reloader); ok {
			r.Reload(&next.Config)
		}
	}
	l.Metrics.Reloaded(true)
	slog.Info("configuration reloaded", "file", next.File, "digest", next.Digest, "members", strings.Join(members, ","))
}
