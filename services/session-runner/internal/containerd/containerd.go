// Package containerd implements the tiers "container" and "microvm", in which each run has
// its own container that is deleted after the run, and held sandboxes, whose containers
// exist across calls. No other package imports the containerd client.
package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/contrib/seccomp"
	"github.com/containerd/containerd/namespaces"
	"github.com/containerd/containerd/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// snapshotter is the name of the containerd plugin that stores the unpacked images.
const snapshotter = "overlayfs"

// Runner implements sandbox.Runner with a containerd daemon. Each instance of the
// service needs its own containerd namespace, because sweep removes all containers and
// temporary snapshots in the namespace that are not of this process. A Runner is safe for
// concurrent use.
type Runner struct {
	client   *containerd.Client
	socket   string // path of the daemon's socket
	ns       string
	oci      ociRuntime
	fifoDir  string
	uids     *sandbox.UIDs // nil if all runs share one user id
	own      owned
	pool     pool
	discards discards
	stop     context.CancelFunc // ends the sweeps
	swept    sync.WaitGroup
	store    *Store
	host     host

	mu     sync.Mutex
	images map[imageID]*image

	keep func(id string) bool // reports whether a sweep must not remove a container that own does not have; nil means that it removes them all
}

// imageID identifies the image of a program.
type imageID struct {
	program string // digest
	base    string // digest of the base image; "" means none
}

// maxDiscards is the maximum number of containers that are removed concurrently after
// their runs.
const maxDiscards = 8

// closeTime is the maximum time for the last sweep of a runner.
const closeTime = 10 * time.Second

// Open connects to the daemon and removes the containers and temporary snapshots that an earlier
// process of the same instance did not remove. fifoDir must have the same path for this process and
// for the daemon. The namespace is mesh+instance; mesh must be a prefix of the namespaces of all
// instances of a mesh, and of no other namespace. archives is the folder of image archives, or "".
// runtime is the command of the OCI runtime that the daemon's shim runs, or "" for runc. warm is the
// maximum number of prepared containers; without a launcher for this architecture, none are prepared.
func Open(ctx context.Context, socket, mesh, instance, fifoDir, archives, runtime string, warm int) (*Runner, error) {
	ns := mesh + instance
	uidDir := filepath.Join(fifoDir, "uids") // shared by the instances on a host
	fifoDir = filepath.Join(fifoDir, ns)
	if err := os.RemoveAll(fifoDir); err != nil { // FIFOs of an earlier process
		return nil, err
	}
	if err := os.MkdirAll(fifoDir, 0o700); err != nil {
		return nil, err
	}
	client, err := dial(socket)
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", socket, err)
	}
	r := &Runner{client: client, socket: socket, ns: ns, oci: ociRuntime(runtime), fifoDir: fifoDir, images: map[imageID]*image{}}
	r.host = newHost(r)
	r.store = &Store{client: client, ns: ns, mesh: mesh, archives: archives, ran: r.ran}
	if r.uids, err = sandbox.OpenUIDs(uidDir); err != nil {
		slog.Warn("runs share a user id", "err", err)
	}
	if launcherCode == nil {
		warm = 0
	}
	if err := begin(ctx, r, warm); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("containerd at %s: %w", socket, err)
	}
	return r, nil
}

// begin removes what an earlier process of the runner's instance left, opens its pool and
// starts its sweeps.
func begin(ctx context.Context, r *Runner, warm int) error {
	if err := errors.Join(r.sweep(r.ctx(ctx)), r.sweepLeases(r.ctx(ctx))); err != nil {
		return err
	}
	r.discards.slots = make(chan struct{}, maxDiscards)
	r.pool = pool{max: warm, discard: func(c *prepared) { c.remove() },
		prepare: func(p profile, prog *program.Program) (*prepared, error) { return r.prepare(p, prog, nil) }}
	r.pool.open()
	var sweeping context.Context
	sweeping, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.swept.Go(func() { r.sweeps(sweeping) })
	return nil
}

// Store returns the store of the runner's images.
func (r *Runner) Store() *Store { return r.store }

// Close removes all containers and closes the connection to containerd. All runs must
// have ended.
func (r *Runner) Close() error {
	r.stop()
	r.swept.Wait()
	r.pool.close()
	r.discards.all.Wait()
	// Removals fail while containerd restarts, and Close may come before the next sweep.
	ctx, cancel := context.WithTimeout(r.ctx(context.Background()), closeTime)
	defer cancel()
	r.report("sweep", r.ns, r.sweep(ctx))
	return r.client.Close()
}

