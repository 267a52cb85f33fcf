// Package containerd is the tier "container": every run in a container of
// its own, made and destroyed around it. It is the only importer of the
// containerd client.
package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

const snapshotter = "overlayfs"

// Runner implements sandbox.Runner over a containerd socket. The containerd
// namespace belongs to one runner instance alone.
type Runner struct {
	client  *containerd.Client
	ns      string
	fifoDir string

	mu     sync.Mutex
	images map[string]containerd.Image // by program digest
}

// Open connects and removes what an earlier process of the same instance
// left behind. fifoDir must be one path for client and daemon.
func Open(ctx context.Context, socket, ns, fifoDir string) (*Runner, error) {
	client, err := containerd.New(socket, containerd.WithTimeout(5*time.Second))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", socket, err)
	}
	r := &Runner{client: client, ns: ns, fifoDir: fifoDir, images: map[string]containerd.Image{}}
	if err := os.MkdirAll(fifoDir, 0o700); err != nil {
		return nil, err
	}
	if err := r.reap(r.ctx(ctx)); err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", socket, err)
	}
	return r, nil
}

// Close ends the connection.
func (r *Runner) Close() error { return r.client.Close() }

// Tier implements sandbox.Runner.
func (*Runner) Tier() string { return "container" }

func (r *Runner) ctx(ctx context.Context) context.Context {
	return namespaces.WithNamespace(context.WithoutCancel(ctx), r.ns)
}

// reap destroys every container and snapshot of the namespace.
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

// Run implements sandbox.Runner. Only waiting looks at ctx: a container half
// made by a cancelled call would be a leak.
func (r *Runner) Run(ctx context.Context, s sandbox.Spec) (sandbox.Outcome, error) {
	rpc := r.ctx(ctx)
	img, err := r.image(rpc, s)
	if err != nil {
		return sandbox.Outcome{}, fmt.Errorf("image: %w", err)
	}
	diff, err := img.RootFS(rpc)
	if err != nil {
		return sandbox.Outcome{}, err
	}
	sn := r.client.SnapshotService(snapshotter)
	parent := chainID(diff)
	if _, err := sn.View(rpc, s.ID, parent, snapshots.WithLabels(map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339)})); err != nil {
		return sandbox.Outcome{}, fmt.Errorf("snapshot: %w", err)
	}
	defer func() { _ = sn.Remove(rpc, s.ID) }()
	c, err := r.client.NewContainer(rpc, s.ID, containerd.WithSnapshotter(snapshotter), containerd.WithSnapshot(s.ID),
		containerd.WithNewSpec(r.spec(s)...))
	if err != nil {
		return sandbox.Outcome{}, fmt.Errorf("container: %w", err)
	}
	defer func() { _ = c.Delete(rpc) }()
	stdout, stderr := &sandbox.Capped{Max: s.Limits.OutputBytes}, &sandbox.Capped{Max: sandbox.StderrMax}
	stdin := &closing{r: bytes.NewReader(s.Stdin), eof: make(chan struct{})}
	task, err := c.NewTask(rpc, cio.NewCreator(cio.WithStreams(stdin, stdout, stderr), cio.WithFIFODir(r.fifoDir)))
	if err != nil {
		return sandbox.Outcome{}, fmt.Errorf("task: %w", err)
	}
	destroyed := false
	defer func() {
		if !destroyed {
			_, _ = task.Delete(rpc, containerd.WithProcessKill)
		}
	}()
	exited, err := task.Wait(rpc)
	if err != nil {
		return sandbox.Outcome{}, fmt.Errorf("wait: %w", err)
	}
	if err := task.Start(rpc); err != nil {
		return sandbox.Outcome{}, fmt.Errorf("start: %w", err)
	}
	go func() {
		<-stdin.eof
		_ = task.CloseIO(rpc, containerd.WithStdinCloser)
	}()
	out := sandbox.Outcome{}
	wall := time.NewTimer(time.Duration(s.Limits.WallMS) * time.Millisecond)
	defer wall.Stop()
	var status containerd.ExitStatus
	select {
	case status = <-exited:
	case <-wall.C:
		out.TimedOut = true
		_ = task.Kill(rpc, 9, containerd.WithKillAll)
		status = <-exited
	case <-ctx.Done():
		_ = task.Kill(rpc, 9, containerd.WithKillAll)
		status = <-exited
	}
	drained := make(chan struct{})
	go func() { task.IO().Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(2 * time.Second):
	}
	destroyed = true
	_, derr := task.Delete(rpc, containerd.WithProcessKill)
	out.Exit, out.Stdout, out.Stderr, out.Overflow = int(status.ExitCode()), stdout.Buf, stderr.Buf, stdout.Over
	out.OOM = out.Exit == 137 && !out.TimedOut && ctx.Err() == nil
	out.Attest = contract.Attestation{Tier: "container", ImageDigest: img.Target().Digest.String(), Limits: s.Limits,
		Enforced: []string{"container", "no_network", "read_only_root", "no_new_privs", "no_capabilities", "seccomp:default", "memory:cgroup", "pids:cgroup", "cpu:cgroup", "wall_clock", "output_bytes"}}
	return out, derr
}

