package containerd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/errdefs"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// TierMicroVM is the name of the tier whose runs have a kernel of their own, or a kernel
// that is emulated for them.
const TierMicroVM = "microvm"

// MicroVM implements sandbox.Runner for tier "microvm": runs of a Runner whose containers
// are made by another containerd runtime, such as Kata Containers or gVisor. The isolation
// is that of the runtime; the attestation names it.
type MicroVM struct {
	r       *Runner
	runtime string
}

// NewMicroVM returns the runner of tier "microvm" for a containerd runtime, such as
// io.containerd.kata.v2. It shares the runner's namespace and prepared containers, and must
// not be used after the runner was closed.
func NewMicroVM(r *Runner, runtime string) *MicroVM { return &MicroVM{r, runtime} }

// MissingRuntime is the error for a run whose container the configured runtime did not
// create.
type MissingRuntime struct {
	Runtime string
	Setting string // that names the runtime
	Err     error
}

// Error implements error.
func (e *MissingRuntime) Error() string {
	return fmt.Sprintf("%s: %v: install it on the host, or correct %s", e.Runtime, e.Err, e.Setting)
}

// Unwrap returns containerd's error.
func (e *MissingRuntime) Unwrap() error { return e.Err }

// ErrNoEgress means that runs of tier "microvm" have no network.
var ErrNoEgress = errors.New("runs of tier microvm have no network: let the tool run in tier container")

// Unavailable reports whether the error of a run means that the tier cannot run it on this
// host now: the runtime is missing, the tier has no network, or the daemon does not respond.
func Unavailable(err error) bool {
	return errors.As(err, new(*MissingRuntime)) || errors.Is(err, ErrNoEgress) || errdefs.IsUnavailable(err) || errdefs.IsUnavailable(errdefs.FromGRPC(err))
}

// Tier implements sandbox.Runner.
func (*MicroVM) Tier() string { return TierMicroVM }

// OwnUID implements sandbox.Runner.
func (m *MicroVM) OwnUID() bool { return m.r.OwnUID() }

// Run implements sandbox.Runner. It returns a *MissingRuntime if the runtime does not
// create a container, and ErrNoEgress for a run with a network.
func (m *MicroVM) Run(ctx context.Context, s sandbox.Spec) (sandbox.Outcome, error) {
	if s.Egress != nil {
		return sandbox.Outcome{}, ErrNoEgress
	}
	out, err := m.r.runIn(ctx, s, m.runtime)
	if out.Attest.Tier != "" {
		out.Attest.Tier = m.Tier()
		out.Attest.Enforced = append(out.Attest.Enforced, "runtime:"+m.runtime)
	}
	return out, err
}

// createTime is the maximum time for the creation of a container's first process. A runtime that
// hangs would otherwise keep the calls that use it, and their places in the queue, until the
// session-runner restarts. Tests change it.
var createTime = 30 * time.Second

// servingWithin is the timeout of Serving.
const servingWithin = 700 * time.Millisecond

// Serving returns an error if the runner's daemon does not respond within servingWithin.
func Serving(ctx context.Context, r *Runner) error {
	ctx, stop := context.WithTimeout(ctx, servingWithin)
	defer stop()
	if ok, err := r.client.IsServing(ctx); !ok || err != nil {
		return errors.Join(errors.New("containerd does not respond"), err)
	}
	return nil
}

// Prepared returns the number of containers that are ready for a run.
func (r *Runner) Prepared() int { return r.pool.ready() }
