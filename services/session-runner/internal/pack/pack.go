// Package pack finds packs in a folder and reads their manifests. A pack is an
// executable, a script or a WebAssembly module that reads one JSON document from
// standard input and writes one to standard output. It runs in the image that its
// manifest names. Without an image, its sandbox contains no other program or library
// except the interpreter of a script, so executables and interpreters must be statically
// linked, unless Discover places them elsewhere.
package pack

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// Pack is one executable with its manifest, which are both read and checked once. The
// executable is held in sealed memory, so that the program that runs is the one that was
// registered.
type Pack struct {
	Path    string           // path of the executable, for messages; the file is not opened again
	Program *program.Program // the sealed executable
	Env     []string
	Tool    contract.Tool
	Digest  string // digest of Tool
	Stated  string // name in the manifest if it differs from that of the file, which the pack has; otherwise empty

	Artifacts  []Artifact // members of the output that are stored as artifacts
	Inputs     []Input    // arguments that are artifacts whose content the program receives
	Progress   bool       // lines of the program's standard error report its progress
	Executable bool       // files that the program writes to /work can be executed
	Shares     string     // concurrency class: the configuration bounds how many calls of a class run at a time; empty means none
	Examples   []Example  // of the manifest
}

// manifest holds the members of a file NAME.pack.yaml or NAME.helmdeck-pack.yaml. For
// the possible names, see readManifest; for a file with the member program, see
// loadNamed.
type manifest struct {
	Program        string                `yaml:"program"` // file of the same folder that several packs may share
	Name           string                `yaml:"name"`
	Version        string                `yaml:"version"`
	Description    string                `yaml:"description"`
	Author         string                `yaml:"author"`
	InputSchema    map[string]any        `yaml:"input_schema"`
	OutputSchema   map[string]any        `yaml:"output_schema"`
	TimeoutS       int64                 `yaml:"timeout_s"`
	MaxOutputBytes int64                 `yaml:"max_output_bytes"`
	Env            []string              `yaml:"env"`
	MemoryMiB      int64                 `yaml:"memory_mib"`
	CPUMillis      int64                 `yaml:"cpu_millis"`
	Pids           int64                 `yaml:"pids"`
	Tier           string                `yaml:"tier"`
	Image          string                `yaml:"image"`      // image in which the program runs: NAME, NAME@DIGEST or DIGEST
	DiskMiB        int64                 `yaml:"disk_mib"`   // size of each writable folder of the sandbox
	Executable     bool                  `yaml:"executable"` // files that the program writes to /work can be executed
	Rerunnable     bool                  `yaml:"rerunnable"`
	Progress       bool                  `yaml:"progress"`     // the program reports its progress
	Concurrency    string                `yaml:"concurrency"`  // concurrency class
	Class          string                `yaml:"class"`        // class of the effect, from E0 (read-only) to E4 (irreversible)
	Labels         []string              `yaml:"labels"`       // labels (data classes) of the output
	EgressHosts    []string              `yaml:"egress_hosts"` // hosts to which the pack connects
	Egress         []contract.EgressRule `yaml:"egress"`       // requests that the pack makes; the mode of a rule without one is terminate
	Reserve        struct {              // maximum amounts that one call uses, which are reserved for it
		Cents         int64 `yaml:"cents"`
		ComputeMillis int64 `yaml:"compute_ms"`
		EgressBytes   int64 `yaml:"egress_bytes"`
		Tokens        int64 `yaml:"tokens"`
	} `yaml:"reserve"`
	Secrets   []secretOf `yaml:"secrets"`
	Artifacts []Artifact `yaml:"artifacts"`
	Inputs    []Input    `yaml:"artifact_inputs"`
	Examples  []Example  `yaml:"examples"`
}

// Example is an example of a call in a manifest, for documentation and `binnacle pack
// test`. The mesh does not use it.
type Example struct {
	About  string         `yaml:"about"`
	Input  map[string]any `yaml:"input"`
	Output map[string]any `yaml:"output"` // nil if the output is not stated
}

// secretOf names a secret that the program receives.
type secretOf struct {
	Name  string   `yaml:"name"`
	Hosts []string `yaml:"hosts"`
}

// Defaults of the limits in a manifest.
const (
	DefaultTimeoutS       = 60
	DefaultMaxOutputBytes = 16 << 20
	defaultMemoryMiB      = 256
	defaultCPUMillis      = 1000 // milliseconds of CPU time per second: one core
	defaultPids           = 64
)

// Maxima of the limits in a manifest. They prevent an overflow when a time is converted
// to nanoseconds or a memory limit to bytes, and when the CPU time of a run is computed.
const (
	maxTimeoutS  = 365 * 24 * 60 * 60
	maxCPUMillis = 1_000_000
	maxMemoryMiB = 1 << 30
	maxAmount    = 1 << 50
)

