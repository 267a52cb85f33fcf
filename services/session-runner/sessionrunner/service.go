// Package sessionrunner is the executor of packs. It runs each call of a pack in a
// sandbox that is created for the call and destroyed after it, and attests the tier, the
// program's digest and the limits. Each tier is an internal package that implements
// sandbox.Runner. To add a tier, add its package and extend openRunners.
package sessionrunner

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/wasi"
)

// Config is the session-runner's configuration. The service registers the packs in PacksDir,
// tool.noop if Noop is set, the tools for images if Containerd is set, those for archives of
// packs and the packs of installed archives if there are PackKeys, and the tools for held
// sandboxes if Images is set and Held.Max is not 0.
type Config struct {
	PacksDir   string   // folder of executables and their manifests; empty means no packs
	PackKeys   PackKeys // keys whose signatures of archives of packs are trusted; none means that no archive can be installed
	StateDir   string   // folder for temporary files of sandboxes and of archives, and for the locks on user ids
	Scripts    string   // where scripts and dynamically linked programs of packs without an image run: "host", the name of an image, or empty (see pack.Discover)
	Containerd string   // path of containerd's socket; empty means that tier "container" is not available
	FIFODir    string   // folder for the FIFOs of containers, at a path that is the same for containerd; empty means StateDir/fifo
	Images     string   // folder of image archives, and of the file images.lock; empty means none
	Registries []string // registries from which image.pull may pull: HOST, HOST:PORT or http://HOST:PORT
	RegistryCA string   // PEM file of the authorities that sign the registries' certificates; empty means those of the system
	Noop       bool     // register the built-in tool.noop, for benchmarks and tests
	Warm       int      // maximum number of containers that are prepared ahead of calls; 0 means none
	Runs       int      // maximum number of sandboxes of calls at a time; 0 means 16
	Queue      int      // maximum number of calls that wait for a sandbox, and of those that wait for others of their concurrency class; 0 means none
	Classes    []string // concurrency classes of packs, CLASS=N: at most N calls of its packs run at a time; those of any other class are not bounded
	OCIRuntime string   // command of the OCI runtime for containers, on the daemon's host; empty means runc
	MicroVM    string   // containerd runtime of tier "microvm"; empty means that the tier is not available
	Held       HeldConfig

	RegistrySecrets []string // logins at registries: HOST=NAME, the name of a secret that begins with "registry."

	RegistryHosts []string // further hosts, to which registries redirect or from which they require tokens: HOST or HOST:PORT
}

// Service implements run.Service. It executes packs. Several instances may run at a
// time. An instance refuses a call if the call was decided on another document of the
// pack than the one that the instance has.
type Service struct {
	Config

	env   *run.Env
	fixed []contract.Tool // tools that do not change while the instance runs
	packs packSet

	schemas toolschema.Checker // checks outputs with the ids of their artifacts

	reloading sync.Mutex // is held while packs are loaded again
	installed installedPacks

	runners []sandbox.Runner
	wasi    *wasi.Runner
	held    *holder // nil if no held sandboxes are offered
	servers *servers
	images  *containerd.Store // nil without tier "container"
	from    *containerd.Registries
	closer  io.Closer // the runner of tier "container"; nil without it
	queue   *queue
	classes map[string]*queue // of concurrency classes
	reports progress
	broken  error // reason why tier "process" is not available; nil if it is, or if containerd is configured
}

// Declaration implements run.Service. The service executes calls, and reads
// cancellations, freezes and the events of held sandboxes.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: services.SessionRunner, Slots: 8, Work: []bus.Work{bus.ExecutorWork(services.SessionRunner)}, Readers: []bus.Reader{bus.ExecutorControl(services.SessionRunner), heldReader}, Artifacts: true}
}

