// Package containerd implements the tier "container": each run has its own container,
// which is created before the run and deleted after it. No other package imports the
// containerd client.
package containerd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/cio"
	"github.com/containerd/containerd/contrib/seccomp"
	"github.com/containerd/containerd/namespaces"
	"github.com/containerd/containerd/oci"
	"github.com/containerd/containerd/snapshots"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// snapshotter is the name of the containerd plugin that stores the unpacked images.
const snapshotter = "overlayfs"

// Runner implements sandbox.Runner with a containerd daemon. Each instance of the
// service needs its own containerd namespace, because reap removes all containers and
// temporary snapshots in the namespace. A Runner is safe for concurrent use.
type Runner struct {
	client  *containerd.Client
	ns      string
	fifoDir string
	uids    *sandbox.UIDs // nil if all runs share one user id

	mu     sync.Mutex
	images map[string]*image // by digest of the program
}

// Open connects to the daemon and removes the containers and temporary snapshots that an
// earlier process of the same instance did not remove. fifoDir must have the same path
// for this process and for the daemon.
func Open(ctx context.Context, socket, ns, fifoDir string) (*Runner, error) {
	if err := os.MkdirAll(fifoDir, 0o700); err != nil {
		return nil, err
	}
	client, err := containerd.New(socket, containerd.WithTimeout(5*time.Second))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", socket, err)
	}
	r := &Runner{client: client, ns: ns, fifoDir: fifoDir, images: map[string]*image{}}
	if r.uids, err = sandbox.OpenUIDs(filepath.Join(fifoDir, "uids")); err != nil {
		slog.Warn("runs share a user id", "err", err)
	}
	if err := r.reap(r.ctx(ctx)); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("containerd at %s: %w", socket, err)
	}
	return r, nil
}

// Close closes the connection to containerd. All runs must have ended, since their
// containers are removed over this connection.
func (r *Runner) Close() error { return r.client.Close() }

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

// reap deletes every container in the namespace, and every snapshot that is not part of
// an image.
func (r *Runner) reap(ctx context.Context) error {
	list, err := r.client.Containers(ctx)
	if err != nil {
		return err
	}
	for _, c := range list {
		if t, err := c.Task(ctx, nil); err == nil {
			_, _ = t.Delete(ctx, containerd.WithProcessKill)
		}
		if err := c.Delete(ctx); err != nil {
			return err
		}
	}
	sn := r.client.SnapshotService(snapshotter)
	var stale []string
	if err := sn.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted {
			stale = append(stale, i.Name)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, name := range stale {
		_ = sn.Remove(ctx, name)
	}
	return nil
}

// Run implements sandbox.Runner. If ctx is done, only the program is stopped: the
// creation of a container ignores ctx, because a cancelled creation could leave the
// container behind.
func (r *Runner) Run(ctx context.Context, s sandbox.Spec) (sandbox.Outcome, error) {
	if err := s.Program.Problem(); err != nil {
		return sandbox.Outcome{}, err
	}
	rpc := r.ctx(ctx)
	img, err := r.image(rpc, s.Program)
	if err != nil {
		return sandbox.Outcome{}, fmt.Errorf("image: %w", err)
	}
	uid, fact, release, err := r.user()
	if err != nil {
		return sandbox.Outcome{}, err
	}
	defer release()
	c, remove, err := r.create(rpc, s, img, uid)
	if err != nil {
		return sandbox.Outcome{}, err
	}
	defer remove()
	out, err := r.execute(ctx, c, s)
	out.Attest = contract.Attestation{Tier: r.Tier(), ImageDigest: s.Program.Digest, Limits: s.Limits,
		Enforced: append([]string{"container", "no_network", "read_only_root", "no_new_privs", "no_capabilities", "seccomp:narrowed", "no_keyring", fact, "memory:cgroup", "pids:cgroup", "cpu:cgroup", "wall_clock", "output_bytes"}, img.facts...)}
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

// create creates a container over a read-only view of the program's snapshot, and
// returns it with a function that removes both.
func (r *Runner) create(rpc context.Context, s sandbox.Spec, img *image, uid int) (containerd.Container, func(), error) {
	sn := r.client.SnapshotService(snapshotter)
	if _, err := sn.View(rpc, s.ID, img.snapshot, snapshots.WithLabels(map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339)})); err != nil {
		return nil, nil, fmt.Errorf("snapshot: %w", err)
	}
	c, err := r.client.NewContainer(rpc, s.ID, containerd.WithSnapshotter(snapshotter), containerd.WithSnapshot(s.ID),
		containerd.WithNewSpec(r.spec(s, uint32(uid))...))
	if err != nil {
		_ = sn.Remove(rpc, s.ID)
		return nil, nil, fmt.Errorf("container: %w", err)
	}
	return c, func() {
		_ = c.Delete(rpc)
		_ = sn.Remove(rpc, s.ID)
	}, nil
}

