package containerd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/snapshots"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// profile identifies the containers that are equal before a run starts in them.
type profile struct {
	runtime    string // containerd runtime; "" is containerd's default
	image      imageID
	memoryMiB  int64
	cpuMillis  int64
	pids       int64
	diskMiB    int64 // size of each writable folder
	executable bool  // files in /work can be executed
	egress     bool  // the container can have a listener for its connections
}

// prepared is a container for one run. Its first process is the launcher, which waits for the
// run's start message; on an architecture without a launcher it is the program itself, which
// is started with the run.
type prepared struct {
	image    *image
	uidFact  string // entry of the attestation for the user id
	task     containerd.Task
	launcher bool
	way      wayOut // folder for a run with egress; "" for a container without egress
	ended    *ending
	stdin    *io.PipeWriter
	stdout   *later
	stderr   *later
	folders  sandbox.Folders
	run      func() error // starts the task of a container without a launcher
	remove   func()       // kills the container's processes and removes all that belongs to it; must be called once
}

// prepare creates a container and starts the launcher in it. On an architecture without a
// launcher, the container is for the program itself, with the environment env, and is not
// started; otherwise env is not used. The caller must call remove on the result.
func (r *Runner) prepare(p profile, prog *program.Program, env []string) (_ *prepared, err error) {
	rpc := r.ctx(context.Background())
	img, err := r.host.image(rpc, prog, p.image.base)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	uid, fact, release, err := r.user()
	if err != nil {
		return nil, err
	}
	id := r.own.begin()
	undo := []func(){release, func() { r.own.end(id) }}
	remove := func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	defer func() {
		if err != nil {
			remove()
		}
	}()
	c := &prepared{image: img, uidFact: fact, launcher: img.launcher, stdout: &later{}, stderr: &later{}, remove: remove}
	argv := prog.Argv()
	if c.launcher {
		argv, env = []string{launcherPath}, nil
		if p.runtime == "" && filteredELF() != nil { // the kernel of a virtual machine may have no filters
			argv = []string{filteredPath}
		}
	}
	if p.egress {
		c.way = wayOut(filepath.Join(r.fifoDir, "egress-"+id))
		undo = append(undo, func() { r.report("folder", id, os.RemoveAll(string(c.way))) })
		if err := c.way.create(); err != nil {
			return nil, fmt.Errorf("egress: %w", err)
		}
	}
	sn := r.client.SnapshotService(snapshotter)
	if _, err := sn.View(rpc, id, img.snapshot, snapshots.WithLabels(map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339)})); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	undo = append(undo, func() { r.report("snapshot", id, sn.Remove(rpc, id)) })
	ctr, err := r.client.NewContainer(leaseless(rpc), id, containerd.WithSnapshotter(snapshotter), containerd.WithSnapshot(id),
		r.oci.under(p.runtime, r.client), r.host.options(p, argv, environment(img.env, env), uint32(uid), c.way))
	if err != nil {
		return nil, fmt.Errorf("container: %w", err)
	}
	undo = append(undo, func() { r.report("container", id, ctr.Delete(rpc)) })
	in, out := io.Pipe()
	c.stdin = out
	stdin := &closing{r: in, eof: make(chan struct{})}
	undo = append(undo, func() { _, _ = in.Close(), out.Close(); stdin.end(); c.folders.Close() })
	creating, cancel := context.WithCancel(rpc)
	undo = append(undo, cancel) // only then, because the streams of the task also use the context
	expired := time.AfterFunc(createTime, cancel)
	c.task, err = ctr.NewTask(creating, r.host.streams(stdin, c.stdout, c.stderr))
	if !expired.Stop() && err != nil {
		err = fmt.Errorf("not created within %v: %w", createTime, err)
	}
	if err != nil {
		return nil, fmt.Errorf("task: %w", r.oci.missing(p.runtime, err))
	}
	undo = append(undo, func() {
		var kill []containerd.ProcessDeleteOpts
		if c.ended == nil || c.alive() || c.ended.err != nil {
			kill = append(kill, containerd.WithProcessKill) // otherwise the first process has ended, and the kernel has killed the others of its PID namespace
		}
		_, err := c.task.Delete(rpc, kill...)
		r.report("task", id, err)
	})
	if c.ended, err = watch(rpc, c.task); err != nil {
		return nil, fmt.Errorf("wait: %w", err)
	}
	c.run = func() error {
		if err := c.task.Start(rpc); err != nil {
			return fmt.Errorf("start: %w", err)
		}
		c.folders = openFolders(c.task.Pid(), id, p.diskMiB)
		go func() {
			<-stdin.eof
			for c.task.CloseIO(rpc, containerd.WithStdinCloser) != nil && c.alive() { // containerd may be restarting
				time.Sleep(50 * time.Millisecond)
			}
		}()
		return nil
	}
	if c.launcher {
		return c, c.run()
	}
	return c, nil
}