// Run implements run.Service. It reads and seals the packs, and does so again when they change
// (see watchPacks). An invalid pack is logged and omitted, and never runs with weaker limits. A
// pack whose interpreter or loader is missing is registered, and its calls fail.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env = env
	var err error
	if s.classes, err = classQueues(s.Classes, s.Queue); err != nil {
		return err
	}
	if s.from, err = containerd.ParseRegistries(s.Registries, s.RegistryHosts, s.RegistryCA); err != nil {
		return err
	}
	if err := s.from.Secrets(s.RegistrySecrets); err != nil {
		return err
	}
	if s.wasi, err = wasi.Open(ctx); err != nil {
		return fmt.Errorf("wasi: %w", err)
	}
	if s.Scripts == pack.ScriptsOnHost && s.Containerd != "" {
		return errors.New("session-runner.scripts: host requires tier process: remove session-runner.containerd, or name an image, such as shell")
	}
	if err := s.openRunners(ctx); err != nil {
		return err
	}
	if s.closer != nil {
		defer s.closer.Close()
		defer s.sweepOthers(ctx)()
	}
	var tools []contract.Tool
	if s.Noop {
		tools = append(tools, noop)
	}
	if s.images != nil {
		tools = append(tools, imageToolsOf(s.from)...)
	}
	if s.Images != "" && s.Held.Max > 0 {
		if _, err := s.Held.modelRules(); err != nil {
			return err
		}
		tools = append(tools, s.Held.tools()...)
		var holder *containerd.Holder
		if r, ok := s.closer.(*containerd.Runner); ok {
			if holder, err = r.Holder(namespace(env.RootKID, heldInstance)); err != nil {
				return err
			}
		}
		s.held = newHolder(env, s.Held, holder, func() (pack.Lock, error) { return pack.ReadLock(s.Images, s.PacksDir) }, s.egress)
		serveHeld(s.held)
	} else {
		serveNoView(env.Transport)
		serveNoTerminals(env.Transport)
	}
	s.servers = &servers{h: s.held, cell: env.Cell.Now, calls: running.New(env.Emit.Log, env.Trust.At, env.Cell, env.Emit.Now, env.Epoch)}
	s.servers.serve(env.Transport)
	if len(s.PackKeys) > 0 {
		tools = append(tools, packTools...)
	}
	s.fixed = tools
	loaded, _ := s.state(ctx) // after an error, watchPacks loads the packs again
	if err := eventlog.Retry(ctx, func() error { return s.reload(ctx) }); err != nil {
		return err
	}
	watching, unwatch := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { watchPacks(watching, s, loaded) })
	defer watch.Wait()
	defer unwatch()
	s.queue = newQueue(cmp.Or(s.Runs, defaultRuns), s.Queue)
	s.report(env)
	s.reports.serve(env.Transport)
	x := executorOf(s)
	if s.held == nil {
		ready()
		return x.Run(ctx)
	}
	return s.runHeld(ctx, x, ready)
}

// executorOf returns the executor of the service's calls.
func executorOf(s *Service) *execute.Executor {
	x := execute.New(s.env, s.queue.runs+s.queue.max+beside, s.fixed, citing(s.handle))
	x.Secrets = secret.FromBroker(s.env.Emit, s.env.Transport, s.env.Instance)
	x.ReRunable, x.ToolOf = s.rerunnable, s.packs.document
	return x
}

