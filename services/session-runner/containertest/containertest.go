// Package containertest runs programs in containers of the session-runner on a simulated
// containerd. The session-runner's own code creates, starts, awaits and removes the
// containers; the programs are functions.
package containertest

import (
	"context"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd/simulated"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// Daemon is a simulated containerd daemon.
type Daemon = simulated.Daemon

// Program is the process of a container.
type Program = simulated.Program

// Fault states whether the connection of a request to the daemon breaks, and when.
type Fault = simulated.Fault

// The faults of a request.
const (
	None       = simulated.None
	Lost       = simulated.Lost
	Unanswered = simulated.Unanswered
)

// New returns a daemon without containers.
func New() *Daemon { return simulated.New() }

// Runner runs programs, as an instance of the session-runner does in tier container.
type Runner struct {
	d    *Daemon
	ns   string
	runs *containerd.Runner
}

// Open returns the runner of an instance. It removes the containers that an earlier process
// of the instance left in the daemon. All its requests fail when dead is closed, as those of
// a process that is killed. warm is the maximum number of prepared containers.
func Open(ctx context.Context, d *Daemon, instance string, dead <-chan struct{}, warm int) (*Runner, error) {
	c, client, err := d.Connect(instance, dead)
	if err != nil {
		return nil, err
	}
	r, err := containerd.OpenSimulated(ctx, client, instance, warm, c.Streams)
	return &Runner{d, instance, r}, err
}

// Close removes all containers. All runs must have ended.
func (r *Runner) Close() error { return r.runs.Close() }

// Run runs a program in a container of its own, and stops it after the duration most. image
// names the program; Daemon.Fault receives it. Run returns an error if the container could
// not be created or operated. The program may nevertheless have run.
func (r *Runner) Run(ctx context.Context, image string, p Program, most time.Duration) (stdout []byte, exit int, err error) {
	r.d.Program(r.ns, image, p)
	out, err := r.runs.Run(ctx, sandbox.Spec{Program: &program.Program{Digest: image}, Limits: contract.Sandbox{WallMS: most.Milliseconds(), OutputBytes: 1 << 20, MemoryMiB: 64, CPUMillis: 1000, Pids: 32}})
	return out.Stdout, out.Exit, err
}