// suffixOfHelmdeck ends the names of manifests in the format of helmdeck.
const suffixOfHelmdeck = ".helmdeck-pack.yaml"

var (
	suffixes  = []string{".pack.yaml", suffixOfHelmdeck}
	classRE   = regexp.MustCompile(`^E[0-4]$`)
	versionRE = regexp.MustCompile(`^v[1-9][0-9]*$`)
	// ClassName matches the names of concurrency classes.
	ClassName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	nameRE    = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	kinds     = []string{"string", "number", "integer", "boolean", "object", "array"}
)

// ScriptsOnHost is the value of the parameter scripts of Discover for the programs of the host.
const ScriptsOnHost = "host"

// Discover reads every pack in dir, resolves the names of images with lock, and returns the packs
// sorted by name. scripts is where programs run that need an interpreter or libraries and whose
// manifests name no image: ScriptsOnHost for tier process with the programs of the host, the name
// of an image, or "" for a sandbox that has only a statically linked interpreter. It omits an
// invalid pack and returns its error in problems, because the pack must not run with weaker limits
// than its author intended. If several packs have the same name, it omits all of them and adds an
// error to problems. A manifest with the member program is a pack, and so is each regular file that
// is executable or named *.wasm, unless it is a manifest or a manifest names it as its program. If
// dir cannot be read, problems contains only that error.
func Discover(dir string, lock Lock, scripts string) (packs []Pack, problems []error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []error{fmt.Errorf("packs directory: %w", err)}
	}
	l := loader{dir: dir, lock: lock, scripts: scripts, byName: map[string][]Pack{}, sealed: map[sealedKey]*program.Program{}}
	shared := l.named(entries)
	for _, en := range entries {
		info, err := en.Info()
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 && !isWASM(en.Name()) || isManifest(en.Name()) || shared[en.Name()] {
			continue
		}
		l.add(en.Name(), func() (Pack, error) { return l.load(en.Name()) })
	}
	problems = l.problems
	for name, same := range l.byName {
		if len(same) > 1 {
			problems = append(problems, fmt.Errorf("pack name %s is used by %s and %s; rename one", name, same[0].Path, same[1].Path))
			continue
		}
		packs = append(packs, same[0])
		l.used(&same[0])
	}
	l.closeUnused()
	slices.SortFunc(packs, func(a, b Pack) int { return strings.Compare(a.Tool.Tool, b.Tool.Tool) })
	return packs, problems
}

func isWASM(name string) bool { return filepath.Ext(name) == ".wasm" }

func isManifest(name string) bool {
	return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
}

// Name returns the name of a pack from its file name: "cmd." and the ASCII letters,
// digits and hyphens of the file name without its extension, in lower case. An
// underscore becomes a hyphen; hyphens at the start and the end are removed. It returns
// "" if nothing remains.
func Name(file string) string {
	base := strings.TrimSuffix(file, filepath.Ext(file))
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r == '_':
			return '-'
		}
		return -1
	}, base)
	if clean = strings.Trim(clean, "-"); clean == "" {
		return ""
	}
	return "cmd." + clean
}

// tool returns the tool document of a pack.
func (m *manifest) tool(name, image, digest string) (t contract.Tool, err error) {
	t = contract.Tool{
		Description: m.Description, DiskMiB: m.DiskMiB, Executor: services.SessionRunner, Image: image, Kind: "tool." + name, Pack: digest, Rerunnable: m.Rerunnable, Tool: name, Version: m.Version,
		Sandbox: &contract.Sandbox{CPUMillis: m.CPUMillis, MemoryMiB: m.MemoryMiB, OutputBytes: m.MaxOutputBytes, Pids: m.Pids, Tier: m.Tier, WallMS: m.TimeoutS * 1000},
	}
	t.Class, t.Labels, t.Egress, t.EgressRules = m.Class, m.Labels, m.EgressHosts, m.Egress
	if r := (contract.Amounts{Cents: m.Reserve.Cents, ComputeMillis: m.Reserve.ComputeMillis, EgressBytes: m.Reserve.EgressBytes, Tokens: m.Reserve.Tokens}); r != (contract.Amounts{}) {
		t.Reserve = &r
	}
	for _, s := range m.Secrets {
		if !nameRE.MatchString(s.Name) {
			return t, fmt.Errorf("secrets: name %q: want 1 to 64 characters of [A-Za-z0-9._-]", s.Name)
		}
		t.Secrets = append(t.Secrets, contract.SecretGrant{Name: s.Name, Hosts: s.Hosts})
	}
	if t.InputSchema, err = jsonSchema(m.InputSchema); err != nil {
		return t, fmt.Errorf("input_schema: %w", err)
	}
	if t.OutputSchema, err = jsonSchema(m.annotated()); err != nil {
		return t, fmt.Errorf("output_schema: %w", err)
	}
	return t, nil
}