// runHeld runs the executor and tends held sandboxes. It takes calls after it has tried once
// to adopt the containers of instances that have ended.
func (s *Service) runHeld(ctx context.Context, x *execute.Executor, ready func()) error {
	tending, stop := context.WithCancel(context.WithoutCancel(ctx)) // until the last call has ended
	defer stop()
	var tended sync.WaitGroup
	defer tended.Wait()
	adopted, failed := make(chan struct{}), make(chan error, 1)
	tended.Go(func() { failed <- s.held.run(tending, func() { close(adopted) }) })
	defer stop()
	select {
	case <-adopted:
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
	ended := make(chan error, 1)
	executing, halt := context.WithCancel(ctx)
	defer halt()
	tended.Go(func() { ended <- x.Run(executing) })
	defer s.servers.set.Close()
	ready()
	select {
	case err := <-failed:
		halt()
		return errors.Join(err, <-ended)
	case err := <-ended:
		return err
	}
}

// openRunners adds the runners for native programs. If a containerd socket is configured,
// they are that of tier "container" and, if MicroVM is set, that of tier "microvm".
// Otherwise it is that of tier "process"; if the host does not support it, openRunners
// sets s.broken and returns nil. It returns an error if containerd.Open fails, or if
// the folder of sandboxes cannot be emptied or created.
func (s *Service) openRunners(ctx context.Context) error {
	if s.Containerd != "" {
		fifo := s.FIFODir
		if fifo == "" {
			fifo = filepath.Join(s.StateDir, "fifo")
		}
		r, err := containerd.Open(ctx, s.Containerd, namespace(s.env.RootKID, ""), s.env.Instance, fifo, s.Images, s.OCIRuntime, s.Warm)
		if err != nil {
			return err
		}
		s.runners, s.closer, s.images = append(s.runners, r), r, r.Store()
		if s.MicroVM != "" {
			s.runners = append(s.runners, containerd.NewMicroVM(r, s.MicroVM))
		}
		return nil
	}
	dir := filepath.Join(s.StateDir, "sandbox-"+s.env.Instance)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	p := sandbox.Process{StateDir: dir}
	if os.Geteuid() == 0 && sandbox.Mapped() {
		var err error
		if p.UIDs, err = sandbox.OpenUIDs("/run/binnacle/uids", filepath.Join(s.StateDir, "uids")); err != nil {
			s.env.Log.Warn("runs share a user id", "err", err)
		}
	}
	if err := p.Probe(); err != nil {
		s.broken = err
		s.env.Log.Error("no sandbox on this host; packs will be sandbox_unavailable", "err", err)
		return nil
	}
	s.runners = append(s.runners, p)
	return nil
}

// namespace returns the containerd namespace of an instance. It differs between meshes
// that share a daemon, because a runner removes what it finds in its namespace.
func namespace(rootKID, instance string) string {
	mesh := strings.TrimPrefix(rootKID, contract.IDKey)
	return "binnacle-" + mesh[:min(len(mesh), 16)] + "-" + instance
}

var noop = contract.Tool{Description: "Does nothing and returns its arguments. For benchmarks and tests.", Executor: services.SessionRunner, Kind: "tool.noop",
	Class: "E0", InputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`), OutputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`), Tool: "noop", Version: "v1"}

// maxCited is the maximum number of artifacts in the arguments of a call whose use is
// recorded, and likewise of those in its output.
const maxCited = 64

// citing returns a handler that calls h, and records the use of the artifacts that the
// arguments and the output of the call name, so that their content is kept.
func citing(h execute.Handler) execute.Handler {
	return func(ctx context.Context, w *execute.Work) execute.Result {
		in := artifact.Named(w.Args, maxCited)
		cite(w, in)
		res := h(ctx, w)
		cite(w, slices.DeleteFunc(artifact.Named(res.Output, maxCited), func(id string) bool { return slices.Contains(in, id) }))
		return res
	}
}

// cite records that a call uses artifacts.
func cite(w *execute.Work, ids []string) {
	for _, id := range ids {
		w.Fact(contract.EventArtifactUsed, contract.Bytes(&artifact.Used{Artifact: id, CallID: w.Call.ID}))
	}
}