// closing tells when the reader is drained, since containerd keeps the
// program's stdin open until it is told.
type closing struct {
	r    io.Reader
	once sync.Once
	eof  chan struct{}
}

// Read implements io.Reader.
func (c *closing) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil {
		c.once.Do(func() { close(c.eof) })
	}
	return n, err
}

func (r *Runner) spec(s sandbox.Spec) []oci.SpecOpts {
	mem := uint64(s.Limits.MemoryMiB) << 20
	return []oci.SpecOpts{
		oci.WithDefaultSpec(), oci.WithDefaultUnixDevices, oci.WithProcessArgs("/pack/main"), oci.WithProcessCwd("/work"),
		oci.WithEnv(append([]string{"PATH=/pack", "HOME=/work", "TMPDIR=/tmp"}, s.Env...)),
		oci.WithRootFSReadonly(), oci.WithUIDGID(65534, 65534), oci.WithCapabilities(nil), oci.WithNoNewPrivileges,
		seccomp.WithDefaultProfile(), nativeArch, oci.WithMemoryLimit(mem), swapOff(int64(mem)), oci.WithPidsLimit(s.Limits.Pids),
		oci.WithCPUCFS(s.Limits.CPUMillis*100, 100000),
		oci.WithMounts([]specs.Mount{
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "size=64m", "mode=1777"}},
			{Destination: "/work", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "size=64m", "mode=1777"}}}),
		oci.WithMaskedPaths([]string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"}),
		oci.WithHostname("sandbox"),
	}
}

// nativeArch compiles the seccomp profile for one architecture only: a third
// of a container's start, and 32-bit system calls are refused.
func nativeArch(_ context.Context, _ oci.Client, _ *containersContainer, s *oci.Spec) error {
	if s.Linux != nil && s.Linux.Seccomp != nil && len(s.Linux.Seccomp.Architectures) > 0 {
		s.Linux.Seccomp.Architectures = s.Linux.Seccomp.Architectures[:1]
	}
	return nil
}

func swapOff(mem int64) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containersContainer, s *oci.Spec) error {
		s.Linux.Resources.Memory.Swap = &mem
		return nil
	}
}

// image imports the program as an image of one layer, once per digest. The
// layer ships every mount point, since the snapshot is a read-only view.
func (r *Runner) image(ctx context.Context, s sandbox.Spec) (containerd.Image, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if img, ok := r.images[s.Digest]; ok {
		return img, nil
	}
	program, err := os.ReadFile(s.Program)
	if err != nil {
		return nil, err
	}
	name := "binnacle.invalid/pack:" + s.Digest[len("sha256:"):]
	archive, err := ociArchive(name, program)
	if err != nil {
		return nil, err
	}
	ctx, done, err := r.client.WithLease(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = done(ctx) }()
	got, err := r.client.Import(ctx, bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	if len(got) != 1 {
		return nil, errors.New("import did not make one image")
	}
	img := containerd.NewImage(r.client, got[0])
	if err := img.Unpack(ctx, snapshotter); err != nil {
		return nil, err
	}
	r.images[s.Digest] = img
	return img, nil
}

func chainID(diffs []digest.Digest) string {
	// One layer: its chain id is its diff id.
	return diffs[0].String()
}

func ociArchive(name string, program []byte) ([]byte, error) {
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	for _, d := range []string{"proc", "sys", "dev", "run", "tmp", "work", "pack", "etc"} {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "pack/main", Mode: 0o755, Size: int64(len(program))}); err != nil {
		return nil, err
	}
	if _, err := tw.Write(program); err != nil {
		return nil, err
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	ow := tar.NewWriter(&out)
	put := func(path string, b []byte) {
		_ = ow.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(b))})
		_, _ = ow.Write(b)
	}
	blob := func(mediaType string, b []byte) v1.Descriptor {
		d := digest.FromBytes(b)
		put(filepath.Join("blobs", d.Algorithm().String(), d.Encoded()), b)
		return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(b))}
	}
	layerDesc := blob(v1.MediaTypeImageLayer, layer.Bytes())
	config, err := json.Marshal(v1.Image{Platform: v1.Platform{Architecture: goarch, OS: "linux"}, RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{layerDesc.Digest}}})
	if err != nil {
		return nil, err
	}
	configDesc := blob(v1.MediaTypeImageConfig, config)
	manifest, err := json.Marshal(v1.Manifest{Versioned: ocispec.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: configDesc, Layers: []v1.Descriptor{layerDesc}})
	if err != nil {
		return nil, err
	}
	desc := blob(v1.MediaTypeImageManifest, manifest)
	desc.Platform = &v1.Platform{Architecture: goarch, OS: "linux"}
	desc.Annotations = map[string]string{"io.containerd.image.name": name}
	index, err := json.Marshal(v1.Index{Versioned: ocispec.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{desc}})
	if err != nil {
		return nil, err
	}
	put("index.json", index)
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return out.Bytes(), ow.Close()
}