// Tier implements sandbox.Runner. In this tier each run has its own container, with a
// system call filter and cgroup limits.
func (*Runner) Tier() string { return "container" }

// OwnUID implements sandbox.Runner. Runs share a user id if the folder for the locks on
// user ids cannot be created or written.
func (r *Runner) OwnUID() bool { return r.uids != nil }

// ctx returns a context for requests to containerd. It has the runner's namespace and is
// never cancelled.
func (r *Runner) ctx(ctx context.Context) context.Context {
	return namespaces.WithNamespace(context.WithoutCancel(ctx), r.ns)
}

// Run implements sandbox.Runner. It uses a prepared container if there is one. If ctx is
// done, only the program is stopped, or not started: the creation of a container ignores
// ctx, because a cancelled creation could leave the container behind. The container is
// removed in the background.
func (r *Runner) Run(ctx context.Context, s sandbox.Spec) (sandbox.Outcome, error) {
	return r.runIn(ctx, s, "")
}

// runIn is Run with a containerd runtime; "" means containerd's default runtime, which tier
// "container" uses.
func (r *Runner) runIn(ctx context.Context, s sandbox.Spec, runtime string) (sandbox.Outcome, error) {
	if err := s.Program.Problem(); err != nil {
		return sandbox.Outcome{}, err
	}
	if err := checkEgress(s.Egress); err != nil {
		return sandbox.Outcome{}, err
	}
	s.Env = s.Egress.Environment(s.Env)
	p := profile{runtime: runtime, image: imageID{s.Program.Digest, s.Image}, memoryMiB: s.Limits.MemoryMiB, cpuMillis: s.Limits.CPUMillis, pids: s.Limits.Pids, diskMiB: cmp.Or(s.DiskMiB, sandbox.DefaultDiskMiB), executable: s.Executable, egress: s.Egress != nil}
	c := r.pool.take(p, s.Program)
	if c == nil {
		var err error
		if c, err = r.prepare(p, s.Program, s.Env); err != nil {
			return sandbox.Outcome{}, err
		}
	}
	defer r.discards.start(c.remove)
	out, err := r.execute(ctx, c, s)
	out.Attest = contract.Attestation{Tier: r.Tier(), ImageDigest: s.Program.Digest, Limits: s.Limits,
		Enforced: append([]string{"container", s.Egress.Fact(), "read_only_root", "no_new_privs", "no_capabilities", "seccomp:narrowed", "no_keyring", c.uidFact, "memory:cgroup", "pids:cgroup", "cpu:cgroup", sandbox.DiskFact(p.diskMiB), "wall_clock", "output_bytes"}, slices.Concat(c.image.facts, r.oci.facts())...)}
	return out, err
}

// user returns the user id of a run, the entry for the user id in the attestation, and a
// function that releases the user id.
func (r *Runner) user() (uid int, fact string, release func(), err error) {
	if r.uids == nil {
		return sandbox.SharedUID, "uid:shared", func() {}, nil
	}
	if uid, release, err = r.uids.Take(); err != nil {
		return 0, "", nil, fmt.Errorf("user id: %w", err)
	}
	return uid, "uid:per_run", release, nil
}

// drainTime is the maximum time to wait for output after the program has ended.
const drainTime = 2 * time.Second

// execute runs the program in a prepared container. The program is killed when ctx is done, its
// time limit has passed, or its output exceeds the limit. All processes of the container have ended
// when execute returns without an error.
func (r *Runner) execute(ctx context.Context, c *prepared, s sandbox.Spec) (out sandbox.Outcome, err error) {
	stdout, stderr := &sandbox.Capped{Max: s.Limits.OutputBytes}, sandbox.NewStderr(&s)
	stop, err := c.egress(s.Egress)
	if err != nil {
		return out, err
	}
	defer stop()
	if ctx.Err() != nil { // the call ended while the container was created
		return out, fmt.Errorf("the program was not started: %w", context.Cause(ctx))
	}
	rpc := r.ctx(ctx)
	kill := func() { _ = c.task.Kill(rpc, 9, containerd.WithKillAll) }
	cut := &cutter{to: stdout, over: func() { go kill() }}
	if err := c.start(s.Program.Argv(), environment(c.image.env, s.Env), s.Stdin, cut, stderr); err != nil {
		return out, err
	}
	timedOut := await(ctx, c.ended.done, time.Duration(s.Limits.WallMS)*time.Millisecond, kill)
	if err := c.ended.err; err != nil {
		return out, fmt.Errorf("wait: %w", err)
	}
	drained := make(chan struct{})
	go func() { c.task.IO().Wait(); close(drained) }()
	var oom bool
	out.Usage, oom = usage(rpc, c.task)
	select {
	case <-drained:
	case <-time.After(drainTime):
	}
	c.stdout.set(nil)
	c.stderr.set(nil)
	out.Usage.EgressBytes = stop()
	out.Exit, out.TimedOut, out.OOM = c.ended.exit, timedOut, oom && c.ended.exit != 0 && !timedOut && ctx.Err() == nil
	out.DiskFull = c.ended.exit != 0 && !timedOut && ctx.Err() == nil && c.folders.Full()
	out.Stdout, out.Stderr, out.Overflow = stdout.Buf, stderr.Bytes(), stdout.Over
	return out, nil
}

