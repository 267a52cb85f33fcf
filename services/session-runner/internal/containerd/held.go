package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/cio"
	"github.com/containerd/containerd/content"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/oci"
	"github.com/containerd/containerd/snapshots"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// The container of a held sandbox outlives this process. Its first process is a program of
// about 100 bytes of machine code, which is added to the image as a layer: it ignores
// SIGCHLD, so that the kernel removes the ended processes of the sandbox, sleeps for the
// number of seconds in its first argument, and exits, which ends the container. The life
// of a held sandbox is thus limited while no session-runner runs.

// initPath is the path of the first process's program in a held sandbox.
const initPath = "/.binnacle/init"

// heldListenerPath is the path of the listener (see listenerPath) in a held sandbox.
const heldListenerPath = "/.binnacle/listener"

// ErrNoInit means that held sandboxes are not available on this architecture.
var ErrNoInit = errors.New("held sandboxes need a host with the amd64 architecture")

// ErrGone means that a held sandbox has no running container.
var ErrGone = errors.New("the container does not run")

// HeldSpec describes the container of a held sandbox.
type HeldSpec struct {
	ID      string // unique in the namespace
	Limits  contract.Sandbox
	DiskMiB int64 // size of /work
	Life    time.Duration
	Egress  bool // commands may have egress
}

// Held is the running container of a held sandbox. It is safe for concurrent use.
type Held struct {
	r       *Runner
	id      string
	ctr     containerd.Container
	task    containerd.Task
	ended   *ending
	uidFact string
	release func()
	way     wayOut // "" if commands cannot have egress

	network sync.Mutex // held by the command that has egress

	mu  sync.Mutex
	cpu int64 // total CPU time in milliseconds at the last call of Usage, or at the adoption
}

// HeldImage is an image that held sandboxes can be created from.
type HeldImage struct {
	Digest   string // digest of its manifest
	snapshot string
	env      []string
}

// Holder creates and adopts the containers of held sandboxes. All instances that share a
// daemon share the namespace of these containers, so that an instance can adopt those of
// another one that has ended. It is safe for concurrent use.
type Holder struct {
	r    *Runner // for requests in the namespace
	host string

	store  *Store                // of the namespace
	exists func(*HeldImage) bool // prepared

	mu     sync.Mutex
	images map[string]*HeldImage // by digest
}

// Holder returns a Holder for a namespace of the runner's daemon. It must not be used after
// the runner was closed.
func (r *Runner) Holder(ns string) (*Holder, error) {
	server, err := r.client.Server(r.ctx(context.Background()))
	if err != nil {
		return nil, err
	}
	held := &Runner{client: r.client, socket: r.socket, ns: ns, fifoDir: r.fifoDir, uids: r.uids}
	h := &Holder{r: held, host: server.UUID, images: map[string]*HeldImage{},
		store: &Store{client: r.client, ns: ns, mesh: r.store.mesh, archives: r.store.archives, ran: held.ran}}
	h.exists = h.prepared
	return h, nil
}

// Host returns the id of the daemon, which a restart does not change.
func (h *Holder) Host() string { return h.host }

// OwnUID reports whether concurrent sandboxes and runs never share a user id.
func (h *Holder) OwnUID() bool { return h.r.OwnUID() }

// Sweep removes each container in the namespace for whose id open returns false, and the
// parts that remain of such a container. open is called after the container was found.
func (h *Holder) Sweep(open func(id string) bool) error {
	folders, err := os.ReadDir(h.waysOut()) // read before open is called, so that a sandbox that is created meanwhile keeps its folder
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	all := &Runner{client: h.r.client, socket: h.r.socket, ns: h.r.ns, keep: open}
	err = errors.Join(err, all.sweep(all.ctx(context.Background())))
	for _, f := range folders {
		if !open(f.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(h.waysOut(), f.Name())))
		}
	}
	return err
}

// waysOut returns the folder with the folders of the held sandboxes whose commands may have egress.
// It is not below the folder of this instance's FIFOs, because the next process removes that folder
// when it starts.
func (h *Holder) waysOut() string { return filepath.Join(filepath.Dir(h.r.fifoDir), h.r.ns) }

