package pack

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// loader reads the packs of a folder. Packs that share a program file share its sealed
// memory.
type loader struct {
	dir      string
	lock     Lock
	scripts  string // see Discover
	byName   map[string][]Pack
	sealed   map[sealedKey]*program.Program
	kept     map[*program.Program]bool
	problems []error
}

// sealedKey identifies a program: its file, and where it runs.
type sealedKey struct {
	file  string
	place place
}

// place is where a program runs: alone, in an image, or with the programs of the host.
type place int

const (
	alone place = iota
	inImage
	onHost
)

// namedRE matches the name of a pack whose manifest names its program: two or more parts of
// lower-case letters, digits, underscores and hyphens. Neither the name nor its first part may be
// in reserved.
var (
	namedRE   = regexp.MustCompile(`^[a-z][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)+$`)
	programRE = regexp.MustCompile(`(?m)^program:`)
	reserved  = map[string]bool{"cmd": true, "fs": true, "git": true, "sandbox": true, "node.run": true, "python.run": true, "image.gc": true, "image.import": true, "image.list": true, "image.pull": true}
)

// add adds the pack that read returns, or its error with the name of the file.
func (l *loader) add(file string, read func() (Pack, error)) {
	p, err := read()
	if err != nil {
		l.problems = append(l.problems, fmt.Errorf("pack %s: %w", file, err))
		return
	}
	l.byName[p.Tool.Tool] = append(l.byName[p.Tool.Tool], p)
}

// named adds the packs of the manifests with the member program, and returns the names of
// their program files.
func (l *loader) named(entries []fs.DirEntry) map[string]bool {
	shared := map[string]bool{}
	for _, en := range entries {
		if !isManifest(en.Name()) {
			continue
		}
		body, err := os.ReadFile(filepath.Join(l.dir, en.Name()))
		var head struct {
			Program string `yaml:"program"`
		}
		if err != nil || !programRE.Match(body) {
			continue // load reports a manifest that cannot be read
		}
		if err := yaml.Unmarshal(body, &head); err != nil {
			l.problems = append(l.problems, fmt.Errorf("manifest %s: %w", en.Name(), err))
			continue
		}
		shared[head.Program] = true
		l.add(en.Name(), func() (Pack, error) { return l.loadNamed(en.Name()) })
	}
	return shared
}

// loadNamed reads a manifest with the member program. The pack has the name that the
// manifest states, and runs the program file, which must be in the same folder.
func (l *loader) loadNamed(file string) (Pack, error) {
	m := &manifest{}
	if err := decodeManifest(filepath.Join(l.dir, file), m); err != nil {
		return Pack{}, err
	}
	first, _, _ := strings.Cut(m.Name, ".")
	switch {
	case filepath.Base(m.Program) != m.Program:
		return Pack{}, fmt.Errorf("program: %q is not the name of a file in the folder of the manifest", m.Program)
	case !namedRE.MatchString(m.Name) || len(m.Name) > 64:
		return Pack{}, fmt.Errorf("name: %q is not of the form web.fetch, of at most 64 characters", m.Name)
	case reserved[first], reserved[m.Name]:
		return Pack{}, fmt.Errorf("name: %q is reserved", m.Name)
	}
	if err := m.fill(m.Program, isWASM(m.Program)); err != nil {
		return Pack{}, err
	}
	if err := m.check(m.Program); err != nil {
		return Pack{}, err
	}
	if err := m.checkEgress(); err != nil {
		return Pack{}, err
	}
	return l.make(m, m.Program, m.Name)
}

// load reads one executable into sealed memory, and reads its manifest.
func (l *loader) load(file string) (Pack, error) {
	name := Name(file)
	if name == "" {
		return Pack{}, fmt.Errorf("the file name has no ASCII letter or digit, so the pack has no name")
	}
	m, err := readManifest(l.dir, file, strings.TrimPrefix(name, "cmd."))
	if err != nil {
		return Pack{}, err
	}
	p, err := l.make(m, file, name)
	if m.Name != name && m.Name != strings.TrimPrefix(name, "cmd.") {
		p.Stated = m.Name
	}
	return p, err
}

// make seals the program of a pack and returns the pack.
func (l *loader) make(m *manifest, file, name string) (Pack, error) {
	path, err := filepath.Abs(filepath.Join(l.dir, file))
	if err != nil {
		return Pack{}, err
	}
	sealed, err := l.place(path, m)
	if err != nil {
		return Pack{}, err
	}
	image, err := l.lock.Resolve(m.Image)
	if err != nil {
		return Pack{}, err
	}
	tool, err := m.tool(name, image, sealed.Digest)
	return Pack{Path: path, Program: sealed, Env: m.Env, Tool: tool, Digest: contract.Digest(&tool), Artifacts: m.Artifacts, Inputs: m.Inputs, Progress: m.Progress, Executable: m.Executable, Shares: m.Concurrency, Examples: m.Examples}, err
}

// place seals the program of a pack. If the manifest names no image and the program requires an
// interpreter or a loader that its sandbox does not have, place changes the manifest to run it in
// the image for scripts, if one is configured.
func (l *loader) place(path string, m *manifest) (*program.Program, error) {
	switch {
	case m.Image != "":
		return l.seal(path, inImage)
	case l.scripts == ScriptsOnHost && m.Tier == tierProcess:
		return l.seal(path, onHost)
	}
	p, err := l.seal(path, alone)
	if err != nil || p.Problem() == nil || l.scripts == "" || l.scripts == ScriptsOnHost || m.Tier != tierProcess && m.Tier != tierContainer {
		return p, err
	}
	if m.Image = l.scripts; m.Tier == tierProcess {
		m.Tier = tierContainer
	}
	return l.seal(path, inImage)
}

// seal returns the program of a file, which it reads once for each place.
func (l *loader) seal(path string, at place) (*program.Program, error) {
	key := sealedKey{path, at}
	if p := l.sealed[key]; p != nil {
		return p, nil
	}
	open := map[place]func(string) (*program.Program, error){alone: program.Open, inImage: program.OpenInImage, onHost: program.OpenOnHost}[at]
	p, err := open(path)
	if err == nil {
		l.sealed[key] = p
	}
	return p, err
}

// used records that Discover returns p, so that the program of p must stay open.
func (l *loader) used(p *Pack) {
	if l.kept == nil {
		l.kept = map[*program.Program]bool{}
	}
	l.kept[p.Program] = true
}

// closeUnused closes the programs that no returned pack has.
func (l *loader) closeUnused() {
	for _, p := range l.sealed {
		if !l.kept[p] {
			_ = p.Close()
		}
	}
}