// cutter passes writes to a Capped and calls over once, at the first write that exceeds the
// maximum.
type cutter struct {
	to   *sandbox.Capped
	over func()
	once sync.Once
}

// Write implements io.Writer. It never fails.
func (c *cutter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	if c.to.Over {
		c.once.Do(c.over)
	}
	return n, err
}

// await waits until ended is closed. It calls kill when the time limit has passed or ctx
// is done, and then still waits for the end. It reports whether the time limit was the
// cause.
func await(ctx context.Context, ended <-chan struct{}, most time.Duration, kill func()) (timedOut bool) {
	wall := time.NewTimer(most)
	defer wall.Stop()
	select {
	case <-ended:
		return false
	case <-wall.C:
		timedOut = true
	case <-ctx.Done():
	}
	kill()
	<-ended
	return timedOut
}

// environment returns the environment of a program: PATH, HOME and TMPDIR of the
// sandbox, and the variables of the base image and of the pack. Of variables with the
// same name the last one counts, but an image does not change HOME and TMPDIR.
func environment(image, pack []string) []string {
	var names, env []string
	for _, v := range slices.Concat([]string{"PATH=/pack"}, image, []string{"HOME=/work", "TMPDIR=/tmp"}, pack) {
		name, _, _ := strings.Cut(v, "=")
		if i := slices.Index(names, name); i >= 0 {
			env[i] = v
			continue
		}
		names, env = append(names, name), append(env, v)
	}
	return env
}

// spec returns the options of the container, among others: a network namespace with a
// loopback device only, no capabilities, a system call filter unless argv[0] is filteredPath,
// a read-only root, and the limits of the run. The writable folders are tmpfs mounts of the
// profile's size, whose pages and files count as memory of the run. Their files cannot be executed,
// except those in /work if the profile permits it.
func spec(p profile, argv, env []string, uid uint32, way wayOut) []oci.SpecOpts {
	mem := uint64(p.memoryMiB) << 20
	var mounts []specs.Mount
	for _, path := range writable {
		options := append([]string{"nosuid", "nodev"}, sandbox.FolderOptions(p.diskMiB)...)
		if path != "/work" || !p.executable {
			options = append(options, "noexec")
		}
		mounts = append(mounts, specs.Mount{Destination: path, Type: "tmpfs", Source: "tmpfs", Options: options})
	}
	if way != "" {
		mounts = append(mounts, way.mounts()...)
	}
	filter := oci.Compose(seccomp.WithDefaultProfile(), narrowed)
	if argv[0] == filteredPath { // installs the filter itself
		filter = oci.Compose()
	}
	return []oci.SpecOpts{
		oci.WithDefaultSpec(), oci.WithDefaultUnixDevices, oci.WithProcessArgs(argv...), oci.WithProcessCwd("/work"),
		withEnv(env),
		oci.WithRootFSReadonly(), oci.WithUIDGID(uid, uid), oci.WithCapabilities(nil), oci.WithNoNewPrivileges,
		filter, oci.WithMemoryLimit(mem), swapOff(int64(mem)), oci.WithPidsLimit(p.pids),
		oci.WithCPUCFS(p.cpuMillis*100, 100000),
		oci.WithoutMounts("/dev/shm"), oci.WithMounts(mounts),
		oci.WithMaskedPaths([]string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"}),
		oci.WithHostname("sandbox"), withVersion,
	}
}

// withEnv sets the environment of the process to exactly env.
func withEnv(env []string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containersContainer, s *oci.Spec) error {
		s.Process.Env = env
		return nil
	}
}

// swapOff sets the limit of memory plus swap to the memory limit, so that the container
// cannot swap.
func swapOff(mem int64) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containersContainer, s *oci.Spec) error {
		s.Linux.Resources.Memory.Swap = &mem
		return nil
	}
}