// OpenImage returns the image with the given digest, to which it adds the program of the
// first process. It prepares each image once, until GC removes it. If the namespace does not have
// the image, OpenImage adds it from another instance's namespace or from the folder of
// archives. It returns a *MissingImage if the image is in none of them, and ErrNoInit if
// this architecture has no held sandboxes.
func (h *Holder) OpenImage(want string) (*HeldImage, error) {
	r := h.r
	if initCode == nil {
		return nil, ErrNoInit
	}
	if img := h.opened(want); img != nil && h.exists(img) {
		return img, nil
	}
	h.store.building.Lock() // h.mu is not held, so that images that were opened before can be used
	defer h.store.building.Unlock()
	if img := h.opened(want); img != nil && h.exists(img) {
		return img, nil
	}
	ctx, done, err := r.client.WithLease(r.ctx(context.Background()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = done(ctx) }()
	if _, err := h.store.base(ctx, want); err != nil {
		return nil, err
	}
	img, err := r.client.GetImage(ctx, baseName(want))
	if err != nil {
		return nil, err
	}
	layers, err := img.RootFS(ctx)
	if err != nil {
		return nil, err
	}
	config, err := img.Spec(ctx)
	if err != nil {
		return nil, err
	}
	out := &HeldImage{Digest: img.Target().Digest.String(), env: config.Config.Env}
	if out.snapshot, err = r.withInit(ctx, identity.ChainID(layers).String()); err != nil {
		return nil, fmt.Errorf("first process: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.images[want] = out
	return out, nil
}

// opened returns the image that OpenImage has returned for a digest before, or nil.
func (h *Holder) opened(want string) *HeldImage {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.images[want]
}

// withInit returns the name of a committed snapshot that has the content of parent, the program of
// the first process, the listener, the writer and the mount points of a held sandbox.
func (r *Runner) withInit(ctx context.Context, parent string) (string, error) {
	layer := initLayer()
	desc := v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digest.FromBytes(layer), Size: int64(len(layer))}
	name := heldPrefix + digest.FromString(parent+" "+desc.Digest.String()).Encoded()
	sn := r.client.SnapshotService(snapshotter)
	if i, err := sn.Stat(ctx, name); err == nil && i.Kind == snapshots.KindCommitted {
		return name, nil
	}
	if err := content.WriteBlob(ctx, r.client.ContentStore(), name, bytes.NewReader(layer), desc); err != nil {
		return "", err
	}
	root := snapshots.WithLabels(map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339)})
	work := checkPrefix + rand.Text() // a random name, because another instance may create the same snapshot
	mounts, err := sn.Prepare(ctx, work, parent, root)
	if err != nil {
		return "", err
	}
	if _, err = r.client.DiffService().Apply(ctx, desc, mounts); err == nil {
		err = sn.Commit(ctx, name, work, root)
	}
	if err != nil {
		_ = sn.Remove(ctx, work)
	}
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return "", err
	}
	return name, nil
}

// initLayer returns the layer that withInit adds.
func initLayer() []byte {
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	for _, d := range []string{"proc", "sys", "dev", "run", "tmp", "work", ".binnacle"} {
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: dirMode(d)}) // a Buffer never fails
	}
	program := func(path string, body []byte) {
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path, "/"), Mode: 0o755, Size: int64(len(body))})
		_, _ = tw.Write(body)
	}
	program(initPath, elf(launchers["amd64"].machine, initCode))
	program(heldListenerPath, listenerELF("amd64"))
	program(heldWriterPath, elf(launchers["amd64"].machine, writerCode))
	_ = tw.Close()
	return layer.Bytes()
}

// wayLabel is the label of a container whose commands may have egress. Its value is the container's
// wayOut.
const wayLabel = "binnacle.egress"

// uidLabel is the label of a container with the user id of its processes.
const uidLabel = "binnacle.uid"