// annotated returns the output schema of the manifest with toolschema.PackKeyword, unless there is
// nothing to state. It changes the schema. Of env, which may be long, it states the digest.
func (m *manifest) annotated() map[string]any {
	extra := map[string]any{}
	if len(m.Artifacts) > 0 {
		extra["artifacts"] = m.Artifacts
	}
	if len(m.Inputs) > 0 {
		extra["artifact_inputs"] = m.Inputs
	}
	if len(m.Env) > 0 {
		extra["env"] = program.Digest([]byte(strings.Join(m.Env, "\x00")))
	}
	if m.Progress {
		extra["progress"] = true
	}
	if m.Executable {
		extra["executable"] = true
	}
	if m.Concurrency != "" {
		extra["concurrency"] = m.Concurrency
	}
	if len(extra) == 0 {
		return m.OutputSchema
	}
	s := m.OutputSchema
	if s == nil {
		s = map[string]any{"additionalProperties": true}
	}
	s[toolschema.PackKeyword] = extra
	return s
}

// readManifest reads and checks the manifest of an executable. The manifest's file name is
// the executable's without its extension, or the pack's name without "cmd.", followed by
// one of suffixes. Without a manifest, all members have their defaults.
func readManifest(dir, file, clean string) (*manifest, error) {
	base := strings.TrimSuffix(file, filepath.Ext(file))
	m, err := findManifest(dir, slices.Compact([]string{base, clean}))
	if err != nil {
		return nil, err
	}
	if err := m.fill(base, isWASM(file)); err != nil {
		return nil, err
	}
	if err := m.check(file); err != nil {
		return nil, err
	}
	return m, m.checkEgress()
}

// findManifest decodes the manifest whose file name is one of stems followed by one of
// suffixes. It returns an error if there are two, and an empty manifest if there is
// none. As in helmdeck, a pack whose manifest has suffixOfHelmdeck may return members that
// its output schema does not list.
func findManifest(dir string, stems []string) (*manifest, error) {
	m, found := &manifest{}, ""
	for _, suffix := range suffixes {
		for _, stem := range stems {
			path := filepath.Join(dir, stem+suffix)
			body, err := os.ReadFile(path)
			if os.IsNotExist(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if found != "" {
				return nil, fmt.Errorf("has two manifests, %s and %s; keep one", found, path)
			}
			found = path
			if err := decode(body, filepath.Base(path), m); err != nil {
				return nil, err
			}
			if _, ok := m.OutputSchema["additionalProperties"]; suffix == suffixOfHelmdeck && m.OutputSchema != nil && !ok {
				m.OutputSchema["additionalProperties"] = true
			}
		}
	}
	return m, nil
}

// decodeManifest reads the manifest at path.
func decodeManifest(path string, m *manifest) error {
	body, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return decode(body, filepath.Base(path), m)
}

// decode decodes a manifest. An unknown member is an error.
func decode(body []byte, file string, m *manifest) error {
	dec := yaml.NewDecoder(bytes.NewReader(body))
	dec.KnownFields(true)
	if err := dec.Decode(m); err != nil {
		return fmt.Errorf("manifest %s: %w", file, err)
	}
	return nil
}

// fill sets the version, the description, the tier and the limits of a run to their
// defaults if they are omitted, 0 or empty. It returns an error for a limit that is
// negative or above its maximum.
func (m *manifest) fill(base string, wasm bool) error {
	for _, d := range []struct {
		field     string
		v         *int64
		def, most int64
	}{{"timeout_s", &m.TimeoutS, DefaultTimeoutS, maxTimeoutS}, {"max_output_bytes", &m.MaxOutputBytes, DefaultMaxOutputBytes, maxAmount},
		{"memory_mib", &m.MemoryMiB, defaultMemoryMiB, maxMemoryMiB}, {"cpu_millis", &m.CPUMillis, defaultCPUMillis, maxCPUMillis}, {"pids", &m.Pids, defaultPids, maxAmount}, {"disk_mib", &m.DiskMiB, 0, maxMemoryMiB}} {
		if *d.v < 0 || *d.v > d.most {
			return fmt.Errorf("%s: want 0 to %d", d.field, d.most)
		}
		*d.v = cmp.Or(*d.v, d.def)
	}
	m.Version = cmp.Or(m.Version, "v1")
	m.Description = cmp.Or(m.Description, "Runs "+base+".")
	tier := tierProcess
	switch {
	case wasm:
		tier = tierWASI
	case m.Image != "":
		tier = tierContainer
	}
	m.Tier = cmp.Or(m.Tier, tier)
	return nil
}

// Names of the isolation tiers in manifests.
const (
	tierProcess   = "process"
	tierContainer = "container"
	tierMicroVM   = "microvm"
	tierWASI      = "wasi"
)

// check returns an error if artifacts, artifact_inputs, env, version, concurrency, class, reserve or
// tier has an invalid value, or if the tier does not permit the image or cannot run the file.
func (m *manifest) check(file string) error {
	if err := errors.Join(checkArtifacts(m.Artifacts), checkInputs(m.Inputs)); err != nil {
		return err
	}
	for _, e := range m.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" {
			return fmt.Errorf("env: %q is not of the form NAME=value", e)
		}
	}
	switch {
	case !versionRE.MatchString(m.Version):
		return fmt.Errorf("version: %q is not v1, v2, …", m.Version)
	case m.Concurrency != "" && !ClassName.MatchString(m.Concurrency):
		return fmt.Errorf("concurrency: %q: want at most 32 lower-case letters, digits and -, of which a letter is the first", m.Concurrency)
	case m.Class != "" && !classRE.MatchString(m.Class):
		return fmt.Errorf("class: %q is not E0, E1, E2, E3 or E4", m.Class)
	case min(m.Reserve.Cents, m.Reserve.ComputeMillis, m.Reserve.EgressBytes, m.Reserve.Tokens) < 0:
		return fmt.Errorf("reserve: must not be negative")
	case !slices.Contains([]string{tierProcess, tierContainer, tierMicroVM, tierWASI}, m.Tier):
		return fmt.Errorf("tier: %q is not process, wasi, container or microvm", m.Tier)
	case m.Image != "" && m.Tier != tierContainer && m.Tier != tierMicroVM:
		return fmt.Errorf("image: requires tier container or microvm, not %s", m.Tier)
	case m.Executable && m.Tier != tierContainer && m.Tier != tierMicroVM:
		return fmt.Errorf("executable: requires tier container or microvm, not %s", m.Tier)
	case (m.Tier == tierWASI) != isWASM(file):
		return fmt.Errorf("tier: %q cannot run %s: .wasm files require tier wasi, and other files another tier", m.Tier, file)
	}
	return nil
}

