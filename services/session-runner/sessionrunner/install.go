package sessionrunner

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// Kinds of the calls that install and remove archives of packs, on all instances of the mesh.
const (
	kindPackInstall   = "pack.install"
	kindPackUninstall = "pack.uninstall"
)

// packTools are the documents of these calls, which are registered if a key is trusted.
var packTools = []contract.Tool{
	{Description: "Installs a signed archive of packs on the mesh, in place of an earlier one of its name.", Class: "E2", Executor: services.SessionRunner, Kind: kindPackInstall, Tool: kindPackInstall, Version: "v1", Rerunnable: true,
		InputSchema: contract.Raw(`{"additionalProperties":false,"properties":{"archive":{"description":"gzipped tar file, in base64","maxLength":11184812,"type":"string"},"digest":{"pattern":"^sha256:[0-9a-f]{64}$","type":"string"},"key":{"description":"id of the key that signed it","maxLength":64,"type":"string"},` +
			`"name":{"maxLength":63,"type":"string"},"signature":{"maxLength":128,"type":"string"},"version":{"maxLength":10,"type":"string"}},"required":["archive","digest","key","name","signature","version"],"type":"object"}`),
		OutputSchema: contract.Raw(`{"properties":{"digest":{"type":"string"},"name":{"type":"string"},"packs":{"items":{"type":"string"},"type":"array"},"version":{"type":"string"}},"required":["digest","name","packs","version"],"type":"object"}`)},
	{Description: "Removes an archive of packs from the mesh.", Class: "E2", Executor: services.SessionRunner, Kind: kindPackUninstall, Tool: kindPackUninstall, Version: "v1", Rerunnable: true,
		InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"name":{"maxLength":63,"type":"string"}},"required":["name"],"type":"object"}`),
		OutputSchema: contract.Raw(`{"properties":{"name":{"type":"string"}},"required":["name"],"type":"object"}`)},
}

func isPackKind(kind string) bool { return kind == kindPackInstall || kind == kindPackUninstall }

// installedPacks holds the archives that are installed. It is safe for concurrent use.
type installedPacks struct {
	mu     sync.Mutex
	loaded map[string]loadedArchive // by name
	failed bool                     // an archive could not be read; a later attempt may succeed
	logged map[string]string        // by name, digest and error of each archive that is left out
}

// loadedArchive is an installed archive with its packs.
type loadedArchive struct {
	digest string
	packs  []pack.Pack
}

// packs returns the packs of all archives, in the order of the archives' names.
func (i *installedPacks) packs() []pack.Pack {
	i.mu.Lock()
	defer i.mu.Unlock()
	var all []pack.Pack
	for _, name := range slices.Sorted(maps.Keys(i.loaded)) {
		all = append(all, i.loaded[name].packs...)
	}
	return all
}

// incomplete reports whether an archive could not be read.
func (i *installedPacks) incomplete() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.failed
}

// owner returns the name of the archive that has a pack, or "".
func (i *installedPacks) owner(tool string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	for name, a := range i.loaded {
		if slices.ContainsFunc(a.packs, func(p pack.Pack) bool { return p.Tool.Tool == tool }) {
			return name
		}
	}
	return ""
}

// installation is the event that installed an archive, and its tenant.
type installation struct {
	events.PackInstalled
	tenant string
}

// installations returns the archives that are installed according to the ledger, by name.
func installations(ctx context.Context, s *Service) (map[string]installation, error) {
	cell, err := s.env.Cell.Now(ctx)
	if err != nil {
		return nil, err
	}
	var all []handle.Stored
	for _, name := range []string{contract.EventPackInstalled, contract.EventPackUninstalled} {
		some, err := cell.History(ctx, s.env.Emit.Log, bus.Filter{Service: services.SessionRunner, Event: name})
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	slices.SortFunc(all, func(a, b handle.Stored) int { return cmp.Compare(a.Seq, b.Seq) })
	return installedBy(all), nil
}

// installedBy folds the events of archives, in the order of the ledger. It ignores malformed
// ones.
func installedBy(all []handle.Stored) map[string]installation {
	out := map[string]installation{}
	for _, e := range all {
		in, un := installation{tenant: e.Tenant}, events.PackUninstalled{}
		switch {
		case e.Name == contract.EventPackInstalled && contract.Decode(e.Data, &in.PackInstalled) == nil:
			out[in.Name] = in
		case e.Name == contract.EventPackUninstalled && contract.Decode(e.Data, &un) == nil:
			delete(out, un.Name)
		}
	}
	return out
}

// refreshInstalled loads the archives that are installed according to the ledger, or none if
// no key is trusted; see installedPacks.refresh.
func refreshInstalled(ctx context.Context, s *Service) (changed bool, err error) {
	if len(s.PackKeys) == 0 {
		return false, nil
	}
	now, err := installations(ctx, s)
	if err != nil {
		return false, err
	}
	fetch := func(in *installation) ([]pack.Pack, error) { return fetchArchive(ctx, s, in) }
	return s.installed.refresh(now, fetch, s.env.Log), nil
}

// refresh loads the archives in now that are not loaded yet, and removes others. It omits an archive
// that cannot be read, is not valid any more, or was signed with a key that is not trusted any more,
// and logs it unless the previous call of refresh has omitted it with the same error. It reports
// whether the loaded archives have changed. Calls of refresh must not overlap.
func (i *installedPacks) refresh(now map[string]installation, fetch func(*installation) ([]pack.Pack, error), log *slog.Logger) (changed bool) {
	i.mu.Lock()
	loaded, logged := i.loaded, i.logged // are replaced, but not changed
	i.mu.Unlock()
	next, failed, left := map[string]loadedArchive{}, false, map[string]string{}
	for name, in := range now {
		if have, ok := loaded[name]; ok && have.digest == in.Digest {
			next[name] = have
			continue
		}
		packs, err := fetch(&in)
		if err != nil {
			failed = failed || !errors.Is(err, ErrArchive)
			if left[name] = in.Digest + " " + err.Error(); left[name] != logged[name] {
				log.Error("installed packs left out", "archive", name, "version", in.Version, "err", err)
			}
			continue
		}
		next[name] = loadedArchive{in.Digest, packs}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.loaded, i.failed, i.logged = next, failed, left
	return !maps.EqualFunc(loaded, next, func(a, b loadedArchive) bool { return a.digest == b.digest })
}

// fetchArchive reads and verifies an installed archive and returns its packs.
func fetchArchive(ctx context.Context, s *Service, in *installation) ([]pack.Pack, error) {
	o := artifact.Object{Tenant: in.tenant, Service: services.SessionRunner, Upload: in.Upload, Size: in.Size, Digest: in.Digest, Index: in.Index}
	if err := o.Valid(); err != nil {
		return nil, err
	}
	r, err := artifact.Open(ctx, artifact.Stream{Conn: s.env.Conn}, o)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	body, err := io.ReadAll(io.LimitReader(r, MaxArchive+1))
	if err != nil {
		return nil, err
	}
	a := SignedArchive{Digest: in.Digest, Key: in.Key, Name: in.Name, Signature: in.Signature, Version: in.Version}
	if err := s.PackKeys.Verify(&a, body); err != nil {
		return nil, err
	}
	return readArchive(s, body)
}

// readArchive returns the packs of an archive. Errors that concern the archive wrap ErrArchive;
// those of the service's own lock files do not.
func readArchive(s *Service, archive []byte) ([]pack.Pack, error) {
	dir, err := os.MkdirTemp(s.StateDir, "archive-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := unpack(dir, archive); err != nil {
		return nil, err
	}
	if _, err := pack.ReadLock(s.Images, s.PacksDir); err != nil {
		return nil, err
	}
	lock, err := pack.ReadLock(s.Images, s.PacksDir, dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrArchive)
	}
	packs, problems := pack.Discover(dir, lock, s.Scripts)
	var checker toolschema.Checker
	for _, p := range packs {
		if err := checker.Valid(&p.Tool); err != nil {
			problems = append(problems, fmt.Errorf("pack %s: %w", p.Tool.Tool, err))
		}
		if isHeld(p.Tool.Kind) {
			problems = append(problems, fmt.Errorf("pack %s: a tool for held sandboxes has this name", p.Tool.Tool))
		}
	}
	switch {
	case len(problems) > 0:
		return nil, fmt.Errorf("%s: %w", strings.ReplaceAll(errors.Join(problems...).Error(), dir+"/", ""), ErrArchive)
	case len(packs) == 0:
		return nil, fmt.Errorf("it has no pack: %w", ErrArchive)
	}
	return packs, nil
}

// managePacks executes a call that installs or removes an archive. If it succeeds, this instance
// has loaded the packs; the others load them within about twice reloadEvery (see watchPacks).
func (s *Service) managePacks(ctx context.Context, w *execute.Work) execute.Result {
	var a struct {
		SignedArchive
		Content string `json:"archive"`
	}
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "arguments: %v", err)
	}
	out, err := map[string]any(nil), error(nil)
	if w.Call.Kind == kindPackUninstall {
		out, err = uninstallArchive(ctx, s, w, a.Name)
	} else {
		out, err = installArchive(ctx, s, w, &a.SignedArchive, a.Content)
	}
	if err == nil {
		err = s.reload(ctx)
	}
	switch {
	case errors.Is(err, ErrArchive):
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	case errors.Is(err, errNotInstalled):
		return execute.Fail(contract.CodeNotFound, "%v", err)
	case err != nil:
		return execute.Fail(contract.CodeUnavailable, "%v", err)
	}
	body, err := json.Marshal(out)
	if err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	return execute.Result{EffectType: "packs", Output: body}
}

var errNotInstalled = errors.New("no archive of this name is installed")

// installArchive verifies an archive, stores it as an artifact, and records that it is installed.
func installArchive(ctx context.Context, s *Service, w *execute.Work, a *SignedArchive, content string) (map[string]any, error) {
	archive, err := base64.StdEncoding.DecodeString(content)
	if err != nil || len(archive) > MaxArchive {
		return nil, fmt.Errorf("archive: want at most %d bytes in base64: %w", MaxArchive, ErrArchive)
	}
	if err := s.PackKeys.Verify(a, archive); err != nil {
		return nil, err
	}
	packs, err := readArchive(s, archive)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range packs {
		names = append(names, p.Tool.Tool)
		if _, taken := s.packs.get(p.Tool.Tool); taken && s.installed.owner(p.Tool.Tool) != a.Name {
			return nil, fmt.Errorf("pack %s: the mesh has another pack of this name: %w", p.Tool.Tool, ErrArchive)
		}
	}
	tenant := w.Event.Tenant
	o, err := artifact.WriteAs(ctx, artifact.Stream{Conn: s.env.Conn}, tenant, services.SessionRunner, artifact.InlineUpload(tenant, w.Event.Session, w.Call.ID, ""), MaxArchive, bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	d := events.PackInstalled{CallID: w.Call.ID, Digest: a.Digest, Index: o.Index, Key: a.Key, Name: a.Name, Packs: names, Signature: a.Signature, Size: o.Size, Upload: o.Upload, Version: a.Version}
	stored := artifact.Stored{Actor: w.Event.Actor, Artifact: artifact.ID(o.Digest), CallID: w.Call.ID, Index: o.Index, Kind: w.Call.Kind, MediaType: "application/gzip", Name: a.Name + "-" + a.Version + ".tar.gz",
		Service: services.SessionRunner, Session: w.Event.Session, Size: o.Size, Upload: o.Upload}
	if _, err := s.env.Emit.Append(ctx, s.env.Emit.New(contract.EventArtifactStored, stored.Artifact, contract.Bytes(&stored), w.Event)); err != nil {
		return nil, err
	}
	if err := changeArchive(ctx, s, w, a.Name, contract.EventPackInstalled, contract.Bytes(&d)); err != nil {
		return nil, err
	}
	return map[string]any{"digest": a.Digest, "name": a.Name, "packs": names, "version": a.Version}, nil
}

// uninstallArchive records that an archive is removed.
func uninstallArchive(ctx context.Context, s *Service, w *execute.Work, name string) (map[string]any, error) {
	if !archiveName.MatchString(name) {
		return nil, fmt.Errorf("%q: %w", name, errNotInstalled)
	}
	d := events.PackUninstalled{CallID: w.Call.ID, Name: name}
	if err := changeArchive(ctx, s, w, name, contract.EventPackUninstalled, contract.Bytes(&d)); err != nil {
		return nil, err
	}
	return map[string]any{"name": name}, nil
}

// changeArchive appends an event about the archive with a name, unless the call has appended
// it before. The error wraps errNotInstalled if the event removes an archive that is not
// installed.
func changeArchive(ctx context.Context, s *Service, w *execute.Work, name, event string, data []byte) error {
	_, err := handle.DoCell(ctx, s.env.Emit.Log, s.env.Cell.Now, services.SessionRunner, contract.IDPack+name, func(history []*contract.Event) (*contract.Event, error) {
		installed := false
		for _, e := range history {
			if e.CallID == w.Call.ID && e.Name == event {
				return nil, nil
			}
			installed = e.Name == contract.EventPackInstalled
		}
		if event == contract.EventPackUninstalled && !installed {
			return nil, fmt.Errorf("%q: %w", name, errNotInstalled)
		}
		return s.env.Emit.New(event, contract.IDPack+name, data, w.Event), nil
	})
	return err
}

// archiveState returns the sequences of the newest events about archives.
func archiveState(ctx context.Context, s *Service) (string, error) {
	if len(s.PackKeys) == 0 {
		return "", nil
	}
	cell, err := s.env.Cell.Now(ctx)
	if err != nil {
		return "", err
	}
	out := ""
	for _, name := range []string{contract.EventPackInstalled, contract.EventPackUninstalled} {
		seq, err := s.env.Conn.Last(ctx, bus.Events, bus.Filter{Tenant: cell.Tenant, Service: services.SessionRunner, Event: name}.String())
		if err != nil {
			return "", err
		}
		out += fmt.Sprintln(name, seq)
	}
	return out, nil
}