// Hold creates and starts the container of a held sandbox. It has a read-only root, no
// network, and the limits of a run; /tmp and /work are in memory, and their content counts
// against the memory limit. The caller must call Remove on the result, unless the
// container is to outlive this process.
func (h *Holder) Hold(img *HeldImage, s HeldSpec) (_ *Held, err error) {
	r := h.r
	rpc := r.ctx(context.Background())
	uid, fact, release, err := r.user()
	if err != nil {
		return nil, err
	}
	id := s.ID
	undo := []func(){release}
	defer func() {
		for i := len(undo) - 1; err != nil && i >= 0; i-- {
			undo[i]()
		}
	}()
	sn := r.client.SnapshotService(snapshotter)
	if _, err := sn.View(rpc, id, img.snapshot, snapshots.WithLabels(map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339)})); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	undo = append(undo, func() { r.report("snapshot", id, sn.Remove(rpc, id)) })
	var way wayOut
	labels := map[string]string{uidLabel: strconv.Itoa(uid)}
	if s.Egress {
		way = wayOut(filepath.Join(h.waysOut(), id))
		labels[wayLabel] = string(way)
		undo = append(undo, func() { r.report("folder", id, os.RemoveAll(string(way))) })
		if err := way.create(); err != nil {
			return nil, fmt.Errorf("egress: %w", err)
		}
	}
	p := profile{memoryMiB: s.Limits.MemoryMiB, cpuMillis: s.Limits.CPUMillis, pids: s.Limits.Pids, diskMiB: sandbox.DefaultDiskMiB}
	argv := []string{initPath, strconv.FormatInt(int64(s.Life/time.Second), 10)}
	ctr, err := r.client.NewContainer(leaseless(rpc), id, containerd.WithSnapshotter(snapshotter), containerd.WithSnapshot(id),
		containerd.WithContainerLabels(labels), r.oci.under("", r.client),
		containerd.WithNewSpec(append(spec(p, argv, environment(img.env, nil), uint32(uid), way), workSize(s.DiskMiB))...))
	if err != nil {
		return nil, fmt.Errorf("container: %w", err)
	}
	undo = append(undo, func() { r.report("container", id, ctr.Delete(rpc)) })
	task, err := ctr.NewTask(rpc, cio.NullIO)
	if err != nil {
		return nil, fmt.Errorf("task: %w", r.oci.missing("", err))
	}
	undo = append(undo, func() { _, err := task.Delete(rpc, containerd.WithProcessKill); r.report("task", id, err) })
	ended, err := watch(rpc, task)
	if err != nil {
		return nil, fmt.Errorf("wait: %w", err)
	}
	if err := task.Start(rpc); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	return &Held{r: r, id: id, ctr: ctr, task: task, ended: ended, uidFact: fact, release: release, way: way}, nil
}

// workSize sets the size of /work and permits the execution of files in it.
func workSize(mib int64) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containersContainer, s *oci.Spec) error {
		for i := range s.Mounts {
			if s.Mounts[i].Destination == "/work" {
				s.Mounts[i].Options = append([]string{"nosuid", "nodev"}, sandbox.FolderOptions(mib)...)
			}
		}
		return nil
	}
}

// Adopt returns the container of a held sandbox that was created by a process that no longer runs.
// It kills those of the commands with the given ids that still run, because their output goes to
// that process. The error is ErrGone if the container does not exist, or if it does not run; in the
// second case Adopt removes it. After another error, for example because containerd did not
// respond, the container is as it was, and the caller may try again.
func (h *Holder) Adopt(id string, commands []string) (*Held, error) {
	r := h.r
	rpc := r.ctx(context.Background())
	ctr, err := r.client.LoadContainer(rpc, id)
	if errdefs.IsNotFound(err) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	c := &Held{r: r, id: id, ctr: ctr, uidFact: "uid:shared", release: func() {}}
	labels, err := ctr.Labels(rpc)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	c.way = wayOut(labels[wayLabel])
	if r.uids != nil {
		if uid, err := strconv.Atoi(labels[uidLabel]); err == nil {
			if release, err := r.uids.TakeAgain(uid); err == nil {
				c.release, c.uidFact = release, "uid:per_run"
			}
		}
	}
	if c.task, err = ctr.Task(rpc, nil); err == nil {
		var status containerd.Status
		if status, err = c.task.Status(rpc); err == nil && status.Status != containerd.Running {
			err = ErrGone
		}
	}
	if err == nil {
		c.ended, err = watch(rpc, c.task)
	}
	if errdefs.IsNotFound(err) || errors.Is(err, ErrGone) {
		c.Remove()
		return nil, ErrGone
	}
	if err != nil {
		c.Release()
		return nil, err
	}
	for _, id := range commands {
		r.report("command", c.id, c.endCommand(rpc, id))
	}
	u, _ := usage(rpc, c.task)
	c.cpu = u.CPUMillis // CPU time that an earlier process used and did not report is omitted
	return c, nil
}