// checkEgress sets the modes of rules that have none, and returns an error that names an
// invalid member of egress, or egress itself if the tier has no network.
func (m *manifest) checkEgress() error {
	for i := range m.Egress {
		r := &m.Egress[i]
		r.Mode = cmp.Or(r.Mode, netrule.Terminate)
		if netrule.Names(m.EgressHosts, r) {
			return fmt.Errorf("egress[%d].host: %s is also in egress_hosts, which permits every request to it; remove one of them", i, r.Host)
		}
		if r.Credential == nil {
			continue
		}
		if !nameRE.MatchString(r.Credential.Secret) {
			return fmt.Errorf("egress[%d].credential.secret: %q: want 1 to 64 characters of [A-Za-z0-9._-]", i, r.Credential.Secret)
		}
		if slices.ContainsFunc(m.Secrets, func(s secretOf) bool { return s.Name == r.Credential.Secret }) {
			return fmt.Errorf("egress[%d].credential.secret: %s is also in secrets, so the program would receive it; remove one of them", i, r.Credential.Secret)
		}
	}
	if len(m.Egress) > 0 && m.Tier == tierWASI {
		return errors.New("egress: a program of tier wasi has no network; remove it, or use another tier")
	}
	_, err := netrule.Compile(m.Egress)
	return err
}

// schemaRoom is the nesting depth that is reserved for the documents that contain a
// schema: the tool document, the event and a list.
const schemaRoom = 16

// jsonSchema returns a manifest's schema as canonical JSON Schema 2020-12, with the
// short form of a property (name: type) expanded; it changes s. A schema without a type
// has the type object; a missing schema allows any object. An unknown type in a short
// form, or nesting deeper than canon.MaxDepth-schemaRoom, is an error. If a schema lists
// properties and does not mention additional ones, package toolschema later forbids all
// other properties.
func jsonSchema(s map[string]any) (contract.Raw, error) {
	if s == nil {
		s = map[string]any{"additionalProperties": true}
	}
	if _, ok := s["type"]; !ok {
		s["type"] = "object"
	}
	if props, ok := s["properties"].(map[string]any); ok {
		for name, v := range props {
			if t, ok := v.(string); ok {
				if !slices.Contains(kinds, t) {
					return nil, fmt.Errorf("property %s: type %q is not one of %s", name, t, strings.Join(kinds, ", "))
				}
				p := map[string]any{"type": t}
				if t == "object" {
					p["additionalProperties"] = true
				}
				props[name] = p
			}
		}
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	out, err := canon.Transform(nil, raw)
	if err == nil && canon.CheckDepth(append([]byte(strings.Repeat("[", schemaRoom)), out...)) != nil {
		err = fmt.Errorf("nesting deeper than %d", canon.MaxDepth-schemaRoom)
	}
	return out, err
}