// handle executes one call. It runs the pack in a sandbox that satisfies the required
// tier, and returns the result, with its attestation and usage if the program ran. The
// built-in tool.noop returns its arguments without a sandbox. Calls for held sandboxes,
// and calls that manage images or archives of packs, have handlers of their own.
func (s *Service) handle(ctx context.Context, w *execute.Work) execute.Result {
	if w.Call.Kind == noop.Kind && s.Noop {
		return execute.Result{Output: w.Args}
	}
	if s.held != nil && isHeld(w.Call.Kind) {
		return s.held.handle(ctx, w)
	}
	if isImageKind(w.Call.Kind) {
		return s.manageImages(ctx, w)
	}
	if isPackKind(w.Call.Kind) {
		return s.managePacks(ctx, w)
	}
	p, ok := s.packs.get(w.Call.Tool)
	if !ok {
		return execute.Fail(contract.CodeUnknownPack, "this instance has no pack %s", w.Call.Tool)
	}
	if w.ToolDigest != p.Digest { // the packs were loaded again after the executor had checked it
		return execute.Fail(contract.CodeToolDrift, "the pack %s has changed since the decision: call again", w.Call.Tool)
	}
	limits := *w.Intent.Sandbox
	r, res := s.runner(p.Tool.Sandbox.Tier, limits)
	if r == nil {
		return res
	}
	if p.Tool.Image != "" && !guard.TierSatisfies(r.Tier(), "container") {
		return execute.Fail(contract.CodeSandboxUnavailable, "images require tier container: configure a containerd socket (BINNACLE_CONTAINERD) on the session-runner")
	}
	stdin, res := input(w)
	if res.ErrorCode == "" {
		stdin, res = attach(ctx, s.env, w, &p, stdin)
	}
	if res.ErrorCode != "" {
		return res
	}
	at, err := contract.ParseTime(w.Intent.NotBefore)
	if err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	network, err := s.egress(ctx, w)
	if err != nil {
		return execute.Fail(contract.CodeEgressRefused, "%v", err)
	}
	leave, res := s.enter(ctx, w, p.Shares)
	if leave == nil {
		return res
	}
	defer leave()
	var receive func([]byte)
	if p.Progress {
		var end func()
		receive, end = s.reports.begin(w)
		defer end()
	}
	out, err := r.Run(ctx, sandbox.Spec{Progress: receive, ID: strings.ToLower(w.Call.ID), Program: p.Program, Image: p.Tool.Image, DiskMiB: p.Tool.DiskMiB, Executable: p.Executable, Env: p.Env, Stdin: stdin, Limits: limits, Egress: network,
		Time: at, Seed: sha256.Sum256(contract.Bytes(w.Intent))})
	var missing *program.MissingInterpreter
	if errors.As(err, &missing) {
		return execute.Fail(contract.CodeInterpreterMissing, "%s cannot run in tier %s: %v", p.Tool.Tool, r.Tier(), missing)
	}
	if err != nil {
		return unavailable(p.Tool.Tool, r.Tier(), err)
	}
	res = s.keep(ctx, w, &p, judge(w, out))
	res.Attestation = &out.Attest
	res.Usage = &out.Usage
	return res
}

// egress obtains the proxy of a call whose intent permits requests. It returns nil for any other
// call, which has no network.
func (s *Service) egress(ctx context.Context, w *execute.Work) (*sandbox.Egress, error) {
	if len(w.Intent.Egress) == 0 && len(w.Intent.EgressRules) == 0 {
		return nil, nil
	}
	o, err := egress.Open(ctx, s.env.Emit, s.env.Transport, s.env.Instance, w.Event)
	if err != nil {
		return nil, err
	}
	return &sandbox.Egress{Socket: o.Socket, CA: []byte(o.Authority)}, nil
}

// runner returns the runner for a program whose manifest names the tier own: for a
// WebAssembly program, which can run only in tier wasi, the runner of that tier, and
// otherwise the first one whose tier satisfies want. If there is none, or if it does
// not provide the user id in want, runner returns nil and the result that refuses
// the call.
func (s *Service) runner(own string, want contract.Sandbox) (sandbox.Runner, execute.Result) {
	if own == s.wasi.Tier() {
		if guard.TierSatisfies(own, want.Tier) {
			return s.wasi, execute.Result{}
		}
		return nil, execute.Fail(contract.CodeSandboxUnavailable, "tier %s is required, and a WebAssembly program runs in tier wasi only: build it for this host", want.Tier)
	}
	for _, r := range s.runners {
		if !guard.TierSatisfies(r.Tier(), want.Tier) {
			continue
		}
		if want.UID == contract.OwnUID && !r.OwnUID() {
			return nil, execute.Fail(contract.CodeSandboxUnavailable, "uid per_run is required, and runs of tier %s share a user id here: run the session-runner as root, or configure a containerd socket", r.Tier())
		}
		return r, execute.Result{}
	}
	if s.broken != nil {
		return nil, execute.Fail(contract.CodeSandboxUnavailable, "no sandbox on this host (%v): allow user namespaces, run as root, or configure a containerd socket", s.broken)
	}
	return nil, execute.Fail(contract.CodeSandboxUnavailable, "tier %s is required, which this host does not support: %s", want.Tier, remedy(want.Tier))
}