// drainTime is the maximum time to wait for output after the program has ended.
const drainTime = 2 * time.Second

// execute runs the container's program and deletes its task. The program is killed when
// ctx is done or its time limit has passed.
func (r *Runner) execute(ctx context.Context, c containerd.Container, s sandbox.Spec) (out sandbox.Outcome, err error) {
	rpc := r.ctx(ctx)
	stdout, stderr := &sandbox.Capped{Max: s.Limits.OutputBytes}, &sandbox.Capped{Max: sandbox.StderrMax}
	stdin := &closing{r: bytes.NewReader(s.Stdin), eof: make(chan struct{})}
	task, err := c.NewTask(rpc, cio.NewCreator(cio.WithStreams(stdin, stdout, stderr), cio.WithFIFODir(r.fifoDir)))
	if err != nil {
		return out, fmt.Errorf("task: %w", err)
	}
	destroyed := false
	defer func() {
		if !destroyed {
			_, _ = task.Delete(rpc, containerd.WithProcessKill)
		}
	}()
	exited, err := task.Wait(rpc)
	if err != nil {
		return out, fmt.Errorf("wait: %w", err)
	}
	if err := task.Start(rpc); err != nil {
		return out, fmt.Errorf("start: %w", err)
	}
	go func() {
		<-stdin.eof
		_ = task.CloseIO(rpc, containerd.WithStdinCloser)
	}()
	status, timedOut := await(ctx, exited, time.Duration(s.Limits.WallMS)*time.Millisecond, func() { _ = task.Kill(rpc, 9, containerd.WithKillAll) })
	drained := make(chan struct{})
	go func() { task.IO().Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(drainTime):
	}
	out.Usage = r.usage(rpc, task)
	destroyed = true
	_, err = task.Delete(rpc, containerd.WithProcessKill)
	out.TimedOut = timedOut
	out.Exit, out.Stdout, out.Stderr, out.Overflow = int(status.ExitCode()), stdout.Buf, stderr.Buf, stdout.Over
	out.OOM = out.Exit == killed && !timedOut && ctx.Err() == nil
	return out, err
}

// killed is the exit code of a program that was ended by SIGKILL. If neither ctx nor the
// time limit was the cause, execute assumes that the program reached its memory limit.
const killed = 128 + 9

// await waits until the program ends. It calls kill when the time limit has passed or
// ctx is done, and then still waits for the end. timedOut reports whether the time limit
// was the cause.
func await[T any](ctx context.Context, exited <-chan T, most time.Duration, kill func()) (status T, timedOut bool) {
	wall := time.NewTimer(most)
	defer wall.Stop()
	select {
	case status = <-exited:
		return status, false
	case <-wall.C:
		timedOut = true
	case <-ctx.Done():
	}
	kill()
	return <-exited, timedOut
}

// closing is a reader that closes the channel eof at the end of r, so that CloseIO can
// be called. Until then containerd keeps the program's standard input open.
type closing struct {
	r    io.Reader
	once sync.Once
	eof  chan struct{}
}

// Read implements io.Reader. It closes the channel eof at the first error, such as
// io.EOF.
func (c *closing) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil {
		c.once.Do(func() { close(c.eof) })
	}
	return n, err
}

// spec returns the options of the container, among others: no network, no capabilities,
// a system call filter, a read-only root, two tmpfs mounts of 64 MiB, and the limits of
// the run.
func (r *Runner) spec(s sandbox.Spec, uid uint32) []oci.SpecOpts {
	mem := uint64(s.Limits.MemoryMiB) << 20
	return []oci.SpecOpts{
		oci.WithDefaultSpec(), oci.WithDefaultUnixDevices, oci.WithProcessArgs(s.Program.Argv()...), oci.WithProcessCwd("/work"),
		oci.WithEnv(append([]string{"PATH=/pack", "HOME=/work", "TMPDIR=/tmp"}, s.Env...)),
		oci.WithRootFSReadonly(), oci.WithUIDGID(uid, uid), oci.WithCapabilities(nil), oci.WithNoNewPrivileges,
		seccomp.WithDefaultProfile(), narrowed, oci.WithMemoryLimit(mem), swapOff(int64(mem)), oci.WithPidsLimit(s.Limits.Pids),
		oci.WithCPUCFS(s.Limits.CPUMillis*100, 100000),
		oci.WithMounts([]specs.Mount{
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "size=64m", "mode=1777"}},
			{Destination: "/work", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "size=64m", "mode=1777"}}}),
		oci.WithMaskedPaths([]string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"}),
		oci.WithHostname("sandbox"),
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