// report logs the error of a removal, unless it is nil or the part does not exist. The next
// sweep repeats a failed removal.
func (r *Runner) report(part, id string, err error) {
	if err != nil && !errdefs.IsNotFound(err) {
		slog.Warn("sandbox: not removed yet", "part", part, "id", id, "err", err)
	}
}

// alive reports whether the container's first process runs.
func (c *prepared) alive() bool {
	select {
	case <-c.ended.done:
		return false
	default:
		return true
	}
}

// start starts the program with the given input. Its output is written to stdout and
// stderr until execute sets the destinations of c.stdout and c.stderr to nil; later
// output is discarded.
func (c *prepared) start(argv, env []string, input []byte, stdout, stderr io.Writer) error {
	c.stdout.set(stdout)
	c.stderr.set(stderr)
	if c.launcher {
		message, err := startMessage(argv, env)
		if err != nil {
			return err
		}
		input = append(message, input...)
	} else if err := c.run(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(c.stdin, bytes.NewReader(input)) // fails if the program ends first
		_ = c.stdin.Close()
	}()
	return nil
}

// ending is the end of a process: exit and err are set when done is closed.
type ending struct {
	done chan struct{}
	exit int
	err  error // the exit code could not be read, or containerd did not respond for lostTime
}

// lostTime is the maximum time to wait for containerd after the connection was lost.
const lostTime = 30 * time.Second

// watch returns the ending of a task, or of another process of a container. If containerd
// restarts meanwhile, it waits again, because the process continues to run. If containerd
// still does not respond lostTime after the first failure, or no longer has the process,
// the ending has an error.
func watch(ctx context.Context, task containerd.Process) (*ending, error) {
	exited, err := task.Wait(ctx)
	if err != nil {
		return nil, err
	}
	e := &ending{done: make(chan struct{})}
	go func() {
		defer close(e.done)
		var lost time.Time
		for {
			status := <-exited
			code, _, err := status.Result()
			if err == nil {
				e.exit = int(code)
				return
			}
			if lost.IsZero() {
				lost = time.Now()
			}
			if err = errdefs.FromGRPC(err); errdefs.IsNotFound(err) || time.Since(lost) > lostTime {
				e.err = err
				return
			}
			time.Sleep(100 * time.Millisecond)
			if exited, err = task.Wait(ctx); err != nil {
				e.err = err
				return
			}
		}
	}()
	return e, nil
}

// later is a writer whose destination can be set after its first use. Without a
// destination it discards what is written. It is safe for concurrent use.
type later struct {
	mu sync.Mutex
	to io.Writer
}

func (l *later) set(to io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = to
}

// Write implements io.Writer.
func (l *later) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to == nil {
		return len(p), nil
	}
	return l.to.Write(p)
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
		c.end()
		if errors.Is(err, io.ErrClosedPipe) {
			err = io.EOF // the container was removed
		}
	}
	return n, err
}

func (c *closing) end() { c.once.Do(func() { close(c.eof) }) }

// owned is the set of ids of the containers of this process. A sweep does not remove
// them. It is safe for concurrent use.
type owned struct {
	mu  sync.Mutex
	ids map[string]bool
}

// begin returns a new id, and adds it to the set.
func (o *owned) begin() string {
	id := "sandbox-" + rand.Text()
	o.add(id)
	return id
}

// add adds an id to the set.
func (o *owned) add(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ids == nil {
		o.ids = map[string]bool{}
	}
	o.ids[id] = true
}

func (o *owned) end(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ids, id)
}

func (o *owned) has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ids[id]
}

// discards removes containers in the background, at most the capacity of slots at a time.
type discards struct {
	slots chan struct{}
	all   sync.WaitGroup
}

// start calls remove in the background. It waits while too many removals are running.
func (d *discards) start(remove func()) {
	d.slots <- struct{}{}
	d.all.Go(func() {
		defer func() { <-d.slots }()
		remove()
	})
}