// endCommand kills and deletes a process that an earlier process of the session-runner
// started. containerd.WithProcessKill has no effect on it, because the client has no
// process id for it.
func (h *Held) endCommand(ctx context.Context, id string) error {
	proc, err := h.task.LoadProcess(ctx, id, nil)
	if err != nil {
		return err
	}
	ended, err := watch(ctx, proc)
	if err != nil {
		return err
	}
	if err := proc.Kill(ctx, 9); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	<-ended.done
	_, err = proc.Delete(ctx)
	return err
}

// Done returns a channel that is closed when the container has ended, or when
// containerd was unreachable for lostTime, so that its end is not known.
func (h *Held) Done() <-chan struct{} { return h.ended.done }

// Remove kills the processes of the sandbox and removes the container.
func (h *Held) Remove() {
	rpc := h.r.ctx(context.Background())
	if h.task != nil {
		_, err := h.task.Delete(rpc, containerd.WithProcessKill)
		h.r.report("task", h.id, err)
	}
	h.r.report("container", h.id, h.ctr.Delete(rpc))
	h.r.report("snapshot", h.id, h.r.client.SnapshotService(snapshotter).Remove(rpc, h.id))
	if h.way != "" {
		h.r.report("folder", h.id, os.RemoveAll(string(h.way)))
	}
	h.release()
}

// Release gives up the container without removing it. Its user id may then be given to
// another sandbox or run, unless the process that adopts the container has taken it.
func (h *Held) Release() { h.release() }

// Command is one command in a held sandbox. Env is added to the environment of the
// sandbox, and Wall is the time limit.
type Command struct {
	ID     string // unique in the container
	Argv   []string
	Env    []string
	Dir    string // "" means /work
	Stdin  []byte
	Input  io.Reader // follows Stdin; nil means nothing. The caller ends it when Exec has returned
	Wall   time.Duration
	Stdout io.Writer
	Stderr io.Writer
	Egress *sandbox.Egress // nil means no network
	Bytes  *int64          // gets the number of bytes that Egress transferred; may be nil
	// Terminal gives the command a terminal, whose output, Stdout, includes standard error; nil
	// means none.
	Terminal *Terminal
}

// Terminal is the terminal of a command. Started is called when the command has started; the
// controls may be used until Exec has returned.
type Terminal struct {
	Columns, Rows uint32
	Started       func(*Controls)
}

// Controls change the terminal of a command and signal the command.
type Controls struct {
	proc containerd.Process
	rpc  context.Context
}

// Resize changes the size of the terminal, and so sends SIGWINCH to the program that uses it.
func (c *Controls) Resize(columns, rows uint32) error { return c.proc.Resize(c.rpc, columns, rows) }

// Signal sends a signal to the first process of the command.
func (c *Controls) Signal(s syscall.Signal) error { return c.proc.Kill(c.rpc, s) }

// console returns how containerd connects the command, whose process p gets the terminal's size.
func (c *Command) console(p *specs.Process, stdin *closing, stdout, stderr *later) cio.Opt {
	if c.Terminal == nil {
		return cio.WithStreams(stdin, stdout, stderr)
	}
	p.Terminal, p.ConsoleSize = true, &specs.Box{Width: uint(c.Terminal.Columns), Height: uint(c.Terminal.Rows)}
	return func(o *cio.Streams) {
		o.Stdin, o.Stdout, o.Terminal = stdin, stdout, true
	}
}

