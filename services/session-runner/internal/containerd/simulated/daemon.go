// Package simulated simulates a containerd daemon in memory. A client of containerd's
// own package uses it, so that everything above the requests is that of a real daemon. The
// processes in its containers are functions. It can run in a bubble of testing/synctest.
package simulated

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/containers"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/snapshots"
)

// Fault states whether the connection of a request breaks, and when.
type Fault int

// The faults of a request. With Lost and Unanswered, the client receives an error.
const (
	None       Fault = iota
	Lost             // the daemon does not receive the request
	Unanswered       // the daemon executes the request, and the response is lost
)

// Program is the process of a container. It receives the standard input that follows the
// start message, and returns its standard output and its exit code. Its context ends when the
// process is killed; what it returns then has no effect.
type Program func(ctx context.Context, stdin []byte) (stdout []byte, exit int)

// killed is the exit code of a process that was killed.
const killed = 137

// Daemon is a simulated daemon. Its containers and processes continue while it is stopped. It
// is safe for concurrent use.
type Daemon struct {
	// Fault returns the fault of a request in a namespace. op names the request, and image is the
	// parent of the snapshot of its container, or "" if the request has no container. nil
	// means no faults. It is called without a lock.
	Fault func(ns, image, op string) Fault

	mu       sync.Mutex
	serving  chan struct{} // closed while the daemon serves
	stopping chan struct{} // closed when the daemon stops serving
	spaces   map[string]*space
}

// space is a namespace.
type space struct {
	programs   map[string]Program // by image
	views      map[string]string  // the images of snapshots, by key
	containers map[string]containers.Container
	tasks      map[string]*task
	leases     map[string]bool
}

// New returns a daemon that serves and has no containers.
func New() *Daemon {
	d := &Daemon{serving: make(chan struct{}), stopping: make(chan struct{}), spaces: map[string]*space{}}
	close(d.serving)
	return d
}

// Stop stops the daemon, which must be serving. Until Start a request waits for at most
// patience and then fails. Requests that wait for the end of a process fail at once.
func (d *Daemon) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serving = make(chan struct{})
	close(d.stopping)
}

// Start makes a stopped daemon serve again.
func (d *Daemon) Start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopping = make(chan struct{})
	close(d.serving)
}

// Program sets the program of the containers of an image in a namespace.
func (d *Daemon) Program(ns, image string, p Program) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.space(ns).programs[image] = p
}

// space returns a namespace. d.mu must be held.
func (d *Daemon) space(ns string) *space {
	s := d.spaces[ns]
	if s == nil {
		s = &space{programs: map[string]Program{}, views: map[string]string{}, containers: map[string]containers.Container{}, tasks: map[string]*task{}, leases: map[string]bool{}}
		d.spaces[ns] = s
	}
	return s
}

// Left returns a line for each container, task, snapshot and lease of the daemon, sorted.
func (d *Daemon) Left() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for ns, s := range d.spaces {
		for id := range s.views {
			out = append(out, ns+" snapshot "+id)
		}
		for id := range s.containers {
			out = append(out, ns+" container "+id)
		}
		for id := range s.tasks {
			out = append(out, ns+" task "+id)
		}
		for id := range s.leases {
			out = append(out, ns+" lease "+id)
		}
	}
	slices.Sort(out)
	return out
}

// Client is a connection of one process to a Daemon.
type Client struct {
	d    *Daemon
	ns   string
	dead <-chan struct{} // closed when the process is killed; nil if it never is

	mu      sync.Mutex
	streams map[string]*streams // by container
}

// Connect returns a connection of a process that uses one namespace, and containerd's client
// on it. All requests fail when dead is closed.
func (d *Daemon) Connect(ns string, dead <-chan struct{}) (*Client, *containerd.Client, error) {
	c := &Client{d: d, ns: ns, dead: dead, streams: map[string]*streams{}}
	up, err := containerd.New("", containerd.WithServices(
		containerd.WithContainerStore(store{c: c}), containerd.WithTaskClient(taskService{c: c}), containerd.WithLeasesService(leaseService{c: c}),
		containerd.WithSnapshotters(map[string]snapshots.Snapshotter{"overlayfs": snapshotter{c: c}})))
	return c, up, err
}

// patience is the time for which a request waits for a daemon that does not serve. The
// client of a real daemon waits too.
const patience = 5 * time.Second

// request executes a request for a container, or for none if id is "". do is called with
// the daemon's lock.
func (c *Client) request(op, id string, do func(*space) error) error {
	c.d.mu.Lock()
	image := c.d.space(c.ns).views[id]
	c.d.mu.Unlock()
	return c.requestOf(image, op, do)
}

// requestOf executes a request for a container of an image, or for none if image is "".
func (c *Client) requestOf(image, op string, do func(*space) error) error {
	if err := c.served(); err != nil {
		return err
	}
	fault := None
	if c.d.Fault != nil {
		fault = c.d.Fault(c.ns, image, op)
	}
	if fault == Lost {
		return unavailable(op)
	}
	c.d.mu.Lock()
	err := do(c.d.space(c.ns))
	c.d.mu.Unlock()
	if fault == Unanswered {
		return unavailable(op)
	}
	return err
}

// served waits until the daemon serves, for at most patience. It returns an error if the
// daemon does not serve or the process of the client was killed.
func (c *Client) served() error {
	end := time.NewTimer(patience)
	defer end.Stop()
	c.d.mu.Lock()
	serving := c.d.serving
	c.d.mu.Unlock()
	if c.gone() {
		return unavailable("a killed process")
	}
	select {
	case <-serving:
		return nil
	default:
	}
	select {
	case <-serving:
	case <-c.dead:
	case <-end.C:
		return unavailable("connect")
	}
	if c.gone() {
		return unavailable("a killed process")
	}
	return nil
}

// gone reports whether the process of the client was killed.
func (c *Client) gone() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

func unavailable(op string) error {
	return fmt.Errorf("%s: the connection is lost: %w", op, errdefs.ErrUnavailable)
}

func notFound(id string) error { return fmt.Errorf("%s: %w", id, errdefs.ErrNotFound) }

// streams are the standard streams of a container's process.
type streams struct {
	stdin  io.Reader
	stdout io.Writer
}
