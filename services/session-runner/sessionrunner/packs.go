package sessionrunner

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// packSet holds the packs of an instance. It is safe for concurrent use. The programs of a pack
// that was replaced stay open until the last call of it has ended and the garbage collector
// finds them.
type packSet struct {
	mu     sync.RWMutex
	byName map[string]pack.Pack // by tool name
}

// get returns the pack of a tool and reports whether there is one.
func (p *packSet) get(tool string) (pack.Pack, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	one, ok := p.byName[tool]
	return one, ok
}

// all returns the packs, sorted by name.
func (p *packSet) all() []pack.Pack {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.SortedFunc(maps.Values(p.byName), func(a, b pack.Pack) int { return strings.Compare(a.Tool.Tool, b.Tool.Tool) })
}

// set replaces the packs.
func (p *packSet) set(byName map[string]pack.Pack) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byName = byName
}

// document returns the document of the pack of a kind, or nil.
func (p *packSet) document(kind string) *contract.Tool {
	if one, ok := p.get(strings.TrimPrefix(kind, "tool.")); ok && one.Tool.Kind == kind {
		return &one.Tool
	}
	return nil
}

// loadPacks reads the packs of the folder and adds those that were installed. It logs and
// omits a pack that is not valid, or that has the name of another pack or of a tool for held
// sandboxes that this instance offers.
func loadPacks(s *Service, installed []pack.Pack) (map[string]pack.Pack, error) {
	byName := map[string]pack.Pack{}
	if s.PacksDir != "" {
		lock, err := pack.ReadLock(s.Images, s.PacksDir)
		if err != nil {
			return nil, err
		}
		packs, problems := pack.Discover(s.PacksDir, lock, s.Scripts)
		for _, p := range problems {
			s.env.Log.Error("pack left out", "err", p)
		}
		addUsable(s, packs, byName)
	}
	addUsable(s, installed, byName)
	return byName, nil
}

// addUsable adds the packs that this instance may register to byName.
func addUsable(s *Service, packs []pack.Pack, byName map[string]pack.Pack) {
	var checker toolschema.Checker
	for _, p := range packs {
		if s.Images != "" && s.Held.Max > 0 && isHeld(p.Tool.Kind) {
			s.env.Log.Error("pack left out", "pack", p.Tool.Tool, "err", "a tool for held sandboxes has this name: rename the pack")
			continue
		}
		if _, taken := byName[p.Tool.Tool]; taken {
			s.env.Log.Error("pack left out", "pack", p.Tool.Tool, "err", "another pack has this name: rename one")
			continue
		}
		if err := checker.Valid(&p.Tool); err != nil {
			s.env.Log.Error("pack left out", "pack", p.Tool.Tool, "err", err)
			continue
		}
		if p.Stated != "" {
			s.env.Log.Warn("the manifest states another name than the file, which names the pack", "pack", p.Tool.Tool, "stated", p.Stated)
		}
		if err := p.Program.Problem(); err != nil && p.Tool.Sandbox.Tier != s.wasi.Tier() {
			s.env.Log.Warn("pack cannot run here", "pack", p.Tool.Tool, "err", err)
		}
		byName[p.Tool.Tool] = p
	}
}

// register records the tools of this instance: those that do not change while it runs, and the
// packs.
func (s *Service) register(ctx context.Context) error {
	tools := slices.Clone(s.fixed)
	for _, p := range s.packs.all() {
		tools = append(tools, p.Tool)
	}
	return catalog.Register(ctx, s.env.Emit, s.env.Cell.Now, services.SessionRunner, tools)
}

// reloadEvery is the interval at which packWatch searches for changed packs, and the first one at
// which it repeats a load. reloadAtMost is the last one.
const (
	reloadEvery  = 2 * time.Second
	reloadAtMost = time.Minute
)

// packWatch loads the packs again when they change.
type packWatch struct {
	state      func(context.Context) (string, error)     // returns a text that changes when the packs do
	load       func(ctx context.Context, all bool) error // loads the packs; unless all is set, only if an archive can be read that could not be read before
	incomplete func() bool                               // reports whether an archive could not be read
	log        *slog.Logger
}