// Exec runs a command and waits until it has ended. The command is killed when ctx is
// done or its time has passed; processes that it started and that are not killed with it
// end with the sandbox. The writers are not used after Exec has returned.
//
// A command with egress shares its network with the other processes of the sandbox while it
// runs. The error is ErrHeldNoEgress if the sandbox was created without egress, and
// ErrHeldBusy if another command has egress.
func (h *Held) Exec(ctx context.Context, c Command) (exit int, timedOut bool, err error) {
	rpc := h.r.ctx(ctx)
	full, err := h.ctr.Spec(rpc)
	if err != nil {
		return 0, false, err
	}
	stop, err := h.egress(rpc, full.Process, c.Egress)
	if err != nil {
		return 0, false, err
	}
	defer func() {
		if n := stop(); c.Bytes != nil {
			*c.Bytes = n
		}
	}()
	p := *full.Process
	p.Args, p.Terminal, p.Cwd = c.Argv, false, "/work"
	if c.Dir != "" {
		p.Cwd = c.Dir
	}
	p.Env = c.Egress.Environment(merged(p.Env, c.Env))
	stdout, stderr := &later{to: c.Stdout}, &later{to: c.Stderr}
	defer func() { stdout.set(nil); stderr.set(nil) }()
	input := io.Reader(bytes.NewReader(c.Stdin))
	if c.Input != nil {
		input = io.MultiReader(input, c.Input)
	}
	stdin := &closing{r: input, eof: make(chan struct{})}
	proc, err := h.task.Exec(rpc, c.ID, &p, cio.NewCreator(c.console(&p, stdin, stdout, stderr), cio.WithFIFODir(h.r.fifoDir)))
	if err != nil {
		return 0, false, fmt.Errorf("exec: %w", err)
	}
	defer func() {
		_, err := proc.Delete(rpc, containerd.WithProcessKill)
		h.r.report("command", h.id, err)
	}()
	ended, err := watch(rpc, proc)
	if err != nil {
		return 0, false, fmt.Errorf("wait: %w", err)
	}
	if ctx.Err() != nil {
		return 0, false, fmt.Errorf("the command was not started: %w", context.Cause(ctx))
	}
	if err := proc.Start(rpc); err != nil {
		return 0, false, fmt.Errorf("start: %w", err)
	}
	if c.Terminal != nil {
		c.Terminal.Started(&Controls{proc, rpc})
	}
	go func() {
		<-stdin.eof
		for proc.CloseIO(rpc, containerd.WithStdinCloser) != nil { // containerd may be restarting
			select {
			case <-ended.done:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	timedOut = await(ctx, ended.done, c.Wall, func() { _ = proc.Kill(rpc, 9) })
	if ended.err != nil {
		return 0, timedOut, fmt.Errorf("wait: %w", ended.err)
	}
	drained := make(chan struct{})
	go func() { proc.IO().Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(drainTime): // a process that the command started has its output open
		proc.IO().Cancel()
	}
	return ended.exit, timedOut, nil
}

// merged returns base with the variables of more, which replace those with the same names.
func merged(base, more []string) []string {
	out := append([]string{}, base...)
	for _, v := range more {
		name, _, _ := strings.Cut(v, "=")
		at := -1
		for i, o := range out {
			if strings.HasPrefix(o, name+"=") {
				at = i
			}
		}
		if at >= 0 {
			out[at] = v
		} else {
			out = append(out, v)
		}
	}
	return out
}

// Usage returns the CPU time of the sandbox since the last call of Usage, and its peak
// memory. Each millisecond is returned once.
func (h *Held) Usage() contract.Usage {
	u, _ := usage(h.r.ctx(context.Background()), h.task)
	h.mu.Lock()
	defer h.mu.Unlock()
	total := u.CPUMillis
	u.CPUMillis = max(0, total-h.cpu)
	h.cpu = max(total, h.cpu)
	return u
}

// Attestation returns the attestation of the sandbox: the image, the limits and the size of /work
// in MiB that the caller passes, and the restrictions that apply to its processes. e is the egress
// of the command, or nil.
func (h *Held) Attestation(image string, limits contract.Sandbox, diskMiB int64, e *sandbox.Egress) *contract.Attestation {
	return &contract.Attestation{Tier: h.r.Tier(), ImageDigest: image, Limits: limits,
		Enforced: append([]string{"container", e.Fact(), "read_only_root", "no_new_privs", "no_capabilities", "seccomp:narrowed", "no_keyring", h.uidFact, "memory:cgroup", "pids:cgroup", "cpu:cgroup", sandbox.DiskFact(diskMiB), "wall_clock", "output_bytes"}, h.r.oci.facts()...)}
}