// secretsMember is the member of a pack's input that contains the granted secrets. It is
// reserved: a program must be able to rely on its values being those of the vault.
const secretsMember = "_secrets"

// input returns the document for the pack's standard input: the args and, as the member
// secretsMember, the secrets. Without secrets it returns the args alone. The digest of
// the args does not cover the secrets. If the result has an error code, the call cannot
// run.
//
// Args that contain the member secretsMember are refused even if no secret is granted.
// The names of the members are compared with it without regard to case, because parsers
// such as encoding/json match names that way.
func input(w *execute.Work) ([]byte, execute.Result) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(w.Args, &members); err != nil {
		return nil, execute.Fail(contract.CodeInvalidInput, "the arguments are not one JSON object: %v", err)
	}
	for name := range members {
		if strings.EqualFold(name, secretsMember) {
			return nil, execute.Fail(contract.CodeInvalidInput, "arguments: the member %s is reserved for the secrets that the pack is granted: remove it", name)
		}
	}
	if len(w.Secrets) == 0 {
		return w.Args, execute.Result{}
	}
	sec, err := json.Marshal(w.Secrets)
	if err != nil {
		return nil, execute.Fail(contract.CodeInternal, "%v", err)
	}
	if len(members) == 0 {
		return fmt.Appendf(nil, `{"%s":%s}`, secretsMember, sec), execute.Result{}
	}
	return fmt.Appendf(nil, `{"%s":%s,%s`, secretsMember, sec, w.Args[1:]), execute.Result{}
}

// maxStderr is the maximum number of bytes of standard error in an error message.
const maxStderr = 4096

// judge returns the result of a call. out describes how the call's program ended. The
// secrets are redacted from the output and from the error message.
func judge(w *execute.Work, out sandbox.Outcome) execute.Result {
	red := w.Redactor()
	stderr := string(red.Head(out.Stderr, maxStderr))
	if len(out.Stderr) > maxStderr {
		stderr += "...(truncated)"
	}
	switch {
	case out.TimedOut:
		return execute.Result{Status: contract.TimedOut, ErrorCode: contract.CodeTimeout, ErrorMessage: fmt.Sprintf("stopped after %d ms", w.Intent.Sandbox.WallMS)}
	case out.OOM:
		return execute.Fail(contract.CodeResourceExhausted, "killed at its memory limit of %d MiB", w.Intent.Sandbox.MemoryMiB)
	case out.DiskFull:
		return execute.Fail(contract.CodeResourceExhausted, "exit %d, and a writable folder was full: %s", out.Exit, strings.ToValidUTF8(stderr, "\uFFFD"))
	case out.Overflow:
		return execute.Fail(contract.CodeInvalidOutput, "more than max_output_bytes (%d) on standard output", w.Intent.Sandbox.OutputBytes)
	case out.Exit != 0:
		if res, ok := reported(red, out.Stdout); ok {
			return res
		}
		return execute.Fail(contract.CodeHandlerFailed, "exit %d: %s", out.Exit, strings.ToValidUTF8(stderr, "\uFFFD"))
	case len(bytes.TrimSpace(out.Stdout)) == 0:
		return execute.Fail(contract.CodeInvalidOutput, "nothing on standard output")
	}
	var body []byte
	err := canon.CheckDepth(out.Stdout)
	if err == nil {
		body, err = red.JSON(out.Stdout) // redact before canonicalization, which rounds large numbers
	}
	if err == nil {
		body, err = canon.Transform(nil, body)
	}
	if err != nil {
		return execute.Fail(contract.CodeInvalidOutput, "standard output is not one JSON document: %v", err)
	}
	return execute.Result{Output: body}
}