// run loads the packs again when their state has changed and nothing changed for another interval.
// It does so until ctx ends. If packs cannot be loaded or an archive cannot be read, it tries again
// at intervals that double, and logs the error when it changes. loaded is the state of the packs that
// are loaded.
func (w *packWatch) run(ctx context.Context, loaded string) {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	last, tried, failure := loaded, loaded, ""
	wait, due := time.Duration(0), time.Now() // until the next attempt, unless wait is 0
	if w.incomplete() {
		wait = reloadEvery
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := w.state(ctx)
		if err != nil {
			continue // the ledger cannot be read now
		}
		if now != last {
			last = now
			continue
		}
		changed := now != tried
		if !changed && (wait == 0 || time.Now().Before(due)) {
			continue
		}
		if changed {
			wait = 0
		}
		err = w.load(ctx, changed || failure != "")
		tried = now
		if failure = w.note(ctx, err, failure); failure == "" && !w.incomplete() {
			wait = 0
			continue
		}
		wait = min(max(2*wait, reloadEvery), reloadAtMost)
		due = time.Now().Add(wait)
	}
}

// note logs the error of an attempt unless it is that of the previous one. It returns the text of the
// error, or "".
func (w *packWatch) note(ctx context.Context, err error, previous string) string {
	if err == nil {
		return ""
	}
	if err.Error() != previous && ctx.Err() == nil {
		w.log.Error("packs are not loaded again", "err", err)
	}
	return err.Error()
}

// watchPacks loads and registers the packs again when a file in their folder or a file
// images.lock has changed, or an archive was installed or removed; see packWatch.run. A call of a
// pack that changed is denied as drift until the new document is approved.
func watchPacks(ctx context.Context, s *Service, loaded string) {
	load := func(ctx context.Context, all bool) error {
		if all {
			return s.reload(ctx)
		}
		return retry(ctx, s)
	}
	(&packWatch{s.state, load, s.installed.incomplete, s.env.Log}).run(ctx, loaded)
}

// reload loads and registers the packs again. Without an error, the instance runs the packs
// that it registered.
func (s *Service) reload(ctx context.Context) error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if _, err := refreshInstalled(ctx, s); err != nil {
		return err
	}
	return load(ctx, s)
}

// retry reads the installed archives again that could not be read, and loads and registers the packs
// again if that has changed which are loaded.
func retry(ctx context.Context, s *Service) error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	changed, err := refreshInstalled(ctx, s)
	if err != nil || !changed {
		return err
	}
	return load(ctx, s)
}

// load loads the packs of the folder and of the installed archives, and registers them. The caller
// holds s.reloading.
func load(ctx context.Context, s *Service) error {
	byName, err := loadPacks(s, s.installed.packs())
	if err != nil {
		return err
	}
	s.packs.set(byName)
	if err := s.register(ctx); err != nil {
		return err
	}
	s.env.Log.Info("packs loaded", "packs", len(byName))
	return nil
}

// state returns a text that changes when the folder of packs or the installed archives do.
func (s *Service) state(ctx context.Context) (string, error) {
	installed, err := archiveState(ctx, s)
	return folderState(s) + installed, err
}

// folderState returns a text that changes when a file of the folder of packs or a lock file
// does.
func folderState(s *Service) string {
	var b strings.Builder
	add := func(path string, info fs.FileInfo) {
		fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime().UnixNano())
	}
	if info, err := os.Stat(filepath.Join(s.Images, pack.LockFile)); s.Images != "" && err == nil {
		add(pack.LockFile, info)
	}
	if s.PacksDir == "" {
		return b.String()
	}
	entries, err := os.ReadDir(s.PacksDir)
	if err != nil {
		return b.String() + err.Error()
	}
	for _, en := range entries {
		if info, err := en.Info(); err == nil {
			add(en.Name(), info)
		}
	}
	return b.String()
}
